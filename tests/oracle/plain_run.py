"""Feeds a case to the plain walk and writes down what it does, as the parity vectors do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replay_engine.config import SchedulerConfig
from tests.oracle.plain_types import TOKEN_STRIDE, Decision, PlainSequence
from tests.oracle.plain_walk import PlainWalk

__all__ = ["LivelockError", "run_case"]


class LivelockError(Exception):
    """The case did not end within the allowed number of iterations."""


def _sequence(request: dict[str, Any]) -> PlainSequence:
    tokens = [seed * TOKEN_STRIDE + i for seed, length in request["prompt_segments"] for i in range(length)]
    return PlainSequence(
        request_id=request["id"],
        tokens=tokens,
        max_tokens=request["output_len"],
        output_seed=request["output_seed"],
        priority=request.get("priority", 0),
        arrival_time=request["arrival_time"],
    )


def _ids(sequences: list[PlainSequence]) -> list[str]:
    return [seq.request_id for seq in sequences]


def _decided(walk: PlainWalk, made: Decision) -> dict[str, Any]:
    free = len(walk.pool.free)
    record: dict[str, Any] = {
        "scheduled": {seq.request_id: tokens for seq, tokens in made.scheduled.items()},
        "total_tokens": sum(made.scheduled.values()),
        "admitted": _ids(made.admitted),
        "resumed": _ids(made.resumed),
        "cached_tokens": {seq.request_id: tokens for seq, tokens in made.cached.items()},
        "preempted": _ids(made.preempted),
        "lost_tokens": made.lost,
        "evicted": made.evicted,
    }
    record = {name: value for name, value in record.items() if value or name in ("scheduled", "total_tokens")}
    record["running"] = _ids(walk.running)
    record["waiting"] = _ids(walk.waiting_order())
    record["free_blocks"] = free
    record["used_blocks"] = walk.config.usable_blocks - free
    return record


def _debug(walk: PlainWalk, made: Decision) -> dict[str, Any]:
    return {
        "block_tables": {seq.request_id: list(seq.blocks) for seq in walk.running},
        "free_list": list(walk.pool.free),
        "decoding": sorted(made.decoding),
        "refused_by": made.refused_by.name,
        "refused_head": made.refused_head,
        "refused_need": made.refused_need,
    }


def _one_step(
    walk: PlainWalk, step: int, before: tuple[int, Decision] | None, *, debug: bool
) -> tuple[dict[str, Any], dict[str, Any], Decision]:
    made = walk.schedule()
    record = _decided(walk, made)
    extra = _debug(walk, made) if debug else {}
    output = (step, made) if not walk.config.async_scheduling else before
    if output is not None:
        if walk.config.async_scheduling:
            record["output_of_step"] = output[0]
        first, finished = walk.update(output[1])
        record |= {name: ids for name, ids in (("first_token", first), ("finished", finished)) if ids}
    record["free_blocks_end"] = len(walk.pool.free)
    if walk.config.enable_prefix_caching:
        record["hash_entries_end"] = len(walk.pool.cached)
    return record, extra, made


def run_case(
    knobs: dict[str, Any], requests: list[dict[str, Any]], *, debug: bool = False, max_steps: int = 20_000
) -> Iterator[dict[str, Any]]:
    """Yield one record per iteration, as ``tests/data/vllm_parity/README.md`` defines them.

    With ``debug`` a record has also ``block_tables`` (id: block ids) and ``free_list`` (ids, head first) right after the
    decision, ``decoding``, ``refused_by``, ``refused_head`` and ``refused_need``.
    Raises ``LivelockError`` after ``max_steps`` records.
    """
    walk = PlainWalk(SchedulerConfig(**knobs))
    arrivals: dict[int, list[PlainSequence]] = {}
    aborts: dict[int, list[PlainSequence]] = {}
    for request in requests:
        seq = _sequence(request)
        arrivals.setdefault(request["arrival_step"], []).append(seq)
        if "abort_step" in request:
            aborts.setdefault(request["abort_step"], []).append(seq)
    before: tuple[int, Decision] | None = None
    step = records = 0
    while arrivals or walk.running or walk.waiting:
        head: dict[str, Any] = {"step": step}
        arrived = arrivals.pop(step, [])
        for seq in arrived:
            walk.add(seq)
        # A request that has not arrived yet is nowhere to be removed from.
        there = walk.running + walk.waiting
        aborted = [seq for seq in aborts.pop(step, []) if seq in there and walk.abort(seq)]
        head |= {name: _ids(seqs) for name, seqs in (("arrived", arrived), ("aborted", aborted)) if seqs}
        if aborted or walk.running or walk.waiting:
            records += 1
            if records > max_steps:
                raise LivelockError(f"not finished after {max_steps} iterations: {len(walk.waiting)} requests wait")
            record, extra, made = _one_step(walk, step, before, debug=debug)
            before = (step, made)
            yield head | record | extra
        step += 1

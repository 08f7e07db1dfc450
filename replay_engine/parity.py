"""Parity with another engine's recorded decisions: ``python -m replay_engine.parity DIR`` checks a folder of vectors.

A vector is three files: ``<case>.config.json`` (``knobs``), ``<case>.requests.jsonl`` and ``<case>.jsonl`` (one record per
iteration). Records are
compared whole, cache internals and key order included; prints ``identical/total`` per case and the first difference.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from replay_engine.config import SchedulerConfig
from replay_engine.kv_identified import IdentifiedPool
from replay_engine.pools import PoolKind, make_pool
from replay_engine.scheduler import Scheduler
from replay_engine.types import BatchPlan, Refusal, Request, SeqState, Sequence

__all__ = ["check_folder", "main", "replay_case"]

_DECODE = int(SeqState.DECODE)
_SEGMENT = 1 << 20


def replay_case(
    knobs: dict[str, Any], requests: list[dict[str, Any]], *, pool: PoolKind = "auto", debug: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the records our scheduler makes of a case, in the vectors' own shape.

    ``debug`` adds ``joined``, ``left`` and ``decode_set`` (ids), ``refused_by``/``refused_head``/``refused_need``, and with
    the identified
    pool ``block_tables`` and ``free_list``.
    """
    config = SchedulerConfig(**{f.name: knobs[f.name] for f in fields(SchedulerConfig) if f.name in knobs})
    return _Case(config, requests, pool, debug).run()


class _Case:
    """One vector's world: arrivals, aborts, one decision, then the output of a batch."""

    def __init__(self, config: SchedulerConfig, requests: list[dict[str, Any]], pool: PoolKind, debug: bool) -> None:
        self.config = config
        self.debug = debug
        self.scheduler = Scheduler(config, make_pool(config, pool))
        whole = isinstance(self.scheduler.state.pool, IdentifiedPool)
        keys = _block_keys(requests, config)
        shared = Counter(chain.from_iterable(keys))
        self.requests = [
            (_request(i, raw), own if whole else _shareable(own, shared))
            for i, (raw, own) in enumerate(zip(requests, keys, strict=True))
        ]
        self.raw = requests
        self.sequences: dict[str, Sequence] = {}

    def run(self) -> Iterator[dict[str, Any]]:
        arrivals: dict[int, list[int]] = {}
        aborts: dict[int, list[str]] = {}
        for i, raw in enumerate(self.raw):
            arrivals.setdefault(raw["arrival_step"], []).append(i)
            if raw.get("abort_step") is not None:
                aborts.setdefault(raw["abort_step"], []).append(raw["id"])
        step = 0
        before: tuple[int, BatchPlan] | None = None
        while arrivals or self.scheduler.has_requests():
            record: dict[str, Any] = {"step": step}
            record |= _named("arrived", [self._add(i) for i in arrivals.pop(step, ())])
            record |= _named("aborted", [name for name in aborts.pop(step, ()) if self._abort(name)])
            if "aborted" in record or self.scheduler.has_requests():
                plan = self._decide(record)
                self._outcome(record, before if self.config.async_scheduling else (step, plan))
                before = (step, plan)
                yield record
            step += 1

    def _add(self, i: int) -> str:
        request, keys = self.requests[i]
        self.sequences[request.request_id] = self.scheduler.add(request, keys)
        return request.request_id

    def _abort(self, name: str) -> bool:
        seq = self.sequences.get(name)
        return seq is not None and self.scheduler.abort(seq)

    def _decide(self, record: dict[str, Any]) -> BatchPlan:
        scheduler, pool = self.scheduler, self.scheduler.state.pool
        before = {seq: scheduler.computed(seq) for seq in scheduler.running_in_order()}
        evicted = pool.evicted
        plan = scheduler.schedule()
        scheduled = self._scheduled(plan, before)
        record["scheduled"] = scheduled
        record["total_tokens"] = sum(scheduled.values())
        assert record["total_tokens"] == plan.total_tokens
        record |= _named("admitted", [seq.request_id for seq, _, resumed in plan.admitted if not resumed])
        record |= _named("resumed", [seq.request_id for seq, _, resumed in plan.admitted if resumed])
        record |= _named("cached_tokens", {seq.request_id: cached for seq, cached, _ in plan.admitted})
        record |= _named("preempted", [seq.request_id for seq, _ in plan.preempted])
        record |= _named("lost_tokens", [lost for _, lost in plan.preempted])
        if pool.evicted > evicted:
            record["evicted"] = pool.evicted - evicted
        record["running"] = [seq.request_id for seq in scheduler.running_in_order()]
        record["waiting"] = [seq.request_id for seq in scheduler.state.waiting.in_order()]
        record["free_blocks"] = pool.free
        record["used_blocks"] = self.config.usable_blocks - pool.free
        if self.debug:
            self._details(record, plan)
        return plan

    def _scheduled(self, plan: BatchPlan, before: dict[Sequence, int]) -> dict[str, int]:
        """Tokens by sequence in scheduling order, from the explicit entries and from who was served as a member of the set."""
        explicit = {entry.seq: entry.query_len for entry in plan.prefill}
        admitted = {seq for seq, _, _ in plan.admitted}
        served = [seq for seq in self.scheduler.running_in_order() if seq not in admitted]
        tokens = {seq: explicit.get(seq, self.scheduler.computed(seq) - before[seq]) for seq in served}
        tokens |= {seq: explicit[seq] for seq, _, _ in plan.admitted}
        return {seq.request_id: n for seq, n in tokens.items() if n}

    def _details(self, record: dict[str, Any], plan: BatchPlan) -> None:
        state = self.scheduler.state
        explicit = {entry.seq for entry in plan.prefill}
        record["joined"] = [seq.request_id for seq in plan.joined]
        record["left"] = [seq.request_id for seq in plan.left]
        members = [seq for seq in state.running.values() if seq.state == _DECODE and seq not in explicit]
        members += [seq for seq in plan.finishing if seq not in explicit]
        record["decode_set"] = sorted(seq.request_id for seq in members)
        record["refused_by"] = Refusal(plan.refused_by).name
        record["refused_head"] = plan.refused.request_id if plan.refused else None
        record["refused_need"] = None if plan.refused_again else plan.refused_need
        if isinstance(state.pool, IdentifiedPool):
            record["block_tables"] = {seq.request_id: list(seq.blocks) for seq in state.running.values()}
            record["free_list"] = state.pool.free_list()

    def _outcome(self, record: dict[str, Any], due: tuple[int, BatchPlan] | None) -> None:
        scheduler = self.scheduler
        finished: list[Sequence] = []
        if due is not None:
            step, plan = due
            if self.config.async_scheduling:
                record["output_of_step"] = step
            gone = {seq for seq in self.sequences.values() if seq.state == int(SeqState.GONE)}
            finished = [seq for seq in scheduler.update(plan) if seq not in gone]
            first = [s.request_id for s in plan.sampled if s not in gone and _first_token(s, plan)]
            record |= _named("first_token", first)
            record |= _named("finished", [seq.request_id for seq in finished])
        record["free_blocks_end"] = scheduler.state.pool.free
        if self.config.enable_prefix_caching:
            record["hash_entries_end"] = scheduler.cache_entries()


def _first_token(seq: Sequence, plan: BatchPlan) -> bool:
    return any(entry.seq is seq and entry.kv_len == seq.prompt_tokens for entry in plan.prefill)


def _named(name: str, value: list[str] | list[int] | dict[str, int]) -> dict[str, Any]:
    return {name: value} if value else {}


def _request(index: int, raw: dict[str, Any]) -> Request:
    return Request(
        index=index,
        request_id=raw["id"],
        arrival_ns=raw["arrival_step"],
        arrival_order=raw["arrival_time"],
        prompt_tokens=sum(length for _, length in raw["prompt_segments"]),
        output_tokens=raw["output_len"],
        priority=raw.get("priority", 0),
    )


def _block_keys(requests: list[dict[str, Any]], config: SchedulerConfig) -> list[list[int]]:
    """Chained keys of every full block a request can ever compute: equal key, equal content after an equal prefix."""
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    size = config.block_size
    out = []
    for raw in requests:
        tokens = [seed * _SEGMENT + i for seed, length in raw["prompt_segments"] for i in range(length)]
        outputs = min(raw["output_len"], config.max_model_len - len(tokens))
        tokens += [raw["output_seed"] * _SEGMENT + i for i in range(outputs - 1)]
        keys, parent = [], -1
        for start in range(0, len(tokens) - size + 1, size):
            parent = known.setdefault((parent, tuple(tokens[start : start + size])), len(known))
            keys.append(parent)
        out.append(keys)
    return out


def _shareable(keys: list[int], shared: Counter[int]) -> list[int]:
    """The leading keys that another request has too; chained keys make the rest unreachable for others."""
    count = 0
    while count < len(keys) and shared[keys[count]] > 1:
        count += 1
    return keys[:count]


def _difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    if json.dumps(ours) == json.dumps(theirs):
        return None
    for key in chain(theirs, (k for k in ours if k not in theirs)):
        mine, other = ours.get(key), theirs.get(key)
        if json.dumps(mine) != json.dumps(other):
            return f"step {theirs.get('step')}, {key}: ours {json.dumps(mine)}, recorded {json.dumps(other)}"
    return f"step {theirs.get('step')}: the same values in another order"


def check_folder(folder: Path, pool: PoolKind = "auto") -> list[tuple[str, int, int, str | None]]:
    """Replay every vector of ``folder``: ``(case, identical records, recorded records, first difference or None)``."""
    results = []
    for path in sorted(folder.glob("*.config.json")):
        case = path.name.removesuffix(".config.json")
        knobs = json.loads(path.read_text())["knobs"]
        requests = _lines(folder / f"{case}.requests.jsonl")
        recorded = _lines(folder / f"{case}.jsonl")
        ours = list(replay_case(knobs, requests, pool=pool))
        differences = [_difference(a, b) for a, b in zip(ours, recorded, strict=False)]
        first = next((d for d in differences if d), None)
        if first is None and len(ours) != len(recorded):
            first = f"{len(ours)} records, recorded {len(recorded)}"
        results.append((case, sum(d is None for d in differences), max(len(ours), len(recorded)), first))
    return results


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: every record identical; 1: a difference; 2: no vectors there."""
    arguments = sys.argv[1:] if arguments is None else arguments
    kinds: dict[str, PoolKind] = {kind: kind for kind in get_args(PoolKind)}
    pool = kinds.get(arguments[1]) if len(arguments) == 2 else "auto"
    if len(arguments) not in (1, 2) or pool is None or not Path(arguments[0]).is_dir():
        print("usage: python -m replay_engine.parity DIR [auto|counted|identified|traced]", file=sys.stderr)
        return 2
    results = check_folder(Path(arguments[0]), pool)
    for case, identical, total, first in results:
        print(f"{case}: {identical}/{total}" + (f"  first difference: {first}" if first else ""))
    identical, total = sum(r[1] for r in results), sum(r[2] for r in results)
    print(f"{identical}/{total} records identical in {len(results)} cases")
    return 2 if not results else int(identical != total)


if __name__ == "__main__":
    raise SystemExit(main())

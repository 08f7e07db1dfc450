"""Compares the engine's scheduler with the plain walk, record by record, and makes a difference small."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

from tests.oracle.cases import Case
from tests.oracle.plain_run import LivelockError, run_case

__all__ = ["Replay", "difference", "oracle_records", "pools_for", "shrink"]

Pool = Literal["auto", "counted", "identified", "traced"]
Replay = Callable[..., Iterator[dict[str, Any]]]

MOST_STEPS = 3_000
"""Iterations after which a small case is taken to evict for ever (the longest that end need about a thousand)."""

ORACLE_ONLY = ("block_tables", "free_list", "decoding", "refused_by", "refused_head", "refused_need")
REPLAY_ONLY = ("block_tables", "free_list", "joined", "left", "decode_set", "refused_by", "refused_head", "refused_need")


def pools_for(knobs: dict[str, Any]) -> tuple[Pool, ...]:
    """The block pools that can run under ``knobs``."""
    if not knobs.get("enable_prefix_caching", True):
        return "auto", "counted", "identified"
    if knobs.get("engine_version") == "0.20.0":  # one free list: only real ids can follow it
        return "auto", "identified"
    return "auto", "identified", "traced"


def oracle_records(case: Case) -> list[dict[str, Any]] | None:
    """The plain walk's records with debug fields; ``None`` when the case never ends."""
    try:
        return list(run_case(*case, debug=True, max_steps=MOST_STEPS))
    except LivelockError:
        return None


def _split(record: dict[str, Any], extras: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    plain = {name: value for name, value in record.items() if name not in extras}
    return json.dumps(plain), {name: record[name] for name in extras if name in record}


def _extras_differ(wanted: dict[str, Any], got: dict[str, Any], pool: Pool, mirror: set[str]) -> str | None:
    names = ["refused_by", "refused_head"] + (["block_tables", "free_list"] if pool == "identified" else [])
    for name in names:
        if name == "refused_need" and got[name] is None:  # a refusal that stands from an earlier look
            continue
        if wanted[name] != got[name]:
            return f"{name}: expected {wanted[name]}, got {got[name]}"
    # A head that stays refused is not looked up again: then what it needs now is not known (None).
    if got["refused_need"] not in (None, wanted["refused_need"]):
        return f"refused_need: expected {wanted['refused_need']}, got {got['refused_need']}"
    mirror |= set(got["joined"])
    mirror -= set(got["left"])
    if sorted(mirror) != got["decode_set"]:
        return f"joined and left give {sorted(mirror)}, decode_set is {got['decode_set']}"
    if not set(got["decode_set"]) <= set(wanted["decoding"]):
        return f"decode_set {got['decode_set']} has members that do not decode; expected some of {wanted['decoding']}"
    return None


def difference(case: Case, replay: Replay, pool: Pool, expected: list[dict[str, Any]]) -> str | None:
    """The first difference between ``replay``'s records under ``pool`` and the ``expected`` ones, in one line."""
    mirror: set[str] = set()
    before: dict[str, Any] | None = None
    produced = replay(*case, pool=pool, debug=True)
    for raw_wanted in expected:
        raw_got = next(produced, None)
        if raw_got is None:
            return f"step {raw_wanted['step']}: expected a record, got none"
        if before is None or before["step"] != raw_wanted["step"] - 1:
            mirror.clear()  # everybody is gone, which was told in an iteration without a record
        # Whether an iteration without tokens has an output is not defined.
        if not before or not before["total_tokens"] or before["step"] != raw_wanted["step"] - 1:
            raw_wanted = {name: value for name, value in raw_wanted.items() if name != "output_of_step"}
            raw_got.pop("output_of_step", None)
        before = raw_wanted
        wanted, wanted_extras = _split(raw_wanted, ORACLE_ONLY)
        got, got_extras = _split(raw_got, REPLAY_ONLY)
        if wanted != got:
            return f"step {raw_wanted['step']}: expected {wanted}, got {got}"
        found = _extras_differ(wanted_extras, got_extras, pool, mirror)
        if found:
            return f"step {raw_wanted['step']}: {found}"
    extra = next(produced, None)
    return f"step {extra['step']}: a record after the last" if extra else None


def _smaller(case: Case) -> Iterator[Case]:
    """Cases with one request less, or one length, arrival or option less."""
    knobs, requests = case
    for i in range(len(requests)):
        yield knobs, requests[:i] + requests[i + 1 :]
    for i, request in enumerate(requests):
        changed = [request | {"output_len": n} for n in (1, request["output_len"] // 2, request["output_len"] - 1) if n > 0]
        for k, (seed, length) in enumerate(request["prompt_segments"]):
            for n in (length // 2, length - 1):
                segments = copy.deepcopy(request["prompt_segments"])
                segments[k] = [seed, n]
                segments = [segment for segment in segments if segment[1] > 0]
                changed += [request | {"prompt_segments": segments}] if segments else []
        if request["arrival_step"] > 0:
            changed.append(request | {"arrival_step": request["arrival_step"] - 1})
        changed += [{k: v for k, v in request.items() if k != name} for name in ("abort_step", "priority") if name in request]
        for less in changed:
            if less != request:
                yield knobs, [*requests[:i], less, *requests[i + 1 :]]


def shrink(case: Case, fails: Callable[[Case], bool], tries: int = 600) -> Case:
    """A smaller case that still ``fails``, found greedily."""
    progress = True
    while progress and tries > 0:
        progress = False
        for candidate in _smaller(case):
            tries -= 1
            if tries <= 0:
                break
            if candidate[1] and fails(candidate):
                case, progress = candidate, True
                break
    return case

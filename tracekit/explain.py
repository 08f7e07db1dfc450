"""The story of one request of a run, from the run's tables alone: every stretch of its life, what the engine did meanwhile.

``story = explain(con, run, request)``; ``render_explain(story)`` as text. Times are ns on the engine clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tracekit.errors import UsageError
from tracekit.story import render_explain

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["SCHEMA", "explain", "render_explain"]

SCHEMA = "tracekit.explain/1"

_QUEUES = ("queued", "preempted")
_SUMMARY = ("prefill_tokens", "prefill_seqs", "decode_seqs", "decode_kv_tokens", "running", "waiting", "kv_used", "preempted")
_LONGEST = 3
_NOTHING: dict[str, npt.NDArray[Any]] = {name: np.empty(0) for name in ("iteration", "start_ns", "end_ns", "refused_by", "head")}
Row = dict[str, Any]
Columns = Mapping[str, npt.NDArray[Any]]


def explain(con: DuckDBPyConnection, run: int, request: int) -> Row:
    """One JSON-ready document. Raises ``UsageError`` for a request the run does not have, or a run that kept no spans."""
    outcome = _outcome(con, run, request)
    spans = _rows(
        con,
        "SELECT phase::VARCHAR AS phase, reason::VARCHAR AS reason, start_iteration, end_iteration, start_ns, end_ns, replica"
        " FROM spans WHERE run = ? AND request = ? ORDER BY start_ns, end_ns",
        [run, request],
    )
    if not spans and outcome["queue_ns"] is not None:
        raise UsageError(f"run {run} keeps no spans, so request {request} has no story; replay with --events full")
    homes = sorted({span["replica"] for span in spans if span["replica"] is not None} | {outcome["replica"] or 0})
    engines = {replica: (_iterations(con, run, replica, spans), _entries(con, run, replica, request)) for replica in homes}
    iterations = engines[outcome["replica"] or 0][0]
    preemptions = _rows(
        con,
        "SELECT iteration, resumed_iteration, preempted_ns, resumed_ns, restored_ns, lost_tokens, recomputed_tokens, hit_tokens"
        " FROM preemptions WHERE run = ? AND request = ? ORDER BY iteration, preempted_ns",
        [run, request],
    )
    parts = [_part(span, *engines.get(span["replica"], (_NOTHING, [])), request) for span in spans]
    gaps = _longest_gaps(_last_life(spans), iterations, outcome)
    for gap in gaps:
        gap["prefilled"] = _prefilled(con, run, outcome["replica"], gap["iteration"], request)
    by_phase: dict[str, int] = {}
    for part in parts:
        by_phase[part["phase"]] = by_phase.get(part["phase"], 0) + part["length_ns"]
    return {
        "schema": SCHEMA,
        "run": run,
        "request": request,
        "outcome": outcome,
        "by_phase_ns": by_phase,
        "parts": parts,
        "longest_gaps": gaps,
        "preemptions": preemptions,
        "decisions": _decisions(con, run, request),
        "routing": _routing(con, run, request),
        "check": _check(spans, outcome),
    }


def _rows(con: DuckDBPyConnection, query: str, values: list[Any]) -> list[Row]:
    cursor = con.execute(query, values)
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _outcome(con: DuckDBPyConnection, run: int, request: int) -> Row:
    names = (
        "replica, arrival_ns, last_token_ns, queue_ns, ttft_ns, tpot_ns, e2e_ns, max_gap_ns, stalled_ns, prompt_tokens,"
        " output_tokens, preemptions, recomputed_tokens, cached_tokens, coalesce(retries, 0) AS retries,"
        " state::VARCHAR AS state, reason::VARCHAR AS reason"
    )
    found = _rows(con, f"SELECT {names} FROM outcomes WHERE run = ? AND request = ?", [run, request])
    if found:
        return found[0]
    extent = con.execute("SELECT count(*), min(request), max(request) FROM outcomes WHERE run = ?", [run]).fetchall()[0]
    have = f"expected {extent[1]} to {extent[2]}" if extent[0] else "the run has no requests at all"
    raise UsageError(f"run {run} has no request {request}; {have}")


def _iterations(con: DuckDBPyConnection, run: int, replica: int, spans: list[Row]) -> Columns:
    """Every iteration that overlaps the request's life, as numpy columns in order."""
    begin, end = (spans[0]["start_ns"], max(span["end_ns"] for span in spans)) if spans else (0, 0)
    cursor = con.execute(
        "SELECT iteration, start_ns, start_ns + duration_ns AS end_ns, duration_ns, head_refused_by::VARCHAR AS refused_by,"
        f" coalesce(head_request, -1) AS head, {', '.join(_SUMMARY)} FROM iterations"
        " WHERE run = ? AND replica = ? AND start_ns < ? AND start_ns + duration_ns > ? ORDER BY iteration",
        [run, replica, end, begin],
    )
    columns: Columns = cursor.fetchnumpy()
    return columns


def _entries(con: DuckDBPyConnection, run: int, replica: int, request: int) -> list[Row]:
    return _rows(
        con,
        "SELECT iteration, query_len, kv_len, recompute FROM prefill_entries"
        " WHERE run = ? AND replica = ? AND request = ? ORDER BY iteration",
        [run, replica, request],
    )


def _decisions(con: DuckDBPyConnection, run: int, request: int) -> list[Row]:
    """What was decided about the request before it reached an engine, or outside of it."""
    return _rows(
        con,
        "SELECT at_ns, decision::VARCHAR AS decision, reason::VARCHAR AS reason, value, bound FROM decisions"
        " WHERE run = ? AND request = ? ORDER BY at_ns",
        [run, request],
    )


def _routing(con: DuckDBPyConnection, run: int, request: int) -> list[Row]:
    """What the router saw of each replica it looked at, for every time it sent the request to one."""
    return _rows(
        con,
        "SELECT at_ns, attempt, replica, chosen, requests, tokens, free_blocks, hit_blocks FROM routing"
        " WHERE run = ? AND request = ? ORDER BY attempt, at_ns, replica",
        [run, request],
    )


def _last_life(spans: list[Row]) -> list[Row]:
    """The spans since the request was sent for the last time: a failed replica's answer is not the one that counts."""
    again = [at for at, span in enumerate(spans) if span["phase"] == "queued" and span["reason"] == "replica_failed"]
    return spans[again[-1] :] if again else spans


def _part(span: Row, iterations: Columns, entries: list[Row], request: int) -> Row:
    """A span with what the engine did while it lasted."""
    begin, end = span["start_ns"], span["end_ns"]
    during = np.flatnonzero((iterations["start_ns"] < end) & (iterations["end_ns"] > begin))
    part: Row = {**span, "length_ns": end - begin, "iterations": int(during.size)}
    if span["phase"] in _QUEUES:
        part["waited_for"] = _waited_for(span, iterations, during, request)
    if span["phase"] == "prefill":
        part["prefill_chunks"] = _prefill_chunks(span, iterations, entries)
    if span["phase"] == "decode":
        part["tokens"] = int(during.size)
    if during.size:
        part["engine"] = {
            "prefill_tokens": int(iterations["prefill_tokens"][during].sum()),
            "decode_seqs_mean": float(iterations["decode_seqs"][during].mean()),
            "waiting_max": int(iterations["waiting"][during].max()),
            "kv_used_max": int(iterations["kv_used"][during].max()),
        }
    return part


def _waited_for(span: Row, iterations: Columns, during: npt.NDArray[np.int64], request: int) -> Row:
    """Seconds of the wait by refusal reason of the queue's head, and who was head.

    An iteration begun before the wait was decided without this request: its rest is ``under_way``.
    """
    start = np.maximum(iterations["start_ns"][during], span["start_ns"])
    length = np.minimum(iterations["end_ns"][during], span["end_ns"]) - start
    late = iterations["start_ns"][during] < span["start_ns"]
    reason = np.where(late, "under_way", iterations["refused_by"][during].astype(str))
    head = np.where(late, -1, iterations["head"][during])
    by_reason = _sums(reason, length)
    heads = {int(who): ns for who, ns in _sums(head, length).items() if who >= 0}
    return {
        "by_reason": {str(name): {"ns": ns, "iterations": int((reason == name).sum())} for name, ns in by_reason.items()},
        "as_head_ns": heads.get(request, 0),
        "behind": [{"request": who, "ns": ns} for who, ns in heads.items() if who != request][:_LONGEST],
        "no_iteration_ns": span["end_ns"] - span["start_ns"] - int(length.sum()),
    }


def _sums(keys: npt.NDArray[Any], length: npt.NDArray[np.int64]) -> dict[Any, int]:
    """Total length by key, longest first."""
    names, at = np.unique(keys, return_inverse=True)
    totals = np.bincount(at, weights=length, minlength=names.size).astype(np.int64)
    return {names[i].item(): int(totals[i]) for i in np.argsort(-totals, kind="stable")}


def _prefill_chunks(span: Row, iterations: Columns, entries: list[Row]) -> list[Row]:
    """The request's own prefill chunks of the span, each with its iteration."""
    chunks = []
    for entry in entries:
        at = int(np.searchsorted(iterations["iteration"], entry["iteration"]))
        if at >= iterations["iteration"].size or iterations["iteration"][at] != entry["iteration"]:
            continue
        if iterations["start_ns"][at] < span["start_ns"] or iterations["end_ns"][at] > span["end_ns"]:
            continue
        others = int(iterations["prefill_tokens"][at]) - entry["query_len"]
        chunks.append({**entry, "duration_ns": int(iterations["duration_ns"][at]), "other_prefill_tokens": others})
    return chunks


def _longest_gaps(spans: list[Row], iterations: Columns, outcome: Row) -> list[Row]:
    """The longest gaps between two tokens, each with the iteration at whose end the later token came."""
    tokens = _token_times(spans, iterations)
    gaps = np.diff(tokens)
    longest = np.argsort(-gaps, kind="stable")[:_LONGEST]
    found = []
    for at in longest:
        begin, end = int(tokens[at]), int(tokens[at + 1])
        where = int(np.searchsorted(iterations["end_ns"], end))
        between = [
            span["phase"] for span in spans if span["start_ns"] < end and span["end_ns"] > begin and span["phase"] != "decode"
        ]
        found.append(
            {
                "gap_ns": end - begin,
                "token": int(at) + 2,
                "from_arrival_ns": begin - outcome["arrival_ns"],
                "iteration": int(iterations["iteration"][where]),
                "duration_ns": int(iterations["duration_ns"][where]),
                "across": between,
                **{name: int(iterations[name][where]) for name in _SUMMARY},
            }
        )
    return found


def _token_times(spans: list[Row], iterations: Columns) -> npt.NDArray[np.int64]:
    """A token at the end of every iteration of a decode span, and of a prefill that completed (a decode follows, or nothing)."""
    times: list[int] = []
    for at, span in enumerate(spans):
        if span["phase"] == "decode":
            number = iterations["iteration"]
            within = (number >= span["start_iteration"]) & (number <= span["end_iteration"])
            within &= iterations["end_ns"] <= span["end_ns"]
            times += [int(end) for end in iterations["end_ns"][within]]
        elif span["phase"] == "prefill" and (at + 1 == len(spans) or spans[at + 1]["phase"] in ("decode", "stalled")):
            times.append(span["end_ns"])
    return np.array(times, np.int64)


def _prefilled(con: DuckDBPyConnection, run: int, replica: int, iteration: int, request: int) -> list[Row]:
    """The largest prefill chunks of other requests in an iteration."""
    return _rows(
        con,
        "SELECT request, query_len, kv_len FROM prefill_entries WHERE run = ? AND replica = ? AND iteration = ?"
        f" AND request <> ? ORDER BY query_len DESC, request LIMIT {_LONGEST}",
        [run, replica, iteration, request],
    )


def _check(spans: list[Row], outcome: Row) -> Row:
    """Whether the parts partition the life: they touch, start at the arrival, and sum to E2E to the nanosecond."""
    total = sum(span["end_ns"] - span["start_ns"] for span in spans)
    touching = all(a["end_ns"] == b["start_ns"] for a, b in zip(spans, spans[1:], strict=False))
    starts = not spans or spans[0]["start_ns"] == outcome["arrival_ns"]
    e2e = outcome["e2e_ns"]
    return {
        "sum_of_parts_ns": total,
        "e2e_ns": e2e,
        "difference_ns": None if e2e is None else total - e2e,
        "touching": touching,
        "starts_at_arrival": starts,
        "holds": touching and starts and (e2e is None or total == e2e),
    }

"""Evidence: the numbers a finding rests on, each with its one definition and, where one query yields it, the SQL.

Shares of *queue time* are of the iteration time with a non-empty queue, over all engines. Groups are masks per outcome row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from replay_engine.types import Phase
from tracekit.diagnosis.culprits import waiting
from tracekit.diagnosis.finding import Evidence
from tracekit.diagnosis.parts import FAMILIES
from tracekit.diagnosis.view import View

__all__ = ["SIGNALS", "evidence", "fact", "q_share95", "quarters_s", "slow_share", "stage"]

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Signal = tuple[str, Callable[[View], float], str | None]

_QUEUE = "FROM iterations WHERE run = {run} AND waiting > 0"


def evidence(view: View, name: str, threshold: float | None = None, note: str = "") -> Evidence:
    """A run-wide number of ``SIGNALS``."""
    unit, of, sql = SIGNALS[name]
    return Evidence(metric=name, value=float(of(view)), unit=unit, threshold=threshold, sql=sql, note=note)


def fact(
    metric: str, value: float | None, unit: str, threshold: float | None = None, *, sql: str | None = None, note: str = ""
) -> Evidence:
    """Another number."""
    return Evidence(metric=metric, value=value, unit=unit, threshold=threshold, sql=sql, note=note)


def _over_queue(expression: str) -> str:
    return f"SELECT sum(duration_ns * ({expression})) / sum(duration_ns) {_QUEUE}"


def _block(name: str) -> Signal:
    reasons = ", ".join(f"'{reason.name}'" for reason in FAMILIES[name])
    return ("of queue time", lambda view: view.block[name], _over_queue(f"(head_refused_by::VARCHAR IN ({reasons}))::INT"))


def _kv(quantile: float) -> Signal:
    sql = f"SELECT quantile_cont(kv_used / kv_total, {quantile}) FROM iterations WHERE run = {{run}}"
    return ("of KV", lambda view: float(np.quantile(view.kv, quantile)) if len(view.kv) else 0.0, sql)


def _duration_s(view: View) -> float:
    rows = view.data.outcomes
    return max(int(rows["last_token_ns"].max()) - int(rows["arrival_ns"].min()), 1) / 1e9


def _recompute(view: View) -> float:
    rows = view.data.iterations
    return float(rows["recomputed_tokens"].sum() / max(int(rows["prefill_tokens"].sum()), 1))


def _readmitted(view: View) -> float:
    rows = view.data.tables["preemptions"]
    back = rows[rows["resumed_iteration"] >= 0]
    return float((back["resumed_iteration"] - back["iteration"] <= 3).mean()) if len(back) else 0.0


def _arrivals_cv(view: View) -> float:
    gaps = np.diff(np.sort(view.data.outcomes["arrival_ns"])).astype(np.float64)
    return float(gaps.std() / gaps.mean()) if len(gaps) and gaps.mean() > 0 else 0.0


def _dispersion(view: View) -> float:
    counts = np.bincount((view.data.outcomes["arrival_ns"] - view.data.outcomes["arrival_ns"].min()) // 10**9)
    return float(counts.var() / max(counts.mean(), 1e-9))


def _waits_of_worst(view: View) -> float:
    """Share of the waiting time that belongs to the arrivals of the worst fifth of all seconds."""
    rows = view.data.outcomes
    at = (rows["arrival_ns"] - rows["arrival_ns"].min()) // 10**9
    waits = np.bincount(at, weights=np.maximum(rows["queue_ns"], 0).astype(np.float64))
    return float(np.sort(waits)[::-1][: max(len(waits) // 5, 1)].sum() / max(waits.sum(), 1.0))


def _limit_over_output(view: View) -> float:
    limit = view.data.source.max_tokens
    if limit is None or not (limit > 0).any():
        return float("nan")
    return float(limit.max() / max(np.quantile(view.data.outcomes["output_tokens"], 0.99), 1.0))


def _seats_taken(view: View) -> float:
    rows = view.data.iterations
    seats = np.array([view.data.engine_of(k).max_num_seqs for k in range(int(rows["replica"].max(initial=0)) + 1)])
    return view.share_of_queue(rows["running"] >= seats[np.maximum(rows["replica"], 0)])


def _left_below_align(view: View) -> float:
    refused = view.parts.refused("budget")
    left = view.budget - view.data.iterations["prefill_tokens"] - view.data.iterations["decode_seqs"]
    align = view.data.policy.rules.batching.chunk_align
    return float((left[refused] < align).mean()) if refused.any() else 0.0


def _filled(low: float, high: float) -> Callable[[View], float]:
    return lambda view: float((view.queued & (view.fill > low) & (view.fill <= high)).sum())


def _prefill_runs(view: View) -> float:
    """The longest row of iterations that prefill and decode nobody while a stream with its first token stands still."""
    rows, longest = view.data.iterations, 0.0
    spans = view.data.spans[view.data.spans["phase"] == int(Phase.stalled)]
    for replica, part in view.parts.engines.items():
        own, held = rows[part], spans[spans["replica"] == replica]
        begin = np.searchsorted(own["iteration"], held["start_iteration"], "left")
        end = np.searchsorted(own["iteration"], held["end_iteration"], "right")
        level = np.zeros(len(own) + 1, np.int64)
        np.add.at(level, begin, 1)
        np.add.at(level, end, -1)
        dry = (own["prefill_seqs"] > 0) & (own["decode_seqs"] == 0) & (np.cumsum(level)[:-1] > 0)
        edges = np.flatnonzero(np.diff(np.concatenate(([0], dry, [0]))))
        longest = max(longest, float((edges[1::2] - edges[::2]).max(initial=0)))
    return longest


def _fixed_share(view: View) -> float:
    """Of the iterations with a queue whose budget is full: the share of their time that an empty iteration costs too."""
    rows, latency = view.data.iterations, view.data.profile.latency
    full = view.queued & (view.fill > 0.9)
    fixed = max(latency.floor_ns, latency.a_ns) + latency.h0_ns
    return float(min(fixed * full.sum() / max(float(rows["duration_ns"][full].sum()), 1.0), 1.0))


def _mean_at_server(view: View) -> float:
    rows = view.data.outcomes
    total = float(np.maximum(rows["e2e_ns"], 0).sum()) - float(view.parts.first["dispatch"].sum())
    return total / 1e9 / _duration_s(view)


SIGNALS: dict[str, Signal] = {
    **{f"block[{name}]": _block(name) for name in FAMILIES},
    "fill_w": ("of budget", lambda view: view.share_of_queue(view.fill), _over_queue("(prefill_tokens + decode_seqs) / budget")),
    "kv p50": _kv(0.5),
    "kv p95": _kv(0.95),
    "kv max": _kv(1.0),
    "stall_max": (
        "s",
        lambda view: float(view.data.outcomes["max_gap_ns"].max(initial=0)) / 1e9,
        "SELECT max(max_gap_ns) / 1e9 FROM outcomes WHERE run = {run}",
    ),
    "recompute": (
        "of prefilled tokens",
        _recompute,
        "SELECT sum(recomputed_tokens) / sum(prefill_tokens) FROM iterations WHERE run = {run}",
    ),
    "preempt/req": (
        "per request",
        lambda view: float(view.data.outcomes["preemptions"].mean()),
        "SELECT avg(preemptions) FROM outcomes WHERE run = {run}",
    ),
    "preempt_max": (
        "of one request",
        lambda view: float(view.data.outcomes["preemptions"].max(initial=0)),
        "SELECT max(preemptions) FROM outcomes WHERE run = {run}",
    ),
    "victims_max": (
        "in one iteration",
        lambda view: float(view.data.iterations["preempted"].max(initial=0)),
        "SELECT max(preempted) FROM iterations WHERE run = {run}",
    ),
    "readmitted at once": (
        "of preemptions",
        _readmitted,
        "SELECT avg((resumed_iteration - iteration <= 3)::INT) FROM preemptions WHERE run = {run}"
        " AND resumed_iteration IS NOT NULL",
    ),
    "running max": (
        "sequences",
        lambda view: float(view.data.iterations["running"].max(initial=0)),
        "SELECT max(running) FROM iterations WHERE run = {run}",
    ),
    "waiting max": (
        "requests",
        lambda view: float(view.data.iterations["waiting"].max(initial=0)),
        "SELECT max(waiting) FROM iterations WHERE run = {run}",
    ),
    "seats taken": ("of queue time", _seats_taken, None),
    "served": (
        "tok/s",
        lambda view: float(view.data.outcomes["output_tokens"].sum()) / _duration_s(view),
        "SELECT sum(output_tokens) / ((max(last_token_ns) - min(arrival_ns)) / 1e9) FROM outcomes WHERE run = {run}",
    ),
    "prefill rate": ("tok/s", lambda view: float(view.data.iterations["prefill_tokens"].sum()) / _duration_s(view), None),
    "arrivals cv": ("", _arrivals_cv, None),
    "dispersion": ("variance/mean of 1 s counts", _dispersion, None),
    "waits of worst fifth": ("of waiting time", _waits_of_worst, None),
    "dispatch": ("of TTFT", lambda view: stage(view, "dispatch"), None),
    "max_tokens / output p99": ("x", _limit_over_output, None),
    "left below align": ("of refusals", _left_below_align, None),
    "decode only": (
        "of queue time",
        lambda view: view.share_of_queue(view.data.iterations["prefill_tokens"] == 0),
        _over_queue("(prefill_tokens = 0)::INT"),
    ),
    "iterations full": (
        "iterations",
        _filled(0.9, 1.0),
        f"SELECT count(*) {_QUEUE} AND (prefill_tokens + decode_seqs) / budget > 0.9",
    ),
    "iterations half full": (
        "iterations",
        _filled(0.4, 0.6),
        f"SELECT count(*) {_QUEUE} AND (prefill_tokens + decode_seqs) / budget > 0.4"
        " AND (prefill_tokens + decode_seqs) / budget <= 0.6",
    ),
    "prefill runs": ("iterations", _prefill_runs, None),
    "fixed share": ("of full iterations", _fixed_share, None),
    "at the server": ("requests", _mean_at_server, None),
}


def q_share95(view: View, of: Bools, threshold: float | None = None, whose: str = "") -> Evidence:
    """Over the slowest 5 % of a group by time to first token: time until first scheduled / time until the first token."""
    rows = view.data.outcomes[view.slowest(of)]
    value = float(rows["queue_ns"].sum() / max(float(rows["ttft_ns"].sum()), 1.0))
    sql = (
        None
        if whose
        else (
            "WITH r AS (SELECT queue_ns, ttft_ns, row_number() OVER (ORDER BY ttft_ns DESC) AS place, count(*) OVER"
            " () AS n FROM outcomes"
            " WHERE run = {run} AND ttft_ns IS NOT NULL) SELECT sum(queue_ns) / sum(ttft_ns) FROM r WHERE place <="
            " greatest(round(n * 0.05), 1)"
        )
    )
    return Evidence(metric="q_share95", value=value, unit="of TTFT", threshold=threshold, sql=sql, note=whose)


def stage(view: View, *families: str) -> float:
    """A part of the mean time to the first token, by ``parts.KINDS``."""
    part = sum(float(view.parts.first[name].sum()) for name in families)
    return part / max(float(np.maximum(view.data.outcomes["ttft_ns"], 0).sum()), 1.0)


def slow_share(view: View, of: Bools, during: Bools) -> float:
    """Of the waiting time of a group's slowest 5 %, the share that falls into some iterations."""
    slow = np.zeros(len(view.data.outcomes), np.bool_)
    slow[view.slowest(of)] = True
    lost = waiting(view.parts.blame, slow)
    return float(lost.per_iteration[during].sum()) / max(lost.total_ns, 1)


def quarters_s(view: View) -> list[float]:
    """Mean time to the first token of the arrivals of each quarter of the arrival window, s."""
    rows = view.data.outcomes[view.data.outcomes["ttft_ns"] >= 0]
    at = rows["arrival_ns"]
    edges = np.linspace(int(at.min(initial=0)), int(at.max(initial=0)) + 1, 5)
    found = []
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        inside = rows["ttft_ns"][(at >= low) & (at < high)]
        found.append(float(inside.mean()) / 1e9 if len(inside) else 0.0)
    return found

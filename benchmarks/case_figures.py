"""The figures that cases state, measured on a replay: ``figure`` over all requests, ``figure.class`` over one class of them.

*Block* figures: share of the iteration time with a queue in which its head was refused for the reason; the engine's reasons stand
for budget, seats and KV as in ``BLOCKS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import numpy.typing as npt

from benchmarks.case_pool_figures import (
    busy,
    hit,
    hit_ideal,
    phase_mean,
    phase_share,
    queued_beside_idle,
    replicas_per_prefix,
)
from benchmarks.case_runs import CaseRun
from replay_engine.types import Phase, Refusal

__all__ = ["FIGURES", "Figure", "measured"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
BLOCKS = {
    "budget": (Refusal.token_budget, Refusal.no_chunking, Refusal.prefill_limit),
    "seats": (Refusal.max_num_seqs, Refusal.reserved_seqs),
    "kv": (Refusal.kv_free, Refusal.kv_full_isl, Refusal.kv_watermark, Refusal.kv_output_reserve, Refusal.reserved_blocks),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """``near``: how near is near enough; ``median`` and ``mean`` 30 %, ``tail`` and ``count`` a factor of 2, ``share`` 0.1."""

    unit: str
    near: str
    of: Callable[[CaseRun, str | None], float]


def measured(run: CaseRun, name: str) -> float:
    """A figure by its name. Errors: ``KeyError`` for one that is not known."""
    figure, _, cls = name.partition(".")
    return float(FIGURES[figure].of(run, cls or None))


def _seconds(column: str, quantile: float, scale: float = 1e9) -> Callable[[CaseRun, str | None], float]:
    def of(run: CaseRun, cls: str | None) -> float:
        values = run.outcomes[column][run.of_class(cls)].astype(np.float64)
        return float(np.quantile(values[np.isfinite(values)], quantile)) / scale

    return of


def _ttft_s(run: CaseRun) -> Floats:
    return run.outcomes["ttft_ns"].astype(np.float64) / 1e9


def _server_ttft(quantile: float) -> Callable[[CaseRun, str | None], float]:
    return lambda run, _: float(np.quantile(_ttft_s(run) - run.seconds_in(Phase.dispatch), quantile))


def _duration_s(run: CaseRun) -> float:
    return (int(run.outcomes["last_token_ns"].max()) - int(run.outcomes["arrival_ns"].min())) / 1e9


def _served(run: CaseRun, _: str | None) -> float:
    return float(run.outcomes["output_tokens"].sum()) / _duration_s(run)


def _slowest(run: CaseRun, cls: str | None, share: float = 0.05) -> npt.NDArray[np.intp]:
    """The slowest requests of a class by TTFT."""
    of = np.flatnonzero(run.of_class(cls))
    order = of[np.argsort(run.outcomes["ttft_ns"][of])]
    return order[-max(round(len(of) * share), 1) :]


def _q_share95(run: CaseRun, cls: str | None) -> float:
    slow = run.outcomes[_slowest(run, cls)]
    return float(slow["queue_ns"].sum() / slow["ttft_ns"].sum())


def _queued(run: CaseRun) -> Bools:
    return np.asarray(run.iterations["waiting"] > 0)


def _time(run: CaseRun, of: Bools) -> float:
    """Iteration time of a part of the iterations, s."""
    return float(run.iterations["duration_ns"][of].sum()) / 1e9


def _block(limit: str) -> Callable[[CaseRun, str | None], float]:
    codes = [int(reason) for reason in BLOCKS[limit]]

    def of(run: CaseRun, _: str | None) -> float:
        queued = _queued(run)
        return _time(run, queued & np.isin(run.iterations["head_refused_by"], codes)) / max(_time(run, queued), 1e-9)

    return of


def _fill(run: CaseRun) -> Floats:
    tokens = run.iterations["prefill_tokens"].astype(np.float64) + run.iterations["decode_seqs"]
    return np.asarray(tokens / run.totals.token_budget)


def _fill_w(run: CaseRun, _: str | None) -> float:
    queued = _queued(run)
    return float(np.average(_fill(run)[queued], weights=run.iterations["duration_ns"][queued]))


def _iterations_filled(low: float, high: float) -> Callable[[CaseRun, str | None], float]:
    return lambda run, _: float(((_fill(run) > low) & (_fill(run) <= high)).sum())


def _kv(quantile: float) -> Callable[[CaseRun, str | None], float]:
    return lambda run, _: float(np.quantile(run.iterations["kv_used"], quantile)) / run.totals.kv_total


def _gap(quantile: float) -> Callable[[CaseRun, str | None], float]:
    return lambda run, _: float(np.quantile(run.token_gaps_s, quantile)) * 1e3


def _stall_max(run: CaseRun, _: str | None) -> float:
    return float(run.outcomes["max_gap_ns"].max()) / 1e9


def _preempt_mean(run: CaseRun, _: str | None) -> float:
    return run.totals.preemptions / len(run.outcomes)


def _recompute(run: CaseRun, _: str | None) -> float:
    return run.totals.recomputed_tokens / run.totals.prefill_tokens


def _over_20s(run: CaseRun, cls: str | None) -> float:
    return float((_ttft_s(run)[run.of_class(cls)] > 20).sum())


def _prefill_spells(run: CaseRun, cls: str | None) -> npt.NDArray[np.int64]:
    """From first scheduled to first token of every request of a class, overlapping ones joined: rows of begin and end, ns."""
    rows = run.outcomes[run.of_class(cls)]
    spells: list[list[int]] = []
    for begin, end in sorted(zip((rows["arrival_ns"] + rows["queue_ns"]).tolist(),
                                 (rows["arrival_ns"] + rows["ttft_ns"]).tolist(), strict=True)):  # fmt: skip
        if spells and begin <= spells[-1][1]:
            spells[-1][1] = max(spells[-1][1], end)
        else:
            spells.append([begin, end])
    return np.array(spells, np.int64)


def _slow_waits_in(run: CaseRun, cls: str | None) -> float:
    """Share of the waiting time of the slowest others that falls inside the prefills of a class."""
    others = np.flatnonzero(~run.of_class(cls))
    slow = others[np.argsort(run.outcomes["ttft_ns"][others])][-max(round(len(others) * 0.05), 1) :]
    begin = run.outcomes["arrival_ns"][slow]
    end = begin + run.outcomes["queue_ns"][slow]
    inside = sum(np.clip(np.minimum(end, last) - np.maximum(begin, first), 0, None).sum()
                 for first, last in _prefill_spells(run, cls))  # fmt: skip
    return float(inside) / float((end - begin).sum())


def _prefill_time(run: CaseRun, cls: str | None) -> float:
    spells = _prefill_spells(run, cls)
    return float((spells[:, 1] - spells[:, 0]).sum()) / 1e9 / _duration_s(run)


def _queue_time(run: CaseRun, _: str | None) -> float:
    return _time(run, _queued(run)) / _duration_s(run)


def _prefill_runs(run: CaseRun, _: str | None) -> float:
    """The longest row of iterations that prefill and decode nobody while a sequence that has its first token runs."""
    rows = run.iterations
    first = rows["iteration"][0]
    stalled = np.zeros(len(rows) + 1, np.int64)
    held = run.spans[run.spans["phase"] == int(Phase.stalled)]
    np.add.at(stalled, held["start_iteration"] - first, 1)
    np.add.at(stalled, held["end_iteration"] - first + 1, -1)
    dry = (rows["prefill_seqs"] > 0) & (rows["decode_seqs"] == 0) & (np.cumsum(stalled)[:-1] > 0)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], dry, [0]))))
    return float((edges[1::2] - edges[::2]).max(initial=0))


def _inverted(run: CaseRun, cls: str | None) -> float:
    """Share of a class's waiting time in which all seats are taken and a less urgent request holds one."""
    assert run.source.priority is not None
    urgent = run.of_class(cls)
    level = run.source.priority[urgent].max()
    starts, duration = run.iterations["start_ns"], run.iterations["duration_ns"]
    ends = starts + duration
    admitted = run.outcomes["arrival_ns"] + run.outcomes["queue_ns"]
    lower = run.source.priority > level
    there = np.searchsorted(np.sort(admitted[lower]), starts, "right") - np.searchsorted(
        np.sort(run.outcomes["last_token_ns"][lower]), starts, "right"
    )
    bad = (run.iterations["running"] >= run.policy.scheduler.max_num_seqs) & (there > 0)
    waited = inside = 0.0
    for begin, end in zip(run.outcomes["arrival_ns"][urgent], admitted[urgent], strict=True):
        shared = np.clip(np.minimum(ends, end) - np.maximum(starts, begin), 0, None)
        waited += float(shared.sum())
        inside += float(shared[bad].sum())
    return inside / max(waited, 1.0)


def _left_below_align(run: CaseRun, _: str | None) -> float:
    """Share of the iterations whose head was refused for budget that had less of it left than a chunk is aligned to."""
    rows = run.iterations
    refused = np.isin(rows["head_refused_by"], [int(reason) for reason in BLOCKS["budget"]])
    left = run.totals.token_budget - rows["prefill_tokens"] - rows["decode_seqs"]
    return float((left[refused] < run.policy.rules.batching.chunk_align).mean())


def _decode_only_queued(run: CaseRun, _: str | None) -> float:
    queued = _queued(run)
    return _time(run, queued & (run.iterations["prefill_tokens"] == 0)) / _time(run, queued)


def _limit_over_output(run: CaseRun, _: str | None) -> float:
    assert run.source.max_tokens is not None
    return float(run.source.max_tokens.max() / np.quantile(run.outcomes["output_tokens"], 0.99))


def _little(run: CaseRun, _: str | None) -> float:
    """Rate of the requests x their mean time at the server."""
    at_server = run.outcomes["e2e_ns"] / 1e9 - run.seconds_in(Phase.dispatch)
    return float(at_server.sum()) / _duration_s(run)


def _dispatch_share(run: CaseRun, _: str | None) -> float:
    return float(run.seconds_in(Phase.dispatch).sum() / _ttft_s(run).sum())


def _arrivals_cv(run: CaseRun, _: str | None) -> float:
    gaps = np.diff(np.sort(run.outcomes["arrival_ns"])).astype(np.float64)
    return float(gaps.std() / gaps.mean())


def _count_dispersion(run: CaseRun, _: str | None) -> float:
    counts = np.bincount(run.outcomes["arrival_ns"] // 10**9)
    return float(counts.var() / counts.mean())


def _waits_of_worst(run: CaseRun, _: str | None) -> float:
    """Share of the waiting time that belongs to the arrivals of the worst fifth of all seconds."""
    waits = np.bincount(run.outcomes["arrival_ns"] // 10**9, weights=run.outcomes["queue_ns"].astype(np.float64))
    return float(np.sort(waits)[::-1][: len(waits) // 5].sum() / waits.sum())


def _seats_taken(run: CaseRun, _: str | None) -> float:
    queued = _queued(run)
    return _time(run, queued & (run.iterations["running"] >= run.policy.scheduler.max_num_seqs)) / _time(run, queued)


def _slope(quarter: int) -> Callable[[CaseRun, str | None], float]:
    def of(run: CaseRun, _: str | None) -> float:
        edges = np.linspace(0, int(run.outcomes["arrival_ns"].max()) + 1, 5)
        at = run.outcomes["arrival_ns"]
        return float(_ttft_s(run)[(at >= edges[quarter - 1]) & (at < edges[quarter])].mean())

    return of


def _prefill_rate(run: CaseRun, _: str | None) -> float:
    return float(run.outcomes["prompt_tokens"].sum()) / _duration_s(run)


FIGURES: dict[str, Figure] = {
    "ttft_p50": Figure(unit="s", near="median", of=_seconds("ttft_ns", 0.5)),
    "ttft_p95": Figure(unit="s", near="tail", of=_seconds("ttft_ns", 0.95)),
    "ttft_p99": Figure(unit="s", near="tail", of=_seconds("ttft_ns", 0.99)),
    "server_ttft_p50": Figure(unit="s", near="median", of=_server_ttft(0.5)),
    "server_ttft_p99": Figure(unit="s", near="tail", of=_server_ttft(0.99)),
    "tpot_p50_ms": Figure(unit="ms", near="median", of=_seconds("tpot_ns", 0.5, 1e6)),
    "tpot_p99_ms": Figure(unit="ms", near="tail", of=_seconds("tpot_ns", 0.99, 1e6)),
    "gap_p50_ms": Figure(unit="ms", near="median", of=_gap(0.5)),
    "gap_p99_ms": Figure(unit="ms", near="tail", of=_gap(0.99)),
    "stall_max": Figure(unit="s", near="tail", of=_stall_max),
    "served": Figure(unit="tok/s", near="mean", of=_served),
    "prefill_rate": Figure(unit="tok/s", near="mean", of=_prefill_rate),
    "preempt": Figure(unit="per request", near="mean", of=_preempt_mean),
    "preempt_max": Figure(unit="of one request", near="tail", of=lambda run, _: float(run.outcomes["preemptions"].max())),
    "preemptions": Figure(unit="times", near="count", of=lambda run, _: run.totals.preemptions),
    "victims_max": Figure(unit="per iteration", near="count", of=lambda run, _: float(run.iterations["preempted"].max())),
    "recompute": Figure(unit="of prefilled tokens", near="share", of=_recompute),
    "over_20s": Figure(unit="requests", near="count", of=_over_20s),
    "running_max": Figure(unit="sequences", near="median", of=lambda run, _: run.totals.running_max),
    "kv_p50": Figure(unit="of KV", near="share", of=_kv(0.5)),
    "kv_p95": Figure(unit="of KV", near="share", of=_kv(0.95)),
    "kv_max": Figure(unit="of KV", near="share", of=_kv(1.0)),
    "block_budget": Figure(unit="of queue time", near="share", of=_block("budget")),
    "block_seats": Figure(unit="of queue time", near="share", of=_block("seats")),
    "block_kv": Figure(unit="of queue time", near="share", of=_block("kv")),
    "seats_taken": Figure(unit="of queue time", near="share", of=_seats_taken),
    "fill_w": Figure(unit="of budget", near="share", of=_fill_w),
    "full_iterations": Figure(unit="iterations", near="count", of=_iterations_filled(0.9, 1.0)),
    "half_iterations": Figure(unit="iterations", near="count", of=_iterations_filled(0.4, 0.6)),
    "queue_time": Figure(unit="of the run", near="share", of=_queue_time),
    "q_share95": Figure(unit="of TTFT", near="share", of=_q_share95),
    "slow_waits_in": Figure(unit="of waiting time", near="share", of=_slow_waits_in),
    "prefill_time": Figure(unit="of the run", near="share", of=_prefill_time),
    "prefill_runs": Figure(unit="iterations", near="tail", of=_prefill_runs),
    "inverted": Figure(unit="of waiting time", near="share", of=_inverted),
    "left_below_align": Figure(unit="of refusals", near="share", of=_left_below_align),
    "decode_only_queued": Figure(unit="of queue time", near="share", of=_decode_only_queued),
    "limit_over_output": Figure(unit="x", near="mean", of=_limit_over_output),
    "little": Figure(unit="in flight", near="mean", of=_little),
    "dispatch_share": Figure(unit="of TTFT", near="share", of=_dispatch_share),
    "arrivals_cv": Figure(unit="", near="mean", of=_arrivals_cv),
    "count_dispersion": Figure(unit="variance/mean", near="mean", of=_count_dispersion),
    "waits_of_worst": Figure(unit="of waiting time", near="share", of=_waits_of_worst),
    "hit": Figure(unit="of prompt tokens", near="share", of=hit),
    "hit_ideal": Figure(unit="of prompt tokens", near="share", of=hit_ideal),
    "replicas_per_prefix": Figure(unit="replicas", near="median", of=replicas_per_prefix),
    "p_queue_mean": Figure(unit="s", near="mean", of=phase_mean(Phase.queued)),
    "p_queue_share": Figure(unit="of TTFT", near="share", of=phase_share(Phase.queued)),
    "transfer_wait_mean": Figure(unit="s", near="mean", of=phase_mean(Phase.transfer_wait)),
    "transfer_wait_share": Figure(unit="of TTFT", near="share", of=phase_share(Phase.transfer_wait)),
    "transfer_mean": Figure(unit="s", near="mean", of=phase_mean(Phase.transfer)),
    "transfer_share": Figure(unit="of TTFT", near="share", of=phase_share(Phase.transfer)),
    "d_queue_mean": Figure(unit="s", near="mean", of=phase_mean(Phase.decode_queue)),
    "p_busy_first": Figure(unit="of the run", near="share", of=busy("prefill", max)),
    "p_busy_mean": Figure(unit="of the run", near="share", of=busy("prefill", fmean)),
    "d_busy_mean": Figure(unit="of the run", near="share", of=busy("decode", fmean)),
    "queued_beside_idle": Figure(unit="of queued time", near="share", of=queued_beside_idle),
    **{f"slope_q{quarter}": Figure(unit="s", near="mean", of=_slope(quarter)) for quarter in (1, 2, 3, 4)},
}  # fmt: skip

"""Whether logged times are whole iterations or only what was still to be waited for.

Under asynchronous scheduling vLLM makes plan n+1 while iteration n runs, and what it logs as elapsed is the wait that is left
after that. A log proves one or the other by what it says, by waits too short for any pass, or by its own clock: where the logged
times fill the seconds in which they were logged, nothing is missing from them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.calibration.vllm_header import LogFacts

__all__ = ["Judgement", "judge", "per_iteration_gap_ns"]

SHORTEST_MS = 0.1
"""No pass of a served model over its layers is shorter."""
FEW = 0.005
"""Share of such rows that corrupt lines alone do not reach."""
FULL = 0.97
"""Share of the clock's seconds beyond which logged times leave nothing out."""
BUSY = 0.5
TOGETHER = 10
"""Seconds of the clock that are looked at together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """``whole``: the times are whole iterations. ``why`` in words. ``short``: share of waits that are too short for a pass.
    ``gap_ns``: what the log's clock counts for an iteration beyond the logged time; ``None``: no clock, or never busy."""

    whole: bool
    why: str
    short: float
    gap_ns: float | None


def judge(
    elapsed_ms: npt.NDArray[np.float64], engine: npt.NDArray[np.int32], second: npt.NDArray[np.int64], facts: LogFacts,
    lost: float = 0.0,
) -> Judgement:  # fmt: skip
    """Whole or residual. What is not proved whole is not taken for it: asynchronous scheduling is vLLM's default. ``lost``: the
    share of iterations whose lines could not be read, which took their time of the clock too."""
    short = float((elapsed_ms < SHORTEST_MS).mean()) if len(elapsed_ms) else 0.0
    filled_s, count, stretch = _busy_seconds(elapsed_ms, engine, second)
    busy = (filled_s / (1 - lost), count / (1 - lost), stretch)
    gap, filled = per_iteration_gap_ns(busy), float(np.median(busy[0])) if len(busy[0]) else 0.0
    if short > FEW:
        why = f"{short:.1%} took less than {SHORTEST_MS} ms, which no pass does: only the rest of the wait is logged"
        return Judgement(whole=False, why=why, short=short, gap_ns=gap)
    if facts.asynchronous is not None:
        word = (
            "asynchronous scheduling, so only the rest of the wait is logged" if facts.asynchronous else "synchronous scheduling"
        )
        return Judgement(whole=not facts.asynchronous, why=f"{facts.said}: {word}", short=short, gap_ns=gap)
    if filled >= FULL:
        why = f"the logged times fill {filled:.0%} of the seconds of the log's own clock"
        return Judgement(whole=True, why=why, short=short, gap_ns=gap)
    why = (
        "nothing says that scheduling was synchronous, and asynchronous is the default; if it was,"
        " --set async_scheduling=false or the start of the log says so"
    )
    return Judgement(whole=False, why=why, short=short, gap_ns=gap)


Busy = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.int64]]


def _busy_seconds(elapsed_ms: npt.NDArray[np.float64], engine: npt.NDArray[np.int32], second: npt.NDArray[np.int64]) -> Busy:
    """Of the seconds between others that an engine was mostly busy in: the share that is logged, the iterations, and the stretch
    of ``TOGETHER`` seconds that each belongs to."""
    known = second >= 0
    if not known.any():
        return np.zeros(0), np.zeros(0), np.zeros(0, np.int64)
    wide = (int(second.max()) // TOGETHER + 2) * TOGETHER
    keys, at = np.unique((engine[known].astype(np.int64) + 1) * wide + second[known], return_inverse=True)
    total = np.bincount(at, weights=elapsed_ms[known]) / 1e3
    count = np.bincount(at).astype(np.float64)
    inside = np.zeros(len(keys), np.bool_)
    inside[1:-1] = (np.diff(keys)[1:] == 1) & (np.diff(keys)[:-1] == 1)
    chosen = inside & (total >= BUSY)
    return total[chosen], count[chosen], keys[chosen] // TOGETHER


def per_iteration_gap_ns(busy: Busy) -> float | None:
    """ns of the clock that an iteration takes beyond its logged time: the median over the fuller half of the busy stretches, in
    which an engine hardly waited for requests. Stretches, not seconds: where a second cuts an iteration makes one second
    fuller than the next, and the fuller ones of such would miss a fifth of the gap."""
    filled, count, stretch = busy
    if len(filled) < 3:
        return None
    _, at = np.unique(stretch, return_inverse=True)
    seconds = np.bincount(at).astype(np.float64)
    long = seconds >= TOGETHER / 2
    use = long if np.count_nonzero(long) > 1 else seconds > 0
    left, steps = seconds - np.bincount(at, weights=filled), np.bincount(at, weights=count)
    empty = (left / seconds)[use]
    fuller = empty <= np.median(empty)
    return max(0.0, float(np.median((left[use] / steps[use])[fuller]))) * 1e9

"""The timeline's numbers as a table: the drawn buckets put together to as many rows as people read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dashboards.buckets import Buckets
from dashboards.figures import Drawn
from dashboards.words import MISSING, count, number, seconds

__all__ = ["HEAD", "ROWS", "timeline_rows"]

ROWS = 30
HEAD = (
    "From, s", "Iterations", "Decode, tokens", "Prefill", "Recomputed", "Running", "Waiting", "Oldest wait", "Refused by",
    "KV used", "Cached", "Preempted", "Iteration, mean", "Expected", "Longest",
)  # fmt: skip


def timeline_rows(buckets: Buckets, drawn: Drawn) -> list[list[Any]]:
    """At most ``ROWS`` stretches of the window. Tokens and KV are means over busy time, requests over all time, as drawn; an
    iteration that reaches over an edge counts on both sides."""
    firsts = np.unique(np.linspace(0, len(buckets.busy_ns), ROWS + 1).astype(int)[:-1])
    widths = np.diff(buckets.edges_ns).astype(np.float64)

    def mean(name: str, weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
        total = np.add.reduceat(weights.astype(np.float64), firsts)
        return np.add.reduceat(buckets.mean[name] * weights, firsts) / np.where(total > 0, total, 1.0)

    tokens = [mean(name, buckets.busy_ns) for name in ("decode", "prefill", "recomputed")]
    levels = [mean(name, widths) for name in ("running", "waiting")]
    blocks = [mean(name, buckets.busy_ns) for name in ("kv_used", "kv_cached")]
    times = [mean(name, buckets.iterations) for name in ("duration_ns", "expected_ns") if name in buckets.mean]
    longest = np.maximum.reduceat(buckets.peak["duration_ns"], firsts)
    counts, lost = (np.add.reduceat(each, firsts) for each in (buckets.iterations, buckets.preempted))
    oldest = None if drawn.oldest_ns is None else np.maximum.reduceat(drawn.oldest_ns, firsts)
    refused = _refused(buckets, drawn, firsts, widths)
    return [
        [
            f"{buckets.edges_ns[first] / 1e9:,.3f}", count(counts[k]), *(number(round(float(each[k]), 1)) for each in tokens),
            *(number(round(float(each[k]), 1)) for each in levels), MISSING if oldest is None else seconds(oldest[k] / 1e9),
            refused[k], *(count(each[k]) for each in blocks), count(lost[k]),
            seconds(times[0][k] / 1e9), seconds(times[1][k] / 1e9) if len(times) > 1 else MISSING, seconds(longest[k] / 1e9),
        ]
        for k, first in enumerate(firsts)
    ]  # fmt: skip


def _refused(buckets: Buckets, drawn: Drawn, firsts: npt.NDArray[Any], widths: npt.NDArray[np.float64]) -> list[str]:
    """What refused the head while most waited, by stretch."""
    codes = sorted(code for code in buckets.queue if code)
    if not codes:
        return [MISSING] * len(firsts)
    waited = np.stack([np.add.reduceat(buckets.queue[code] * widths, firsts) for code in codes])
    names = [drawn.reasons[code] if code < len(drawn.reasons) else f"reason {code}" for code in codes]
    return [names[int(row.argmax())] if row.max() > 0 else MISSING for row in waited.T]

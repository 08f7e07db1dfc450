"""Representative windows of a trace: its busiest, its most bursty and its most typical stretch, for later commands to replay.

Candidates begin at multiples of a quarter of the length; windows do not overlap; the same trace gives the same windows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tracekit.traces.tally import SECOND, Seconds

__all__ = ["Window", "representative_windows", "window_length_s"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Kind = Literal["busy", "bursty", "typical"]
MIN_REQUESTS = 20
SHORTEST_S, LONGEST_S = 60, 1800
WANTED_REQUESTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """``begin_ns`` to ``end_ns`` (excluded) from trace start, whole seconds; what is in it, and why it was taken."""

    kind: Kind
    begin_ns: int
    end_ns: int
    requests: int
    input_tokens: int
    output_tokens: int
    rate_per_s: float
    dispersion_1s: float
    why: str

    def option(self) -> str:
        """As ``--window`` takes it."""
        return f"{self.begin_ns // SECOND}s:{self.end_ns // SECOND}s"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "option": self.option()}


def window_length_s(span_ns: int, requests: int) -> int:
    """Seconds in which about a thousand requests come, a minute to half an hour, a fifth of the trace at most; in fours."""
    span = span_ns / SECOND
    length = min(max(WANTED_REQUESTS * span / max(requests, 1), SHORTEST_S), LONGEST_S, span / 5)
    return max(int(length) // 4 * 4, 4)


def representative_windows(seconds: Seconds, span_ns: int, length_s: int | None = None, origin_ns: int = 0) -> list[Window]:
    """Up to one window of each kind, in the order busy, bursty, typical; none where the trace is too short for one.

    ``busy``: most tokens. ``bursty``: largest variance / mean of the counts per second. ``typical``: nearest to the medians of
    rate, lengths and dispersion over all windows. Those with fewer than 20 requests are left out. ``origin_ns`` is the time
    of second 0 from trace start.
    """
    length = length_s or window_length_s(span_ns, int(seconds.requests.sum()))
    table = _candidates(seconds, span_ns, length)
    if table is None:
        return []
    begin, n, given, made, dispersion = table
    orders: list[tuple[Kind, Floats, str]] = [
        ("busy", (given + made).astype(float), "the most tokens"),
        ("bursty", dispersion, "the largest variance / mean of the arrivals a second"),
        ("typical", -_distance(n, given, made, dispersion), "nearest to the medians of rate, lengths and dispersion"),
    ]
    taken: list[Window] = []
    free = n >= MIN_REQUESTS
    for kind, score, why in orders:
        if not free.any():
            break
        best = int(np.argmax(np.where(free, score, -np.inf)))
        free &= (begin + length <= begin[best]) | (begin >= begin[best] + length)
        taken.append(Window(
            kind=kind, begin_ns=int(begin[best]) * SECOND + origin_ns, end_ns=int(begin[best] + length) * SECOND + origin_ns,
            requests=int(n[best]), input_tokens=int(given[best]), output_tokens=int(made[best]),
            rate_per_s=float(n[best]) / length, dispersion_1s=float(dispersion[best]), why=why,
        ))  # fmt: skip
    return taken


def _candidates(seconds: Seconds, span_ns: int, length: int) -> tuple[Ints, Ints, Ints, Ints, Floats] | None:
    """Begin (s), requests, input and output tokens, dispersion of every candidate that lies within the trace."""
    step = max(length // 4, 1)
    count = (span_ns // SECOND - length) // step + 1
    if count < 1 or not len(seconds.second):
        return None
    # only where something happens: a trace of sparse days has few candidates worth a look
    near = np.unique((seconds.second // step)[:, None] - np.arange(4)[None, :])
    begin = near[(near >= 0) & (near < count)] * step
    low, high = np.searchsorted(seconds.second, begin), np.searchsorted(seconds.second, begin + length)

    def total(values: Ints) -> Ints:
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
        return np.asarray(sums[high] - sums[low], np.int64)

    n = total(seconds.requests)
    mean = np.maximum(n / length, 1e-12)
    dispersion = (total(np.square(seconds.requests)) / length - mean * mean) / mean
    return begin, n, total(seconds.input_tokens), total(seconds.output_tokens), dispersion


def _distance(n: Ints, given: Ints, made: Ints, dispersion: Floats) -> Floats:
    """Sum of the distances to the medians, each in units of its quartiles' distance."""
    enough = n >= MIN_REQUESTS
    features = (n.astype(float), given / np.maximum(n, 1), made / np.maximum(n, 1), dispersion)
    out = np.zeros(len(n))
    for values in features:
        known = values[enough] if enough.any() else values
        low, middle, high = np.percentile(known, [25, 50, 75])
        out += np.abs(values - middle) / max(high - low, 1e-9 + abs(middle) * 1e-3)
    return out

"""From iterations to what a screen can show: at most a pixel column's worth of buckets, extremes kept.

A bucket has every iteration that overlaps it, with the part of its time that lies inside. Running and waiting are means
over the bucket's time, in which idle time counts as nothing; batch and KV are means over its busy time, durations over its
iterations. Beside each stands the extreme, so that one bad iteration among a million is still seen. Where a window has no
more iterations than buckets, a bucket is one iteration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dashboards.columns import Frame

__all__ = ["BUCKETS", "Against", "Buckets", "downsample", "span_ns"]

BUCKETS = 1200
"""Most buckets in a figure: more than the pixels of a laptop's plot."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_LEVELS = {"running": "time", "waiting": "time", "kv_used": "busy", "kv_cached": "busy"}


class Against(NamedTuple):
    """All iterations of a window: what they took and what was expected, ns, and the one (number, ns beyond) furthest off."""

    took_ns: int
    expected_ns: int
    furthest: int
    off_ns: int


@dataclass(slots=True, kw_only=True)
class Buckets:
    """``n`` buckets; arrays have shape ``(n,)`` but ``edges_ns``, which has ``n + 1``."""

    edges_ns: Ints
    """Where buckets begin, and where the last one ends, on the engine clock."""
    iterations: Ints
    """Iterations that overlap the bucket; one that overlaps two counts in both."""
    covered: int
    """Iterations in the whole window."""
    exact: bool
    """Whether every bucket is one iteration, or idle."""
    busy_ns: Floats
    mean: dict[str, Floats] = field(default_factory=dict)
    """``running``, ``waiting`` over time; ``decode``, ``prefill``, ``recomputed`` (tokens), ``kv_used``, ``kv_cached`` (blocks)
    over busy time, as ``others`` (running requests that decode nothing); ``duration_ns``, ``expected_ns``, ``prefill_ns`` and
    ``recomputed_ns`` (parts of it) over iterations. 0 where idle."""
    low: dict[str, Ints] = field(default_factory=dict)
    """Least of an iteration in the bucket: ``duration_ns``; 0 where idle."""
    peak: dict[str, Ints] = field(default_factory=dict)
    """Most of an iteration in the bucket, 0 where idle: ``batch`` (tokens), ``duration_ns``, ``running``, ``waiting``,
    ``kv_used``."""
    worst: dict[str, Ints] = field(default_factory=dict)
    """Number of the iteration that has the peak: of ``batch`` and ``duration_ns``; -1 where idle."""
    preempted: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """Preemptions in iterations that start in the bucket."""
    queue: dict[int, Floats] = field(default_factory=dict)
    """Mean waiting requests by what refused the head of the queue (code); they sum to ``mean["waiting"]``."""
    against: Against | None = None
    """Durations against what the profile expects; ``None`` where it says nothing."""


def span_ns(frame: Frame) -> tuple[int, int]:
    """Start of the first iteration and end of the last, ns; ``(0, 0)`` where there is none."""
    start, duration = frame["start_ns"], frame["duration_ns"]
    return (int(start[0]), int(start[-1] + duration[-1])) if len(start) else (0, 0)


class _Cut:
    """A window's iterations, and which of them each bucket has: ``first[k]`` up to, not including, ``past[k]``."""

    def __init__(self, frame: Frame, begin_ns: int, end_ns: int, buckets: int) -> None:
        start = frame["start_ns"]
        low = int(np.searchsorted(start, begin_ns, "right")) - 1
        low = max(low, 0)
        high = int(np.searchsorted(start, end_ns, "left"))
        if low < high and start[low] + max(int(frame["duration_ns"][low]), 1) <= begin_ns:
            low += 1
        self.frame = {name: column[low:high] for name, column in frame.items()}
        self.start: Ints = self.frame["start_ns"]
        self.length: Ints = np.maximum(self.frame["duration_ns"], 1)
        self.end: Ints = self.start + self.length
        self.count = len(self.start)
        self.exact = self.count <= buckets
        self.edges = self._edges(begin_ns, end_ns, buckets)
        low_edge, high_edge = self.edges[:-1], self.edges[1:]
        self.first = np.searchsorted(self.end, low_edge, "right")
        self.past = np.searchsorted(self.start, high_edge, "left")
        self.busy = self.past > self.first
        inside = self.busy & (self.past < self.count)
        self._inside = np.flatnonzero(inside)
        self._pairs = np.stack([self.first, self.past], axis=1)[inside].ravel()
        self._to_the_end = np.flatnonzero(self.busy & ~inside)
        self.before = np.where(self.busy, np.maximum(low_edge - self._at(self.start, self.first), 0), 0)
        self.after = np.where(self.busy, np.maximum(self._at(self.end, self.past - 1) - high_edge, 0), 0)

    def _edges(self, begin_ns: int, end_ns: int, buckets: int) -> Ints:
        if self.exact:
            inner = np.concatenate([self.start, self.end, [begin_ns, end_ns]])
            return np.unique(np.clip(inner, begin_ns, end_ns))
        return np.unique(np.linspace(begin_ns, end_ns, buckets + 1).astype(np.int64))

    def _at(self, values: Ints, where: npt.NDArray[np.intp]) -> Ints:
        return values[np.clip(where, 0, max(self.count - 1, 0))] if self.count else np.zeros(len(where), np.int64)

    def reduced(self, by: np.ufunc, values: npt.NDArray[Any], kind: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
        """``by`` over each bucket's iterations; 0 where idle."""
        out = np.zeros(len(self.first), kind)
        if len(self._pairs):
            out[self._inside] = by.reduceat(values, self._pairs, dtype=kind)[::2]
        for k in self._to_the_end:  # an index past the last value is not for reduceat
            out[k] = by.reduce(values[self.first[k] :], dtype=kind)
        return out

    def over_time(self, level: npt.NDArray[Any]) -> Floats:
        """Integral of a level over each bucket, value x ns; iterations that reach beyond it count with their part in it."""
        whole: Floats = self.reduced(np.add, np.multiply(level, self.length, dtype=np.float64), np.float64)
        if not self.count:
            return whole
        first, last = np.clip(self.first, 0, self.count - 1), np.clip(self.past - 1, 0, self.count - 1)
        before, after = self.before.astype(np.float64), self.after.astype(np.float64)
        inside: Floats = whole - level[first] * before - level[last] * after
        return inside

    def holder(self, values: npt.NDArray[Any]) -> Ints:
        """Number of the first iteration with a bucket's largest value; -1 where idle."""
        found, last = np.full(len(self.first), -1, np.int64), self.count - 1
        if last < 0:
            return found
        if int(values.max()) < (1 << 62) // self.count:  # the largest, and of the largest the first, in one number
            most = self.reduced(np.maximum, values.astype(np.int64) * self.count + np.arange(last, -1, -1))
            where = last - most[self.busy] % self.count
        else:
            pairs = zip(self.first[self.busy], self.past[self.busy], strict=True)
            where = np.array([a + int(values[a:b].argmax()) for a, b in pairs], np.int64)
        found[self.busy] = self.frame["iteration"][where]
        return found


def downsample(frame: Frame, begin_ns: int, end_ns: int, buckets: int = BUCKETS) -> Buckets:
    """The window ``[begin_ns, end_ns)`` of a replica's iterations in at most ``buckets`` equal buckets of time.

    With no more iterations than buckets, edges are where iterations begin and end: up to ``2 * buckets + 1`` with idle gaps.
    """
    cut = _Cut(frame, begin_ns, max(end_ns, begin_ns + 1), buckets)
    widths = np.diff(cut.edges)
    counts = np.where(cut.busy, cut.past - cut.first, 0).astype(np.int64)
    result = Buckets(
        edges_ns=cut.edges,
        iterations=counts,
        covered=cut.count,
        exact=cut.exact,
        busy_ns=cut.over_time(np.ones(cut.count, np.int8)),
    )
    for name, over in _LEVELS.items():
        time = widths if over == "time" else np.maximum(result.busy_ns, 1.0)
        result.mean[name] = cut.over_time(cut.frame[name]) / time
        if name != "kv_cached":
            result.peak[name] = cut.reduced(np.maximum, cut.frame[name])
    _add_batch(result, cut, counts)
    _add_queue(result, cut, widths)
    starts = np.searchsorted(cut.edges, cut.start, "right") - 1
    there = (starts >= 0) & (cut.frame["preempted"] > 0)
    result.preempted = np.bincount(starts[there], cut.frame["preempted"][there], len(widths)).astype(np.int64)
    return result


def _add_batch(result: Buckets, cut: _Cut, counts: Ints) -> None:
    """Tokens and durations: means, extremes and who has them."""
    frame = cut.frame
    decode, prefill, recomputed = frame["decode_seqs"], frame["prefill_tokens"], frame["recomputed_tokens"]
    busy = np.maximum(result.busy_ns, 1.0)
    for name, tokens in (("decode", decode), ("prefill", prefill - recomputed), ("recomputed", recomputed)):
        result.mean[name] = cut.over_time(tokens) / busy
    result.mean["others"] = cut.over_time(np.maximum(frame["running"] - decode, 0)) / busy
    added = frame["prefill_ns"]
    again = np.where(prefill > 0, added * (recomputed / np.maximum(prefill, 1)), 0.0)
    for name, part in (("prefill_ns", added - again), ("recomputed_ns", again)):
        result.mean[name] = cut.reduced(np.add, part, np.float64) / np.maximum(counts, 1)
    duration = frame["duration_ns"]
    result.mean["duration_ns"] = cut.reduced(np.add, duration) / np.maximum(counts, 1)
    result.low["duration_ns"] = cut.reduced(np.minimum, duration)
    if frame["expected_ns"].any():
        result.mean["expected_ns"] = cut.reduced(np.add, frame["expected_ns"]) / np.maximum(counts, 1)
        off = duration - frame["expected_ns"]
        at = int(np.abs(off).argmax())
        result.against = Against(int(duration.sum()), int(frame["expected_ns"].sum()), int(frame["iteration"][at]), int(off[at]))
    for name, values in (("batch", decode + prefill), ("duration_ns", duration)):
        result.peak[name] = cut.reduced(np.maximum, values)
        result.worst[name] = cut.holder(values)


def _add_queue(result: Buckets, cut: _Cut, widths: Ints) -> None:
    """Waiting requests by the reason of the head's refusal."""
    reasons, waiting = cut.frame["head_refused_by"], cut.frame["waiting"]
    for code in np.flatnonzero(np.bincount(reasons, waiting)).tolist():
        result.queue[int(code)] = cut.over_time(waiting * (reasons == code)) / widths

"""Who is there together: how many requests were in flight, waiting and running in every stretch of an observed trace, what those
running held, and which of these levels stood still.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Levels", "Lives", "Plateau", "levels_of", "plateau_of"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_NEAR = {"tokens": 1.05}


@dataclass(frozen=True, slots=True)
class Lives:
    """Moments of each request (ns): when it came, was first scheduled, got its first and its last token. -1: unknown."""

    arrival: Ints
    scheduled: Ints
    first: Ints
    end: Ints
    prompt: Ints
    output: Ints

    @property
    def whole(self) -> Flags:
        """Whose moments are all known, and in order."""
        found: Flags = (self.scheduled >= self.arrival) & (self.first >= self.scheduled) & (self.end >= self.first)
        return found


@dataclass(frozen=True, slots=True)
class Levels:
    """How many there were in each stretch between two moments of somebody: ``at_ns`` (n + 1 edges), ``in_flight``, ``waiting``
    and ``running`` requests, and the ``tokens`` those running held in the middle of it (prompt and answer so far). ``waiting``,
    ``running`` and ``tokens`` are zeros where nobody's queue time is known."""

    at_ns: Ints
    in_flight: Ints
    waiting: Ints
    running: Ints
    tokens: Floats

    @property
    def length_ns(self) -> Ints:
        return np.diff(self.at_ns)


@dataclass(frozen=True, slots=True)
class Plateau:
    """How still a level stands: ``value``, the ``share`` of ``of_ns`` (the time looked at) that was within 2 % of it (tokens,
    which are reckoned: 5 %), and the ``spread``: from its 10th to its 90th percentile over that time, by its median."""

    what: str
    value: float
    share: float
    spread: float
    of_ns: int


def levels_of(lives: Lives) -> Levels:
    """Who is there together. Requests whose moments are not all known count in flight only, and only if their end is known."""
    there, seen = lives.end >= lives.arrival, lives.whole
    moments = (lives.arrival[there], lives.end[there], lives.scheduled[seen], lives.first[seen])
    edges = np.unique(np.concatenate(moments))
    size = max(len(edges) - 1, 0)

    def level(begin: Ints, end: Ints, weight: Floats | None = None) -> Floats:
        steps = np.zeros(len(edges) + 1)
        np.add.at(steps, np.searchsorted(edges, begin), 1.0 if weight is None else weight)
        np.add.at(steps, np.searchsorted(edges, end), -1.0 if weight is None else -weight)
        found: Floats = np.cumsum(steps)[:size]
        return found

    first, end = lives.first[seen], lives.end[seen]
    grown = lives.output[seen] / np.maximum(end - first, 1).astype(np.float64)
    middle = (edges[:-1] + edges[1:]) / 2.0 if size else np.zeros(0)
    # answers grow evenly from the first token to the last: rate x (now - first), summed over who decodes
    origin = int(edges[0]) if size else 0
    answers = level(first, end, grown) * (middle - origin) - level(first, end, grown * (first - origin))
    tokens = level(lives.scheduled[seen], end, lives.prompt[seen].astype(np.float64)) + answers
    counts = [level(lives.arrival[there], lives.end[there]), level(lives.arrival[seen], lives.scheduled[seen])]
    counts.append(level(lives.scheduled[seen], end))
    in_flight, waiting, running = (np.rint(each).astype(np.int64) for each in counts)
    return Levels(edges, in_flight, waiting, running, np.maximum(tokens, 0.0))


def plateau_of(what: str, level: Ints | Floats, levels: Levels, looked: Flags) -> Plateau:
    """How still ``level`` stands over the stretches looked at: the value that most of their time is near."""
    length, values = levels.length_ns[looked].astype(np.float64), level[looked].astype(np.float64)
    of = int(length.sum())
    if not of:
        return Plateau(what, 0.0, 0.0, 0.0, 0)
    order = np.argsort(values, kind="stable")
    values, passed = values[order], np.concatenate(([0.0], np.cumsum(length[order])))
    wide = _NEAR.get(what, 1.02)
    low, high = np.searchsorted(values, values / wide, side="left"), np.searchsorted(values, values * wide, side="right")
    near = passed[high] - passed[low]
    best = int(np.argmax(near))
    ranks = np.minimum(np.searchsorted(passed[1:], np.array([0.1, 0.5, 0.9]) * of), len(values) - 1)
    p10, p50, p90 = values[ranks].tolist()
    return Plateau(what, float(values[best]), float(near[best] / of), (p90 - p10) / max(p50, 1.0), of)

"""An engine's iterations as running sums over its clock: any stretch of time is split in a few look-ups, however long it is.

A sum over iterations is a function of time that grows within each of them in proportion; what passes between two moments is a
difference of two values, so the parts of neighbouring stretches add up to the nanosecond.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from replay_engine.types import NEVER
from tracekit.diagnosis.iteration_cost import CostForm
from tracekit.diagnosis.stretches import Stretches

__all__ = ["Lane", "Moments"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.void]


class Amount:
    """``each``: what iterations of a lane have of something, at most their ``length``; ``number``: which iterations, in order,
    where most have none of it."""

    __slots__ = ("_before", "_each", "_length", "_number")

    def __init__(self, each: Ints, length: Ints, number: Ints | None = None) -> None:
        self._each, self._length, self._number = each, length, number
        self._before: Ints = np.zeros(len(each) + 1, np.int64)
        np.cumsum(each, out=self._before[1:])

    def up_to(self, at: Ints, inside: Ints) -> Ints:
        """The sum of all iterations before each of ``at``, and of that one what belongs to its first ``inside`` ns."""
        if not len(self._each):
            return np.zeros(len(at), np.int64)
        begun = inside > 0
        place = at
        if self._number is not None:
            place = np.searchsorted(self._number, at)
            begun &= self._number[np.minimum(place, len(self._number) - 1)] == at
        found = self._before[place]
        partly = np.flatnonzero(begun)
        own, of = place[partly], inside[partly]
        each, length = self._each[own], self._length[own]
        share = np.where(each == length, of, (each * (of / np.maximum(length, 1))).astype(np.int64))
        found[partly] += np.where(of >= length, each, share)
        return found


class Moments:
    """Moments on the clock of a lane (ns), each with the iteration that has begun last; -1: none has."""

    __slots__ = ("at", "ns")

    def __init__(self, lane: Lane, ns: Ints) -> None:
        self.ns = ns
        self.at: Ints = np.searchsorted(lane.start, ns, side="right") - 1


class Lane:
    """``rows`` of ``iterations`` of one replica, in order. ``offset``: where they begin among the rows of all replicas."""

    def __init__(self, rows: Rows, form: CostForm, offset: int = 0) -> None:
        self.rows, self.form, self.offset = rows, form, offset
        self.start: Ints = np.ascontiguousarray(rows["start_ns"])
        self.duration: Ints = np.ascontiguousarray(rows["duration_ns"])
        self.reason = np.ascontiguousarray(rows["head_refused_by"])
        self.end: Ints = self.start + self.duration

    @cached_property
    def _refusing(self) -> Ints:
        """Iterations that refused the head of the queue."""
        return np.flatnonzero(self.reason > 0)

    @cached_property
    def reasons(self) -> tuple[int, ...]:
        """Refusals that occur, as codes; without ``none``."""
        return tuple(np.flatnonzero(np.bincount(self.reason[self._refusing])).tolist())

    def _planned_before(self, number: Ints) -> Flags:
        """Whether each iteration's plan was made at the start of the one before it: under asynchronous scheduling it is, while
        that one is under way."""
        if not self.form.asynchronous:
            return np.zeros(len(number), np.bool_)
        before = np.maximum(number - 1, 0)
        found: Flags = (number > 0) & (self.end[before] == self.start[number])
        return found

    def seen_from(self, ns: Ints) -> Ints:
        """The start of the first iteration whose plan was made at each moment (ns) or later; ``NEVER`` where there is none."""
        if not len(self.start):
            return np.full(len(ns), NEVER)
        first, last = np.searchsorted(self.start, ns, side="left"), len(self.start) - 1
        first = first + ((first <= last) & self._planned_before(np.minimum(first, last)))
        return np.where(first <= last, np.maximum(self.start[np.minimum(first, last)], ns), NEVER)

    def passed(self, amount: Amount, moments: Moments) -> Ints:
        """The sum of ``amount`` up to each moment."""
        at = np.maximum(moments.at, 0)
        inside = moments.ns - self.start[at] if len(self.start) else moments.ns
        return np.where(moments.at < 0, 0, amount.up_to(at, inside))

    @cached_property
    def _busy(self) -> Amount:
        return Amount(self.duration, self.duration)

    @cached_property
    def _added(self) -> Amount:
        mixed = np.flatnonzero(self.interference)
        return Amount(self.interference[mixed], self.duration[mixed], mixed)

    def busy(self, begin: Moments, end: Moments) -> Ints:
        """Time in which an iteration ran."""
        return self.passed(self._busy, end) - self.passed(self._busy, begin)

    def added(self, begin: Moments, end: Moments) -> Ints:
        """What of it others' prefill had added."""
        return self.passed(self._added, end) - self.passed(self._added, begin)

    def waited(self, weight: Floats | Flags, own: Stretches) -> Ints:
        """Of each stretch in this lane's queue, the time of iterations, each counted ``weight`` times (0 to 1). The rest of the
        one that had been planned before a stretch began does not count. Time in which the engine did nothing after it had refused
        the queue's head, waiting for what would change that, counts as well, whenever it was."""
        begin, seen, end = self.queued(own)
        number = np.flatnonzero(weight)
        return self._weighed(number, weight[number], begin, seen, end)

    def queued(self, own: Stretches) -> tuple[Moments, Moments, Moments]:
        """The begin of each stretch, the moment from which plans saw it, and its end."""
        seen = Moments(self, np.clip(self.seen_from(own.since_ns), own.begin_ns, own.end_ns))
        return Moments(self, own.begin_ns), seen, Moments(self, own.end_ns)

    def refused(self, code: int, begin: Moments, seen: Moments, end: Moments) -> Ints:
        """``waited`` between moments in iterations that refused the queue's head for a reason."""
        number = self._refusing[self.reason[self._refusing] == code]
        return self._weighed(number, np.ones(len(number), np.bool_), begin, seen, end)

    def _weighed(self, number: Ints, weight: Floats | Flags, begin: Moments, seen: Moments, end: Moments) -> Ints:
        duration = self.duration[number]
        length = duration + self._held_after(number)
        whole = Amount(_weighted(weight, length), length, number)
        busy = Amount(_weighted(weight, duration), duration, number)
        during = self.passed(whole, end) - self.passed(whole, begin)
        return during - (self.passed(busy, seen) - self.passed(busy, begin))

    def _held_after(self, number: Ints) -> Ints:
        """Time without an iteration after each of ``number`` that refused the head of the queue; 0 after the last."""
        last = len(self.start) - 1
        idle = np.where(number < last, self.start[np.minimum(number + 1, last)] - self.end[number], 0)
        return np.where(self.reason[number] > 0, idle, 0)

    @cached_property
    def interference(self) -> Ints:
        """Per iteration: what it took beyond what it would have taken without its prefill entries."""
        found = np.zeros(len(self.start), np.int64)
        mixed = np.flatnonzero((self.rows["prefill_tokens"] > 0) & (self.rows["decode_seqs"] > 0))
        rows = self.rows[mixed]
        found[mixed] = self.form.saved_ns(rows, self.form.prompts_ns(rows))
        return found


def _weighted(weight: Floats | Flags, each: Ints) -> Ints:
    return np.where(weight, each, 0) if weight.dtype == np.bool_ else np.rint(weight * each).astype(np.int64)

"""An engine's iterations as running sums over its clock: any stretch of time is split in a few look-ups, however long it is.

A sum over iterations is a function of time that grows within each of them in proportion; what passes between two moments is a
difference of two values, so the parts of neighbouring stretches add up to the nanosecond.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from replay_engine.types import NEVER, Refusal
from tracekit.diagnosis.iteration_cost import CostForm
from tracekit.diagnosis.stretches import Stretches

__all__ = ["Lane", "Moments"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.void]


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
    def reasons(self) -> tuple[int, ...]:
        """Refusals that occur, as codes; without ``none``."""
        return tuple(code for code in np.flatnonzero(np.bincount(self.reason, minlength=1)).tolist() if code != Refusal.none)

    @cached_property
    def made(self) -> Ints:
        """When each plan was made: under asynchronous scheduling at the start of the iteration that was under way."""
        made = self.start.copy()
        if self.form.asynchronous and len(made) > 1:
            follows = self.end[:-1] == self.start[1:]
            made[1:][follows] = self.start[:-1][follows]
        return made

    @cached_property
    def _idle_after(self) -> Ints:
        """Time without an iteration after each; 0 after the last."""
        return np.append(self.start[1:] - self.end[:-1], 0)

    def seen_from(self, ns: Ints) -> Ints:
        """The start of the first iteration whose plan was made at each moment (ns) or later; ``NEVER`` where there is none."""
        first = np.searchsorted(self.made, ns, side="left")
        found = np.append(self.start, 0)[first]
        return np.where(first < len(self.start), np.maximum(found, ns), NEVER)

    def passed(self, amount: Ints, moments: Moments, length: Ints | None = None) -> Ints:
        """The sum of ``amount`` (one value per iteration, at most its ``length``) up to each moment."""
        sums = np.concatenate(([0], np.cumsum(amount)))
        at = np.maximum(moments.at, 0)
        if not len(amount):
            return np.zeros(len(at), np.int64)
        length = self.duration if length is None else length
        inside = moments.ns - self.start[at]
        whole = inside >= length[at]
        found = sums[at] + np.where(whole, amount[at], 0)
        partly = np.flatnonzero(~whole & (inside > 0))
        if len(partly):
            own, of = at[partly], inside[partly]
            full = amount[own] == length[own]
            share = (amount[own] * (of / np.maximum(length[own], 1))).astype(np.int64)
            found[partly] += np.where(full, of, share)
        return np.where(moments.at < 0, 0, found)

    def busy(self, begin: Moments, end: Moments) -> Ints:
        """Time in which an iteration ran."""
        return self.passed(self.duration, end) - self.passed(self.duration, begin)

    def waited(self, weight: Floats | Flags, own: Stretches) -> Ints:
        """Of each stretch in this lane's queue, the time of iterations, each counted ``weight`` times (0 to 1). The rest of the
        one that had been planned before a stretch began does not count. Time in which the engine did nothing after it had refused
        the queue's head, waiting for what would change that, counts as well, whenever it was."""
        begin, seen, end = self.queued(own)
        return self.weighed(weight, begin, seen, end)

    def queued(self, own: Stretches) -> tuple[Moments, Moments, Moments]:
        """The begin of each stretch, the moment from which plans saw it, and its end."""
        seen = Moments(self, np.clip(self.seen_from(own.since_ns), own.begin_ns, own.end_ns))
        return Moments(self, own.begin_ns), seen, Moments(self, own.end_ns)

    def weighed(self, weight: Floats | Flags, begin: Moments, seen: Moments, end: Moments) -> Ints:
        """``waited`` between moments."""
        length = self.duration + self._held_after
        whole, busy = (np.rint(weight * each).astype(np.int64) for each in (length, self.duration))
        during = self.passed(whole, end, length) - self.passed(whole, begin, length)
        return during - (self.passed(busy, seen) - self.passed(busy, begin))

    @cached_property
    def _held_after(self) -> Ints:
        """Time without an iteration after each that refused the head of the queue."""
        return np.where(self.reason > 0, self._idle_after, 0)

    @cached_property
    def interference(self) -> Ints:
        """Per iteration: what it took beyond what it would have taken without its prefill entries."""
        tokens = self.rows["prefill_tokens"].astype(np.float64)
        less = self.form.prefill_ns(tokens) + self.form.latency.c_ns * self.rows["prefill_qk"]
        found = np.zeros(len(tokens), np.int64)
        mixed = np.flatnonzero((tokens > 0) & (self.rows["decode_seqs"] > 0))
        found[mixed] = self.form.saved_ns(self.rows[mixed], less[mixed])
        return found

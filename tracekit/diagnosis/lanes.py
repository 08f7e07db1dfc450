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

__all__ = ["Lane", "Moments"]

Ints = npt.NDArray[np.int64]
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

    def refused(self, code: int, begin: Moments, end: Moments) -> Ints:
        """Time in which the queue's head stood refused for a reason. Where the engine then did nothing, waiting for what would
        change that, this counts as well."""
        length = self.duration + np.where(self.reason > 0, self._idle_after, 0)
        amount = np.where(self.reason == code, length, 0)
        return self.passed(amount, end, length) - self.passed(amount, begin, length)

    def held_idle(self, code: int, begin: Moments, end: Moments) -> Ints:
        """That part of ``refused`` in which no iteration ran."""
        return self.refused(code, begin, end) - self._refused_busy(code, begin, end)

    def _refused_busy(self, code: int, begin: Moments, end: Moments) -> Ints:
        amount = np.where(self.reason == code, self.duration, 0)
        return self.passed(amount, end) - self.passed(amount, begin)

    @cached_property
    def interference(self) -> Ints:
        """Per iteration: what it took beyond what it would have taken without its prefill entries."""
        tokens = self.rows["prefill_tokens"].astype(np.float64)
        less = self.form.prefill_ns(tokens) + self.form.latency.c_ns * self.rows["prefill_qk"]
        found = np.zeros(len(tokens), np.int64)
        mixed = np.flatnonzero((tokens > 0) & (self.rows["decode_seqs"] > 0))
        found[mixed] = self.form.saved_ns(self.rows[mixed], less[mixed])
        return found

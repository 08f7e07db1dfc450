"""Where each request's time went: the way to its first token and the way from there to its last, in parts that sum exactly.

``attribute(data)`` for a whole run, ``Blame(data).within(t0, t1)`` for what lies between two moments. Waiting is put down to the
reason why the head of the queue stood refused in each iteration that was waited through, whoever the head was; the rest of an
iteration that had been planned without the request is ``under_way``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay_engine.types import NEVER, Phase, Refusal
from tracekit.diagnosis.iteration_cost import CostForm
from tracekit.diagnosis.lanes import Lane, Moments
from tracekit.diagnosis.own_prefill import OwnPrefill
from tracekit.diagnosis.stretches import Ends, Stretches, cut, ends_of, stretches_of

if TYPE_CHECKING:
    from tracekit.diagnosis.run_data import RunData

__all__ = ["PARTS", "Attribution", "Blame", "attribute"]

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]

_BY_HEAD = {int(Phase.queued): "queue", int(Phase.decode_queue): "decode_queue"}
_BY_REASON = {int(Phase.prefill_wait): "prefill_wait", int(Phase.stalled): "stalled"}
_PLAIN = {
    int(phase): phase.name
    for phase in (
        Phase.dispatch, Phase.ingress, Phase.preempted, Phase.swapped, Phase.paused, Phase.transfer_wait, Phase.transfer,
        Phase.batch_hold, Phase.egress,
    )
}  # fmt: skip

PARTS: dict[str, str] = {
    "dispatch": "the client held it back",
    "ingress": "on its way to the server",
    "lost": "all that a replica which failed had done for it, and its waiting there",
    "under_way": "the rest of an iteration that had been planned before it came",
    "queue": "waiting; after the dot why the head of its queue was refused",
    "queue_or_prefill": "of an observed trace that tells no queue times: all before the first token",
    "prefill": "iterations that computed its prompt",
    "prefill_shared": "what other prompts added to those iterations",
    "first_step": "its first iteration after its KV had come from another engine",
    "prefill_wait": "between two chunks of its prompt; after the dot why it got none",
    "recompute": "computing again what a preemption had thrown away",
    "preempted": "thrown out, its KV given up",
    "swapped": "thrown out, its KV on the host",
    "paused": "without a seat, its KV kept",
    "transfer_wait": "waiting for room and for the link",
    "transfer": "its KV was moved",
    "decode_queue": "its KV was there; after the dot why the head of the queue was refused",
    "batch_hold": "done, and held until its batch was",
    "decode": "iterations in which it decoded",
    "interference": "what others' prefill added to those iterations",
    "stalled": "passed over while it decoded; after the dot why",
    "egress": "on its way back",
    "not_explained": "what none of these accounts for",
}
"""What the parts mean. ``queue``, ``decode_queue``, ``prefill_wait`` and ``stalled`` have one part per refusal that occurs,
``queue.token_budget``; ``queue.none``: nobody was refused, and yet it waited."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """``first[i, k]`` and ``later[i, k]``: ns that outcome row ``i`` spent in ``parts[k]`` before and after its first token.

    Rows sum exactly to ``first_total`` (TTFT) and ``later_total`` (E2E - TTFT); of who got no first token, all time is before it.
    Parts that nobody spent time in are left out.
    """

    parts: tuple[str, ...]
    first: Ints
    later: Ints
    first_total: Ints
    later_total: Ints

    def of(self, part: str, side: str = "both") -> Ints:
        """Ns per outcome row in a part, or in all parts of a kind (``queue``): ``first``, ``later`` or ``both`` sides."""
        kind = [k for k, name in enumerate(self.parts) if name == part or name.partition(".")[0] == part]
        found = np.zeros(len(self.first_total), np.int64)
        for matrix in {"first": (self.first,), "later": (self.later,), "both": (self.first, self.later)}[side]:
            found = found + matrix[:, kind].sum(axis=1)
        return found

    def sums(self, rows: npt.NDArray[np.bool_] | Ints | slice = slice(None), side: str = "both") -> dict[str, int]:
        """Total ns by part over outcome rows (a mask or indices), the largest first."""
        total = np.zeros(len(self.parts), np.int64)
        for matrix in {"first": (self.first,), "later": (self.later,), "both": (self.first, self.later)}[side]:
            total = total + matrix[rows].sum(axis=0)
        return {self.parts[k]: int(total[k]) for k in np.argsort(-total, kind="stable") if total[k]}


class Blame:
    """One run, prepared: its engines' running sums and the stretches of every request."""

    def __init__(self, tables: Mapping[str, Rows], forms: Mapping[int, CostForm]) -> None:
        """``tables`` as ``RunData`` keeps them; ``forms``: what iterations cost, by replica."""
        iterations = tables["iterations"]
        self.ends: Ends = ends_of(tables["outcomes"], tables["spans"])
        self.tables = tables
        self.stretches = stretches_of(tables, self.ends)
        self.requests: Ints = tables["outcomes"]["request"].astype(np.int64)
        self.lanes: dict[int, Lane] = {}
        replicas = np.unique(iterations["replica"]).tolist()
        bounds = np.searchsorted(iterations["replica"], [*replicas, 1 << 15]).tolist()
        for k, replica in enumerate(replicas):
            self.lanes[replica] = Lane(iterations[bounds[k] : bounds[k + 1]], forms[replica], bounds[k])
        self.own = OwnPrefill(tables["prefill_entries"], [*self.lanes.values()], replicas)

    @classmethod
    def of(cls, data: RunData) -> Blame:
        """The blame of a run, on the costs of its profile."""
        latency = data.profile.latency
        forms = {each: CostForm(latency, data.engine_of(each).async_scheduling) for each in data.replicas}
        return cls(data.tables, forms)

    def within(self, t0_ns: int | None = None, t1_ns: int | None = None) -> Attribution:
        """What lies between two moments on the engine clock (ns); ``None``: from the beginning, to the end. The piece of an
        iteration of one's own prefill that a moment cuts through is all ``prefill``."""
        low, high = -NEVER if t0_ns is None else t0_ns, NEVER if t1_ns is None else t1_ns
        ends = self.ends
        begin, end = np.clip(ends.arrival, low, high), np.clip(ends.last, low, high)
        turn = np.clip(np.minimum(ends.first, ends.last), low, high)
        turn = np.maximum(turn, begin)
        book = _Book(len(self.requests))
        self._fill(book, cut(self.stretches, t0_ns, t1_ns))
        return book.closed(turn - begin, np.maximum(end, turn) - turn)

    def _fill(self, book: _Book, found: Stretches) -> None:
        book.add("lost", found.take(found.lost))
        found = found.take(~found.lost)
        for code, name in _PLAIN.items():
            book.add(name, found.take(found.phase == code))
        for code, name in _BY_REASON.items():
            own = found.take(found.phase == code)
            for reason in np.unique(own.reason).tolist():
                book.add(f"{name}.{Refusal(reason).name}", own.take(own.reason == reason))
        for replica, lane in self.lanes.items():
            here = found.take(found.replica == replica)
            for code, name in _BY_HEAD.items():
                _waited(book, name, lane, here.take(here.phase == code))
            self._computed(book, lane, here.take(here.phase == Phase.prefill))
            _decoded(book, lane, here.take(here.phase == Phase.decode))

    def _computed(self, book: _Book, lane: Lane, own: Stretches) -> None:
        if not len(own):
            return
        first = np.searchsorted(lane.start, own.begin_ns, side="left") + lane.offset
        last = np.searchsorted(lane.end, own.end_ns, side="right") + lane.offset
        shared, again = self.own.between(self.requests[own.row], first, np.maximum(last, first))
        shared = np.minimum(shared, own.length_ns)
        again = np.minimum(again, own.length_ns - shared)
        book.add("prefill_shared", own, shared)
        book.add("recompute", own, again)
        rest = own.length_ns - shared - again
        step = own.fetched & (own.reason == Refusal.none) & (again == 0)
        book.add("first_step", own.take(step), rest[step])
        book.add("prefill", own.take(~step), rest[~step])


def _waited(book: _Book, name: str, lane: Lane, own: Stretches) -> None:
    """Stretches in a queue: the iteration under way, then by the refusal of its head."""
    if not len(own):
        return
    begin, seen, end = lane.queued(own)
    under = lane.busy(begin, seen)
    book.add("under_way", own, under)
    rest = own.length_ns - under
    for code in lane.reasons:
        held = lane.refused(code, begin, seen, end)
        book.add(f"{name}.{Refusal(code).name}", own, held)
        rest -= held
    book.add(f"{name}.none", own, rest)


def _decoded(book: _Book, lane: Lane, own: Stretches) -> None:
    if not len(own):
        return
    begin, end = Moments(lane, own.begin_ns), Moments(lane, own.end_ns)
    added = lane.added(begin, end)
    book.add("interference", own, added)
    book.add("decode", own, own.length_ns - added)


class _Book:
    """Sums per outcome row and side, by part."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._sums: dict[str, npt.NDArray[np.float64]] = {}

    def add(self, part: str, own: Stretches, amount: Ints | None = None) -> None:
        """``amount`` (ns; the stretches' lengths without it) for the rows of ``own``. Floats are exact: sums stay below 2^53."""
        amount = own.length_ns if amount is None else amount
        if not len(own) or not amount.any():
            return
        place = own.row + self._total * own.later
        found = np.asarray(np.bincount(place, weights=amount, minlength=2 * self._total), np.float64)
        if part in self._sums:
            found += self._sums[part]
        self._sums[part] = found

    def closed(self, first_total: Ints, later_total: Ints) -> Attribution:
        """All parts, and what they leave of the totals as ``not_explained``."""
        totals = np.concatenate((first_total, later_total)).astype(np.float64)
        left = totals - sum(self._sums.values(), np.zeros(2 * self._total))
        if left.any():
            self._sums["not_explained"] = left
        parts = tuple(sorted(self._sums, key=_place))
        both = np.zeros((2 * self._total, len(parts)), np.int64)
        for k, part in enumerate(parts):
            both[:, k] = self._sums[part]
        return Attribution(parts, both[: self._total], both[self._total :], first_total, later_total)


_ORDER: Sequence[str] = tuple(PARTS)


def _place(part: str) -> tuple[int, str]:
    kind, _, reason = part.partition(".")
    return _ORDER.index(kind), reason


def attribute(data: RunData) -> Attribution:
    """Where every request of a run spent its time, by outcome row. A run without iterations and spans explains nothing: all is
    ``not_explained``."""
    return Blame.of(data).within()

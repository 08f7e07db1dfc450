"""What every request's time was spent on, in the few families that causes are told apart by: one array a family, per outcome row.

A wait in the queue is split by what refused the head of that queue while it lasted, whoever the head was: whoever stands behind
waits for the same. Times are ns on the engine clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from replay_engine.types import Phase, Refusal
from tracekit.diagnosis.run_data import RunData

__all__ = ["FAMILIES", "FIRST", "LATER", "Lanes", "Parts"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.void]

FAMILIES: dict[str, tuple[Refusal, ...]] = {
    "budget": (Refusal.token_budget, Refusal.no_chunking, Refusal.prefill_limit),
    "seats": (Refusal.max_num_seqs, Refusal.reserved_seqs),
    "kv": (
        Refusal.kv_free,
        Refusal.kv_full_isl,
        Refusal.kv_watermark,
        Refusal.kv_output_reserve,
        Refusal.reserved_blocks,
        Refusal.host_pool,
    ),
    "gate": (
        Refusal.prefill_interval,
        Refusal.batch_window,
        Refusal.after_preemption,
        Refusal.link,
        Refusal.in_flight,
        Refusal.replica_failed,
    ),
}
"""What limits the head of a queue, by the engine's reasons."""

FIRST = (
    "dispatch",
    "budget",
    "seats",
    "kv",
    "gate",
    "under_way",
    "prefill",
    "prefill_wait",
    "preempted",
    "transfer_wait",
    "transfer",
    "decode_queue",
    "other",
)
"""Families of the time to the first token."""
LATER = ("decode", "interference", "stalled", "preempted", "other")
"""Families of the time after it. ``interference``: what iterations took because others' prompts were computed in them."""


class Lanes:
    """The iterations of each replica, and what passed of any share of them between two moments."""

    def __init__(self, data: RunData) -> None:
        rows = data.iterations
        self.of: dict[int, slice] = {}
        edges = np.flatnonzero(np.diff(rows["replica"])) + 1
        for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(rows)], strict=True):
            if high > low:
                self.of[int(rows["replica"][low])] = slice(low, high)
        self.rows = rows

    def between(self, weight: Floats, replica: int, begin: Ints, end: Ints) -> Floats:
        """Of the time from ``begin`` to ``end`` (ns), that of the replica's iterations, each counted ``weight`` times (0 to
        1)."""
        part = self.of.get(replica)
        if part is None:
            return np.zeros(len(begin))
        start, length = self.rows["start_ns"][part], self.rows["duration_ns"][part]
        total = np.concatenate(([0.0], np.cumsum(weight[part] * length)))
        return _at(start, length, weight[part], total, end) - _at(start, length, weight[part], total, begin)

    def over(self, amount: Floats, replica: int, first: Ints, last: Ints) -> Floats:
        """The sum of ``amount`` over the iterations numbered ``first`` to ``last``, both included."""
        part = self.of.get(replica)
        if part is None:
            return np.zeros(len(first))
        numbers = self.rows["iteration"][part]
        total = np.concatenate(([0.0], np.cumsum(amount[part])))
        found: Floats = total[np.searchsorted(numbers, last, "right")] - total[np.searchsorted(numbers, first, "left")]
        return found


def _at(start: Ints, length: Ints, weight: Floats, total: Floats, moment: Ints) -> Floats:
    k = np.searchsorted(start, moment, "right") - 1
    inside = np.clip(moment - start[k], 0, length[k]) * weight[k]
    return np.where(k < 0, 0.0, total[k] + inside)


@dataclass(frozen=True)
class Parts:
    """Per outcome row and family, ns: ``first`` and ``later``."""

    data: RunData

    @cached_property
    def lanes(self) -> Lanes:
        return Lanes(self.data)

    @cached_property
    def span_row(self) -> Ints:
        """The outcome row of each span."""
        where = np.full(
            int(max(self.data.spans["request"].max(initial=-1), self.data.outcomes["request"].max(initial=-1))) + 2, -1
        )
        where[self.data.outcomes["request"]] = np.arange(len(self.data.outcomes))
        found: Ints = where[self.data.spans["request"]]
        return found

    @cached_property
    def before_first(self) -> npt.NDArray[np.bool_]:
        """Which spans lie before their request's first token."""
        rows = self.data.outcomes[self.span_row]
        told = rows["ttft_ns"] >= 0
        return np.asarray(~told | (self.data.spans["end_ns"] <= rows["arrival_ns"] + rows["ttft_ns"]))

    def family_weight(self, name: str) -> Floats:
        """1 per iteration whose queue's head was refused for a family's reasons."""
        codes = [int(reason) for reason in FAMILIES[name]]
        return np.isin(self.data.iterations["head_refused_by"], codes).astype(np.float64)

    def waited(self, weight: Floats, phases: tuple[Phase, ...] = (Phase.queued,)) -> Floats:
        """Per outcome row: its time in the queue before its first token, each iteration counted ``weight`` times. ns."""
        spans = self.data.spans
        of = np.isin(spans["phase"], [int(phase) for phase in phases]) & self.before_first
        return self._summed(of, lambda rows, replica: self.lanes.between(weight, replica, rows["start_ns"], rows["end_ns"]))

    def decoding(self, amount: Floats) -> Floats:
        """Per outcome row: ``amount`` of every iteration it got a token from while decoding, summed."""
        of = self.data.spans["phase"] == int(Phase.decode)
        return self._summed(
            of, lambda rows, replica: self.lanes.over(amount, replica, rows["start_iteration"], rows["end_iteration"])
        )

    def _summed(self, of: npt.NDArray[np.bool_], measure: object) -> Floats:
        total = np.zeros(len(self.data.outcomes))
        for replica in self.lanes.of:
            own = np.flatnonzero(of & (self.data.spans["replica"] == replica))
            if len(own):
                total += np.bincount(self.span_row[own], weights=measure(self.data.spans[own], replica), minlength=len(total))  # type: ignore[operator]
        return total

    def spent(self, phases: tuple[Phase, ...], first: bool, *, reason: Refusal | None = None) -> Floats:
        """Per outcome row: time in phases before or after the first token, ns."""
        spans = self.data.spans
        of = np.isin(spans["phase"], [int(phase) for phase in phases]) & (self.before_first == first)
        if reason is not None:
            of &= spans["reason"] == int(reason)
        length = (spans["end_ns"] - spans["start_ns"])[of].astype(np.float64)
        found: Floats = np.bincount(self.span_row[of], weights=length, minlength=len(self.data.outcomes)).astype(np.float64)
        return found

    @cached_property
    def first(self) -> dict[str, Floats]:
        """The families of ``FIRST``; they sum to the time from arrival to first token, or to the end without one."""
        found = {name: self.waited(self.family_weight(name)) for name in FAMILIES}
        queued = self.spent((Phase.queued,), True)
        found["under_way"] = np.maximum(queued - sum(found.values()), 0.0)
        found["dispatch"] = self.spent((Phase.dispatch,), True)
        again = self.spent((Phase.prefill,), True, reason=Refusal.after_preemption)
        found["prefill"] = self.spent((Phase.prefill,), True) - again
        found["preempted"] = again + self.spent((Phase.preempted, Phase.swapped, Phase.paused), True)
        for phase in (Phase.prefill_wait, Phase.transfer_wait, Phase.transfer, Phase.decode_queue):
            found[phase.name] = self.spent((phase,), True)
        found["other"] = self.spent((Phase.ingress, Phase.batch_hold, Phase.egress, Phase.decode, Phase.stalled), True)
        return found

    @cached_property
    def later(self) -> dict[str, Floats]:
        """The families of ``LATER``; they sum to the time from first to last token."""
        decode = self.spent((Phase.decode,), False)
        between = np.minimum(self.decoding(self.prefill_cost), decode)
        return {
            "decode": decode - between,
            "interference": between,
            "stalled": self.spent((Phase.stalled,), False),
            "preempted": self.spent((Phase.preempted, Phase.swapped, Phase.paused, Phase.prefill, Phase.prefill_wait), False),
            "other": self.spent(
                (Phase.transfer_wait, Phase.transfer, Phase.decode_queue, Phase.batch_hold, Phase.egress, Phase.queued), False
            ),
        }

    @cached_property
    def prefill_cost(self) -> Floats:
        """What each iteration took beyond what its decodes alone would have taken, by the profile, ns."""
        rows, latency = self.data.iterations, self.data.profile.latency
        alone = np.maximum(latency.floor_ns, latency.a_ns) + latency.d_ns * rows["decode_seqs"]
        alone = alone + latency.e_ns * rows["decode_kv_tokens"] + rows["host_ns"]
        found: Floats = np.where(rows["prefill_tokens"] > 0, np.maximum(rows["duration_ns"] - alone, 0.0), 0.0)
        return found

"""What every request's time was spent on, in the kinds that causes are told apart by: the attribution itself, its waits in the
queue grouped by the limit that refused the head of the queue, whoever that was. Sums are exact. Times are ns on the engine clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from replay_engine.types import Phase, Refusal
from tracekit.diagnosis.attribution import Attribution, Blame
from tracekit.diagnosis.run_data import RunData
from tracekit.diagnosis.stretches import Stretches

__all__ = ["FAMILIES", "KINDS", "Parts"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

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

KINDS = (
    "dispatch",
    "ingress",
    "lost",
    "under_way",
    *FAMILIES,
    "unrefused",
    "prefill",
    "prefill_shared",
    "first_step",
    "prefill_wait",
    "recompute",
    "preempted",
    "swapped",
    "paused",
    "transfer_wait",
    "transfer",
    "decode_queue",
    "batch_hold",
    "decode",
    "interference",
    "stalled",
    "egress",
    "not_explained",
)
"""Every kind: the parts of ``attribution.PARTS``, those of ``queue`` by family. ``unrefused``: in a queue that refused nobody."""

_FAMILY_OF = {reason.name: name for name, reasons in FAMILIES.items() for reason in reasons}


def _kind(part: str) -> str:
    name, _, reason = part.partition(".")
    return name if name != "queue" else _FAMILY_OF.get(reason, "unrefused")


@dataclass(frozen=True)
class Parts:
    """Of one run. Per outcome row and kind, ns: ``first`` and ``later``, before and after the first token."""

    data: RunData

    @cached_property
    def blame(self) -> Blame:
        return Blame.of(self.data)

    @cached_property
    def split(self) -> Attribution:
        return self.blame.within()

    @cached_property
    def engines(self) -> dict[int, slice]:
        """Where the rows of each replica stand among the iterations."""
        return {each: slice(lane.offset, lane.offset + len(lane.rows)) for each, lane in self.blame.lanes.items()}

    @cached_property
    def first(self) -> dict[str, Ints]:
        """By ``KINDS``; they sum to the time from arrival to first token, or to the end without one."""
        return self._by_kind(self.split.first)

    @cached_property
    def later(self) -> dict[str, Ints]:
        """By ``KINDS``; they sum to the time from the first token to the end."""
        return self._by_kind(self.split.later)

    def _by_kind(self, matrix: Ints) -> dict[str, Ints]:
        found: dict[str, Ints] = {}
        for k, part in enumerate(self.split.parts):
            found[_kind(part)] = matrix[:, k] + found.get(_kind(part), 0)
        nobody = np.broadcast_to(np.int64(0), len(matrix))  # most kinds occur in few runs: they share one 0
        return {name: found.get(name, nobody) for name in KINDS}

    def refused(self, name: str) -> Bools:
        """Iterations whose queue's head was refused for a family's reasons."""
        codes = [int(reason) for reason in FAMILIES[name]]
        return np.isin(self.data.iterations["head_refused_by"], codes)

    def waited(self, weight: Floats | Bools) -> Ints:
        """Per outcome row: its time in the queue before its first token, each iteration counted ``weight`` times (0 to 1), with
        the idle time behind it where it refused somebody. Without what was under way when the request came."""
        queued = self.queued
        found = np.zeros(len(self.data.outcomes))
        for replica, lane in self.blame.lanes.items():
            own = queued.take(queued.replica == replica)
            if len(own):
                found += np.bincount(own.row, weights=lane.waited(weight[self.engines[replica]], own), minlength=len(found))
        return found.astype(np.int64)

    @cached_property
    def queued(self) -> Stretches:
        """Stretches in a queue before the first token."""
        found = self.blame.stretches
        return found.take((found.phase == int(Phase.queued)) & ~found.later & ~found.lost)

    @cached_property
    def interference(self) -> Ints:
        """What each iteration took beyond what its decodes alone would have taken, by the profile; 0 where nobody decoded, ns."""
        lanes = self.blame.lanes.values()
        return np.concatenate([lane.interference for lane in lanes]) if lanes else np.zeros(0, np.int64)

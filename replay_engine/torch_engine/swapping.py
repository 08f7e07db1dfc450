"""KV of preempted sequences to the host and back: real copies, measured, and told to the plan they belong to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from replay_engine.torch_engine.batch import PersistentBatch
from replay_engine.torch_engine.clocks import CopyClock
from replay_engine.torch_engine.kv_pool import HostPool
from replay_engine.types import BatchPlan, Displaced, SeqState, Sequence

if TYPE_CHECKING:
    from replay_engine.torch_engine.executor import _Iteration

__all__ = ["Swapper"]

_SWAP, _LOADING, _GONE = int(Displaced.swap), int(SeqState.LOADING), int(SeqState.GONE)


@dataclass(slots=True)
class _Copies:
    """What an iteration moves: clocks by sequence, out and back."""

    out: dict[Sequence, CopyClock] = field(default_factory=dict)
    back: dict[Sequence, CopyClock] = field(default_factory=dict)


class Swapper:
    """Follows the scheduler's swapping with copies. The scheduler decides who is swapped and, by its link's bandwidth, when a
    sequence may go on; the copies are what they are, and a forward pass that reads what comes back waits for it."""

    def __init__(self, host: HostPool) -> None:
        self._host = host
        self._places: dict[Sequence, list[int]] = {}
        self._coming: dict[Sequence, CopyClock] = {}

    def emptied(self) -> Swapper:
        """One that keeps nobody, over the same memory."""
        self._host.empty()
        return Swapper(self._host)

    def out(self, plan: BatchPlan, batch: PersistentBatch, iteration: _Iteration) -> None:
        """Copy out whoever ``plan`` swaps: before their blocks are anybody else's."""
        for seq in [seq for seq in self._places if seq.state == _GONE]:
            self._host.drop(self._places.pop(seq))
        for seq in [seq for seq in self._coming if seq.state != _LOADING]:
            self._coming.pop(seq).hold()
        copies = _Copies()
        for seq, kind, _ in plan.displaced:
            if kind == _SWAP:
                blocks = batch.blocks_of(seq, seq.comp)
                self._places[seq], copies.out[seq] = self._host.out(blocks)
        if copies.out or plan.loading:
            iteration.copies = copies

    def back(self, plan: BatchPlan, iteration: _Iteration) -> None:
        """Copy back whoever ``plan`` has given blocks again."""
        for seq, _ in plan.loading:
            places = self._places.pop(seq)
            clock = self._coming[seq] = self._host.back(places, seq.blocks[: len(places)])
            assert isinstance(iteration.copies, _Copies)
            iteration.copies.back[seq] = clock

    def measured(self, iteration: _Iteration) -> int:
        """The plan's copies get their measured times, where they are known; returns the copies out, ns."""
        copies, plan = iteration.copies, iteration.plan
        if not isinstance(copies, _Copies):
            return 0
        plan.displaced = [(s, how, _time(copies.out.get(s), ns) if how == _SWAP else ns) for s, how, ns in plan.displaced]
        plan.loading = [(seq, _time(copies.back.get(seq), ns)) for seq, ns in plan.loading]
        return sum(clock.ns() or 0 for clock in copies.out.values())


def _time(clock: CopyClock | None, otherwise: int) -> int:
    measured = None if clock is None else clock.ns()
    return otherwise if measured is None else measured

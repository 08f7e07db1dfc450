"""Per-tenant virtual token counters for fair sharing, as running sums: a decoding tenant's is implied by the iteration number."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf

from replay_engine.types import Sequence

__all__ = ["FairShares", "Share"]

_INFINITE = float("inf")
_FOR_EVER = 1 << 40


class Share:
    """A tenant's counter, ``level + growth x t`` at iteration ``t``, and its sequences that wait. Kept on each of its
    sequences: nothing is looked up by tenant but where one comes."""

    __slots__ = ("growth", "level", "tenant", "waits")

    def __init__(self, tenant: int) -> None:
        self.tenant = tenant
        self.level = self.growth = 0.0
        self.waits: deque[Sequence] = deque()


class FairShares:
    """Each decoding sequence of a tenant adds ``output_weight`` to the growth of its ``Share``: O(1) per join, leave and charge.

    Counters only rise, so who has the least of those that wait keeps it until its own counter nears what the next one had when
    all were looked at, however the others are charged meanwhile. ``first`` (``None``: nobody is known to be) surely has the
    least in the iterations from ``since`` to ``until``.
    """

    __slots__ = (
        "_last_gone", "_output_weight", "_prompt_weight", "_second", "_tenants", "first", "now_ns", "since", "tick", "until",
        "waiting",
    )  # fmt: skip

    def __init__(self, prompt_weight: float, output_weight: float) -> None:
        self._prompt_weight = prompt_weight
        self._output_weight = output_weight
        self._tenants: dict[int, Share] = {}
        self.waiting: dict[int, Share] = {}
        """Those of tenants who have somebody waiting."""
        self._last_gone: Share | None = None
        self.tick = 0
        """Iterations of the decode set so far."""
        self.now_ns = 0
        self.first: Share | None = None
        self.since, self.until = 0, -1
        self._second = 0.0
        """What no other tenant that waits is below from ``since`` on."""

    def of(self, tenant: int) -> Share:
        """The share of ``tenant``, to be changed."""
        share = self._tenants.get(tenant)
        if share is None:
            share = self._tenants[tenant] = Share(tenant)
        return share

    def counter(self, tenant: int) -> float:
        """Weighted tokens served to ``tenant``."""
        share = self._tenants.get(tenant)
        return 0.0 if share is None else share.level + share.growth * self.tick

    def look(self) -> SequenceOf[Share]:
        """Those of the waiting tenants whose counter is the smallest. If that is one, it is ``first`` from here; of several, one
        is, for this iteration only."""
        tick = self.since = self.until = self.tick
        smallest = second = _INFINITE
        first = None
        for share in self.waiting.values():
            counter = share.level + share.growth * tick
            if counter < smallest:
                second = smallest
                smallest = counter
                first = share
            elif counter < second:
                second = counter
        self.first, self._second = first, second
        assert first is not None
        if second == smallest:
            return [share for share in self.waiting.values() if share.level + share.growth * tick == smallest]
        ahead = second - smallest - self._output_weight
        if ahead > 0:
            self.until = tick + _whole(ahead, first.growth)
        return ()

    def _renew(self, first: Share) -> None:
        """How long ``first`` stays so. A token before it could be level with the next one it is looked for again: sums are
        rounded."""
        growth, tick = first.growth, self.tick
        ahead = self._second - (first.level + growth * tick) - self._output_weight
        self.until = tick + _whole(ahead, growth) if ahead > 0 else -1

    def forget(self) -> None:
        """Who has the least has to be looked for."""
        self.first, self.until = None, -1

    def comes(self, share: Share, floor: float | None) -> None:
        """Its tenant had nobody waiting: it does not keep credit from its absence, but starts from the least of those who wait
        (``floor``; ``None``: nobody does, and the last who did counts)."""
        tick = self.tick
        counter = share.level + share.growth * tick
        if floor is None:
            gone = self._last_gone
            floor = counter if gone is None else gone.level + gone.growth * tick
        if floor > counter:
            share.level += floor - counter
            counter = share.level + share.growth * tick
        self.waiting[share.tenant] = share
        first = self.first
        if first is not None:
            if tick < self.since:
                self.forget()
            elif counter <= self._second:
                self._second = counter
                self._renew(first)
            self.since = tick

    def comes_alone(self, share: Share) -> None:
        """Its tenant comes, and nobody else waits: it is first."""
        self.comes(share, None)
        tick = self.since = self.tick
        self.first, self._second, self.until = share, _INFINITE, tick + _FOR_EVER

    def goes(self, share: Share) -> None:
        """Nobody of its tenant waits any more."""
        self._last_gone = share
        del self.waiting[share.tenant]
        if share is self.first:
            self.first, self.until = None, -1

    def admitted(self, seq: Sequence) -> None:
        """The prompt is charged at the first admission."""
        share: Share = seq.share
        share.level += self._prompt_weight * seq.prompt_tokens
        if share is self.first:
            self._renew(share)

    def sampled(self, seq: Sequence, tick: int, decodes: bool) -> None:
        """``seq`` gets an output token in ``tick``, outside the decode set, and, if it ``decodes`` then, in every iteration
        after."""
        self.tick = tick
        share: Share = seq.share
        weight = self._output_weight
        if decodes:
            share.level -= weight * (tick - 1)
            share.growth += weight
        else:
            share.level += weight
        if share is self.first:
            self._renew(share)

    def left(self, seq: Sequence, tick: int) -> None:
        """``seq`` got its last such token in ``tick``."""
        self.tick = tick
        share, weight = seq.share, self._output_weight
        share.level += weight * tick
        share.growth -= weight


def _whole(ahead: float, growth: float) -> int:
    """Iterations until ``growth`` has made up for ``ahead``."""
    if growth * _FOR_EVER <= ahead:
        return _FOR_EVER
    return int(ahead / growth)

"""Per-tenant virtual token counters for fair sharing, as running sums: a decoding tenant's is implied by the iteration number."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from replay_engine.types import Sequence

__all__ = ["FairShares"]


class FairShares:
    """``counter(t) = level + growth x t`` at iteration ``t``, where each decoding sequence of the tenant adds ``output_weight``
    to its growth: O(1) per join, leave and charge.

    Counters only rise, so who has the least of those that wait keeps it until its own counter nears what the next one had when
    all were looked at, however the others are charged meanwhile. ``leader`` (-2: nobody is known to be) is surely the first in
    the iterations from ``since`` to ``until``.
    """

    __slots__ = (
        "_last_gone", "_output_weight", "_prompt_weight", "_second", "_tenants", "leader", "now_ns", "since", "tick", "until",
        "waiting",
    )  # fmt: skip

    def __init__(self, prompt_weight: float, output_weight: float) -> None:
        self._prompt_weight = prompt_weight
        self._output_weight = output_weight
        self._tenants: dict[int, list[float]] = {}
        """By tenant: level, and growth per iteration."""
        self.waiting: dict[int, list[float]] = {}
        """Those of tenants who have somebody waiting."""
        self._last_gone: int | None = None
        self.tick = 0
        """Iterations of the decode set so far."""
        self.now_ns = 0
        self.leader = -2
        self.since, self.until = 0, -1
        self._second = 0.0
        """What no other tenant that waits is below from ``since`` on."""

    def counter(self, tenant: int) -> float:
        """Weighted tokens served to ``tenant``."""
        level, growth = self._tenants.get(tenant, _NOTHING)
        return level + growth * self.tick

    def look(self) -> SequenceOf[int]:
        """Those of the waiting tenants whose counter is the smallest. If that is one, it leads from here; of several, the last
        does, for this iteration only."""
        tick = self.since = self.until = self.tick
        smallest = second = _INFINITE
        first, own = -2, list(_NOTHING)
        for tenant, line in self.waiting.items():
            level, growth = line
            counter = level + growth * tick
            if counter < smallest:
                smallest, second, first, own = counter, smallest, tenant, line
            elif counter < second:
                second = counter
        self.leader, self._second = first, second
        if second == smallest:
            return [tenant for tenant, (level, growth) in self.waiting.items() if level + growth * tick == smallest]
        self._renew(own)
        if self.until < tick:
            self.until = tick
        return (first,)

    def _renew(self, own: SequenceOf[float]) -> None:
        """How long the leader, whose line is ``own``, stays first. A token before it could be level with the next one it is
        looked for again: sums are rounded."""
        level, growth = own
        tick = self.tick
        ahead = self._second - (level + growth * tick) - self._output_weight
        if ahead <= 0:
            self.until = -1
        else:
            self.until = tick + (int(min(ahead / growth, _FOR_EVER)) if growth > 0 else _FOR_EVER)

    def forget(self) -> None:
        """Who leads has to be looked for."""
        self.leader, self.until = -2, -1

    def comes(self, tenant: int, floor: float | None) -> None:
        """``tenant`` had nobody waiting: it does not keep credit from its absence, but starts from the least of those who wait
        (``floor``)."""
        if floor is None and self._last_gone is not None:
            floor = self.counter(self._last_gone)
        tick = self.tick
        entry = self.waiting[tenant] = self._entry(tenant)
        counter = entry[0] + entry[1] * tick
        if floor is not None and floor > counter:
            entry[0] += floor - counter
            counter = entry[0] + entry[1] * tick
        leader = self.leader
        if leader != -2:
            if tick < self.since:
                self.forget()
            elif counter <= self._second:
                self._second = counter
                self._renew(self._tenants[leader])
            self.since = tick

    def comes_alone(self, tenant: int) -> None:
        """``tenant`` comes, and nobody else waits: it leads."""
        self.comes(tenant, None)
        self.leader, self._second, self.since, self.until = tenant, _INFINITE, self.tick, self.tick + _FOR_EVER

    def goes(self, tenant: int) -> None:
        """Nobody of ``tenant`` waits any more."""
        self._last_gone = tenant
        del self.waiting[tenant]
        if tenant == self.leader:
            self.leader, self.until = -2, -1

    def _entry(self, tenant: int) -> list[float]:
        """The entry of ``tenant``, to be changed."""
        entry = self._tenants.get(tenant)
        if entry is None:
            entry = self._tenants[tenant] = [0.0, 0.0]
        return entry

    def admitted(self, seq: Sequence) -> None:
        """The prompt is charged at the first admission."""
        tenant = seq.request.tenant
        entry = self._entry(tenant)
        entry[0] += self._prompt_weight * seq.prompt_tokens
        if tenant == self.leader:
            self._renew(entry)

    def sampled(self, seq: Sequence, tick: int, *, decodes: bool) -> None:
        """``seq`` gets an output token in ``tick``, outside the decode set, and, if it ``decodes`` then, in every iteration
        after."""
        self.tick = tick
        tenant, weight = seq.request.tenant, self._output_weight
        entry = self._entry(tenant)
        if decodes:
            entry[0] -= weight * (tick - 1)
            entry[1] += weight
        else:
            entry[0] += weight
        if tenant == self.leader:
            self._renew(entry)

    def left(self, seq: Sequence, tick: int) -> None:
        """``seq`` got its last such token in ``tick``."""
        self.tick = tick
        weight = self._output_weight
        entry = self._tenants[seq.request.tenant]
        entry[0] += weight * tick
        entry[1] -= weight


_NOTHING = (0.0, 0.0)
_INFINITE = float("inf")
_FOR_EVER = 1 << 40

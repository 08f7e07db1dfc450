"""Per-tenant virtual token counters for fair sharing, as running sums: a decoding tenant's is implied by the iteration number."""

from __future__ import annotations

from collections.abc import Container, Iterable

from replay_engine.types import Sequence

__all__ = ["FairShares"]


class FairShares:
    """``counter(t) = level + growth x t`` at iteration ``t``, where each decoding sequence of the tenant adds ``output_weight``
    to its growth: O(1) per join, leave and look.

    The queue that asks for the least of ``waiting`` tenants notes the ``leader``. ``changes`` counts what may end its lead
    sooner: others that are charged more do not.
    """

    __slots__ = (
        "_last_gone", "_output_weight", "_prompt_weight", "_tenants", "changes", "leader", "now_ns", "tick", "waiting",
    )  # fmt: skip

    def __init__(self, prompt_weight: float, output_weight: float) -> None:
        self._prompt_weight = prompt_weight
        self._output_weight = output_weight
        self._tenants: dict[int, list[float]] = {}
        """By tenant: level, and growth per iteration."""
        self._last_gone: int | None = None
        self.tick = 0
        """Iterations of the decode set so far."""
        self.now_ns = 0
        self.changes = 0
        self.leader = -2
        self.waiting: Container[int] = ()

    def counter(self, tenant: int) -> float:
        """Weighted tokens served to ``tenant``."""
        level, growth = self._tenants.get(tenant, _NOTHING)
        return level + growth * self.tick

    def least(self, tenants: Iterable[int]) -> tuple[list[int], int]:
        """Those of ``tenants`` whose counter is the smallest, and, if that is one, the last iteration, from ``tick`` on, in which
        it surely still is, unless ``changes`` says otherwise."""
        entries, tick = self._tenants, self.tick
        smallest = second = slowest = _INFINITE
        own, first, alike = 0.0, -1, None
        for tenant in tenants:
            level, growth = entries[tenant]
            counter = level + growth * tick
            if growth < slowest:
                slowest = growth
            if counter < smallest:
                smallest, second, own, first, alike = counter, smallest, growth, tenant, None
            elif counter < second:
                if counter == smallest:
                    alike = [first, tenant] if alike is None else [*alike, tenant]
                else:
                    second = counter
        if alike is not None:
            return alike, tick
        faster = own - slowest
        # one early: the division is rounded
        return [first], tick + (max(int(min((second - smallest) / faster, _FOR_EVER)) - 1, 0) if faster > 0 else _FOR_EVER)

    def _entry(self, tenant: int) -> list[float]:
        """The entry of ``tenant``, to be changed."""
        entry = self._tenants.get(tenant)
        if entry is None:
            entry = self._tenants[tenant] = [0.0, 0.0]
        return entry

    def comes(self, tenant: int, floor: float | None) -> None:
        """``tenant`` had nobody waiting: it does not keep credit from its absence, but starts from the least of those who wait
        (``floor``)."""
        if floor is None and self._last_gone is not None:
            floor = self.counter(self._last_gone)
        entry = self._entry(tenant)
        self.changes += 1
        if floor is not None:
            entry[0] += max(floor - (entry[0] + entry[1] * self.tick), 0.0)

    def goes(self, tenant: int) -> None:
        """Nobody of ``tenant`` waits any more."""
        self._last_gone = tenant

    def admitted(self, seq: Sequence) -> None:
        """The prompt is charged at the first admission."""
        self._entry(seq.request.tenant)[0] += self._prompt_weight * seq.prompt_tokens
        self.changes += 1

    def sampled(self, seq: Sequence, tick: int, *, decodes: bool) -> None:
        """``seq`` gets an output token in ``tick``, outside the decode set, and, if it ``decodes`` then, in every iteration
        after."""
        self.tick = tick
        tenant, weight = seq.request.tenant, self._output_weight
        entry = self._entry(tenant)
        if tenant == self.leader:
            self.changes += 1
        if decodes:
            entry[0] -= weight * (tick - 1)
            entry[1] += weight
        else:
            entry[0] += weight

    def left(self, seq: Sequence, tick: int) -> None:
        """``seq`` got its last such token in ``tick``."""
        self.tick = tick
        tenant, weight = seq.request.tenant, self._output_weight
        entry = self._tenants[tenant]
        if tenant != self.leader and tenant in self.waiting:
            self.changes += 1
        entry[0] += weight * tick
        entry[1] -= weight


_NOTHING = (0.0, 0.0)
_INFINITE = float("inf")
_FOR_EVER = 1 << 40

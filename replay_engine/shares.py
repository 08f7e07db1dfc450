"""Per-tenant virtual token counters for fair sharing, as running sums: a decoding tenant's is implied by the iteration number."""

from __future__ import annotations

from collections.abc import Iterable

from replay_engine.types import Sequence

__all__ = ["FairShares"]


class FairShares:
    """``counter(t) = value + output_weight x decoding x (iterations since)``: O(1) per join, leave and look."""

    __slots__ = ("_last_gone", "_output_weight", "_prompt_weight", "_tenants", "changes", "now_ns", "tick")

    def __init__(self, prompt_weight: float, output_weight: float) -> None:
        self._prompt_weight = prompt_weight
        self._output_weight = output_weight
        self._tenants: dict[int, list[float]] = {}
        """By tenant: value, growth per iteration, and the iteration as of which both hold."""
        self._last_gone: int | None = None
        self.tick = 0
        """Iterations of the decode set so far."""
        self.now_ns = 0
        self.changes = 0
        """Counts whatever is charged or comes to be charged differently."""

    def counter(self, tenant: int) -> float:
        """Weighted tokens served to ``tenant``."""
        value, growth, at = self._tenants.get(tenant, _NOTHING)
        return value + growth * (self.tick - at)

    def least(self, tenants: Iterable[int]) -> list[int]:
        """Those of ``tenants`` whose counter is the smallest."""
        entries, tick = self._tenants, self.tick
        smallest, found = float("inf"), [-1]
        for tenant in tenants:
            value, growth, at = entries[tenant]
            counter = value + growth * (tick - at)
            if counter < smallest:
                smallest, found = counter, [tenant]
            elif counter == smallest:
                found.append(tenant)
        return found

    def least_until(self, tenant: int, others: Iterable[int]) -> int:
        """The last iteration, from ``tick`` on, in which the counter of ``tenant`` is surely the least, as it is now."""
        growth, now = self._tenants.get(tenant, _NOTHING)[1], self.counter(tenant)
        until = self.tick + (1 << 40)
        for other in others:
            faster = growth - self._tenants.get(other, _NOTHING)[1]
            if faster > 0:
                ahead = self.counter(other) - now
                until = min(until, self.tick + max(int(ahead / faster) - 1, 0))  # one early: the division is rounded
        return until

    def _settled(self, tenant: int) -> list[float]:
        """The entry of ``tenant``, to be changed as of this iteration."""
        self.changes += 1
        entry = self._tenants.get(tenant)
        if entry is None:
            entry = self._tenants[tenant] = [0.0, 0.0, self.tick]
        entry[0] += entry[1] * (self.tick - entry[2])
        entry[2] = self.tick
        return entry

    def comes(self, tenant: int, waiting: Iterable[int]) -> None:
        """``tenant`` had nobody waiting: it does not keep credit from its absence."""
        floor = min((self.counter(other) for other in waiting), default=None)
        if floor is None and self._last_gone is not None:
            floor = self.counter(self._last_gone)
        entry = self._settled(tenant)
        if floor is not None and floor > entry[0]:
            entry[0] = floor

    def goes(self, tenant: int) -> None:
        """Nobody of ``tenant`` waits any more."""
        self._last_gone = tenant

    def admitted(self, seq: Sequence) -> None:
        """The prompt is charged at the first admission."""
        self._settled(seq.request.tenant)[0] += self._prompt_weight * seq.prompt_tokens

    def token(self, seq: Sequence) -> None:
        """One output token outside the decode set."""
        self._settled(seq.request.tenant)[0] += self._output_weight

    def joined(self, seq: Sequence, tick: int) -> None:
        """``seq`` gets a token in every iteration after ``tick``."""
        self.tick = tick
        self._settled(seq.request.tenant)[1] += self._output_weight

    def left(self, seq: Sequence, tick: int) -> None:
        """``seq`` got its last such token in ``tick``."""
        self.tick = tick
        self._settled(seq.request.tenant)[1] -= self._output_weight


_NOTHING = (0.0, 0.0, 0)

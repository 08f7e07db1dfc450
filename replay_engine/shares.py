"""Per-tenant virtual token counters for fair sharing, kept as running sums: a decoding tenant's counter is implied by the iteration number."""

from __future__ import annotations

from collections.abc import Iterable

from replay_engine.types import Sequence

__all__ = ["FairShares"]


class FairShares:
    """``counter(t) = value + output_weight x decoding x (iterations since)``: O(1) per join, leave and look."""

    __slots__ = ("_at", "_decoding", "_last_gone", "_output_weight", "_prompt_weight", "_value", "now_ns", "tick")

    def __init__(self, prompt_weight: float, output_weight: float) -> None:
        self._prompt_weight = prompt_weight
        self._output_weight = output_weight
        self._value: dict[int, float] = {}
        self._decoding: dict[int, int] = {}
        self._at: dict[int, int] = {}
        self._last_gone: int | None = None
        self.tick = 0
        """Iterations of the decode set so far."""
        self.now_ns = 0

    def counter(self, tenant: int) -> float:
        """Weighted tokens served to ``tenant``."""
        served = self._decoding.get(tenant, 0) * (self.tick - self._at.get(tenant, 0))
        return self._value.get(tenant, 0.0) + self._output_weight * served

    def _settle(self, tenant: int) -> None:
        self._value[tenant] = self.counter(tenant)
        self._at[tenant] = self.tick

    def comes(self, tenant: int, waiting: Iterable[int]) -> None:
        """``tenant`` had nobody waiting: it does not keep credit from its absence."""
        floor = min((self.counter(other) for other in waiting), default=None)
        if floor is None and self._last_gone is not None:
            floor = self.counter(self._last_gone)
        self._settle(tenant)
        if floor is not None and floor > self._value[tenant]:
            self._value[tenant] = floor

    def goes(self, tenant: int) -> None:
        """Nobody of ``tenant`` waits any more."""
        self._last_gone = tenant

    def admitted(self, seq: Sequence) -> None:
        """The prompt is charged at the first admission."""
        tenant = seq.request.tenant
        self._value[tenant] = self._value.get(tenant, 0.0) + self._prompt_weight * seq.prompt_tokens

    def token(self, seq: Sequence) -> None:
        """One output token outside the decode set."""
        tenant = seq.request.tenant
        self._value[tenant] = self._value.get(tenant, 0.0) + self._output_weight

    def joined(self, seq: Sequence, tick: int) -> None:
        """``seq`` gets a token in every iteration after ``tick``."""
        self.tick = tick
        self._settle(seq.request.tenant)
        self._decoding[seq.request.tenant] = self._decoding.get(seq.request.tenant, 0) + 1

    def left(self, seq: Sequence, tick: int) -> None:
        """``seq`` got its last such token in ``tick``."""
        self.tick = tick
        self._settle(seq.request.tenant)
        self._decoding[seq.request.tenant] -= 1

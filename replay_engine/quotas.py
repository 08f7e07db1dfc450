"""What a tenant may use: tokens per second with a burst, and requests at a time."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

from replay_engine.rules import FrontDoorRules

__all__ = ["DEFAULT_BURST_S", "Quotas", "TokenBucket"]

DEFAULT_BURST_S = 60
"""A bucket whose size is not given holds a minute of its rate: what providers call tokens per minute."""
_MICRO = 1_000_000
_UNIT = 10**15
"""A token in a bucket's own unit: what a rate of one millionth of a token per second brings in one ns."""


class TokenBucket:
    """Full at first; ``rate`` tokens flow in per second, at most ``burst`` are kept. Whole numbers only, so that every window of
    length t lets at most ``burst + rate * t`` tokens through, exactly. Times must not fall.
    """

    __slots__ = ("_at", "_level", "_most", "_rate")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = round(rate * _MICRO)
        self._most = self._level = round(burst * _MICRO) * (_UNIT // _MICRO)
        self._at = 0

    def level(self, at: int) -> int:
        """Whole tokens that are there at ``at`` (ns)."""
        self._refill(at)
        return self._level // _UNIT

    def take(self, tokens: int, at: int) -> bool:
        """Take ``tokens`` at ``at`` (ns), all or none."""
        self._refill(at)
        if tokens * _UNIT > self._level:
            return False
        self._level -= tokens * _UNIT
        return True

    def _refill(self, at: int) -> None:
        if at > self._at:
            self._level = min(self._most, self._level + (at - self._at) * self._rate)
            self._at = at


class Quotas:
    """Buckets and counts per tenant code; ``names`` by code, for the overrides. Requests of unknown tenants share one quota."""

    __slots__ = ("_buckets", "_default", "_limits", "_live")

    def __init__(self, rules: FrontDoorRules, names: SequenceOf[str]) -> None:
        self._default: dict[str, Any] = {
            "quota_tokens_per_s": rules.quota_tokens_per_s,
            "quota_burst_tokens": rules.quota_burst_tokens,
            "quota_concurrent": rules.quota_concurrent,
        }
        self._limits = {code: self._default | rules.quotas[name] for code, name in enumerate(names) if name in rules.quotas}
        self._buckets: dict[int, TokenBucket | None] = {}
        self._live: dict[int, int] = {}

    @staticmethod
    def wanted(rules: FrontDoorRules) -> bool:
        """Whether any tenant has a quota."""
        return rules.quota_tokens_per_s is not None or rules.quota_concurrent is not None or bool(rules.quotas)

    def full(self, tenant: int) -> tuple[int, int] | None:
        """Requests the tenant has in the engine and may have, when that is no more than it has."""
        limit = self._limits.get(tenant, self._default)["quota_concurrent"]
        live = self._live.get(tenant, 0)
        return (live, limit) if limit is not None and live >= limit else None

    def charge(self, tenant: int, tokens: int, at: int) -> int | None:
        """Take ``tokens`` off the tenant's bucket; the tokens left in it when they do not suffice, ``None`` when they do."""
        bucket = self._buckets[tenant] if tenant in self._buckets else self._new_bucket(tenant)
        if bucket is None or bucket.take(tokens, at):
            return None
        return bucket.level(at)

    def _new_bucket(self, tenant: int) -> TokenBucket | None:
        limits = self._limits.get(tenant, self._default)
        rate, burst = limits["quota_tokens_per_s"], limits["quota_burst_tokens"]
        if rate is None:
            self._buckets[tenant] = None
        else:
            self._buckets[tenant] = TokenBucket(rate, rate * DEFAULT_BURST_S if burst is None else burst)
        return self._buckets[tenant]

    def came(self, tenant: int) -> None:
        """A request of the tenant enters the engine."""
        self._live[tenant] = self._live.get(tenant, 0) + 1

    def left(self, tenant: int) -> None:
        """One of them has ended."""
        self._live[tenant] -= 1

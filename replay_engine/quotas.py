"""What a tenant may use: tokens per second with a burst, and requests at a time."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

from replay_engine.rules import FrontDoorRules
from replay_engine.tables import OutcomeReason
from replay_engine.types import NEVER

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
        level, wanted = self._level, tokens * _UNIT
        if at > self._at:
            level += (at - self._at) * self._rate
            if level > self._most:
                level = self._most
            self._at = at
        enough = wanted <= level
        self._level = level - wanted if enough else level
        return enough

    def _refill(self, at: int) -> None:
        if at > self._at:
            self._level = min(self._most, self._level + (at - self._at) * self._rate)
            self._at = at


class _Use:
    """A tenant's requests in the engine, how many it may have, and its bucket."""

    __slots__ = ("bucket", "limit", "live")

    def __init__(self, limits: dict[str, Any]) -> None:
        rate, burst = limits["quota_tokens_per_s"], limits["quota_burst_tokens"]
        self.live = 0
        self.limit: int = NEVER if limits["quota_concurrent"] is None else limits["quota_concurrent"]
        self.bucket = None if rate is None else TokenBucket(rate, rate * DEFAULT_BURST_S if burst is None else burst)


class Quotas:
    """Buckets and counts per tenant code; ``names`` by code, for the overrides. Requests of unknown tenants share one quota."""

    __slots__ = ("_default", "_limits", "_uses")

    def __init__(self, rules: FrontDoorRules, names: SequenceOf[str]) -> None:
        self._default: dict[str, Any] = {
            "quota_tokens_per_s": rules.quota_tokens_per_s,
            "quota_burst_tokens": rules.quota_burst_tokens,
            "quota_concurrent": rules.quota_concurrent,
        }
        self._limits = {code: self._default | rules.quotas[name] for code, name in enumerate(names) if name in rules.quotas}
        self._uses: dict[int, _Use] = {}

    @staticmethod
    def wanted(rules: FrontDoorRules) -> bool:
        """Whether any tenant has a quota."""
        return rules.quota_tokens_per_s is not None or rules.quota_concurrent is not None or bool(rules.quotas)

    def enter(self, tenant: int, tokens: int, at: int) -> tuple[OutcomeReason, int, int] | None:
        """A request of ``tokens`` comes at ``at`` (ns): it is counted and takes them off the tenant's bucket, ``None``; or
        neither, and the answer is why: the requests the tenant has and may have, or the tokens wanted and left."""
        use = self._uses.get(tenant)
        if use is None:
            use = self._uses[tenant] = _Use(self._limits.get(tenant, self._default))
        if use.live >= use.limit:
            return OutcomeReason.quota_concurrent, use.live, use.limit
        bucket = use.bucket
        if bucket is not None and not bucket.take(tokens, at):
            return OutcomeReason.quota_tokens, tokens, bucket.level(at)
        use.live += 1
        return None

    def left(self, tenant: int) -> None:
        """One of the tenant's requests has ended."""
        self._uses[tenant].live -= 1

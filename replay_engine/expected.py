"""What the front door knows beforehand: the output length to expect, and the earliest first token."""

from __future__ import annotations

from math import ceil

from replay_engine.config import SchedulerConfig
from replay_engine.profile import Latency
from replay_engine.rules import FrontDoorRules
from replay_engine.types import Request

__all__ = ["UNKNOWN_OUTPUT", "ExpectedOutput", "FirstTokenBound", "LengthQuantile", "least_prefill"]

UNKNOWN_OUTPUT = 256
"""Tokens expected of a request of which nothing is known, before anything has finished."""
_GROUP = 7
"""Bits of a group of lengths."""


class LengthQuantile:
    """The ``share`` quantile of whole lengths up to ``longest``: the smallest length that at least this share of them do not
    exceed.

    Exact and deterministic. Lengths are counted one by one, in groups, and in groups of groups; the answer is kept with how many
    lengths lie below it and up to it, so that it is looked for only when it has moved.
    """

    __slots__ = ("_at", "_below", "_count", "_levels", "_share", "_up_to")

    def __init__(self, share: float, longest: int) -> None:
        self._share = share
        self._count = self._at = self._below = self._up_to = 0
        self._levels = tuple([0] * ((longest >> bits) + 1) for bits in (0, _GROUP, 2 * _GROUP))

    def add(self, length: int) -> None:
        """One more length, from 1 to ``longest``."""
        self._count += 1
        ones, groups, all_groups = self._levels
        ones[length] += 1
        groups[length >> _GROUP] += 1
        all_groups[length >> 2 * _GROUP] += 1
        if length <= self._at:
            self._up_to += 1
            if length < self._at:
                self._below += 1

    def value(self) -> int | None:
        """The quantile, ``None`` while nothing was added."""
        if not self._count:
            return None
        rest = ceil(self._share * self._count) or 1
        if not self._below < rest <= self._up_to:
            self._look(rest)
        return self._at

    def _look(self, rest: int) -> None:
        """The length of rank ``rest``, by the coarsest counts first."""
        at = below = 0
        for counts in reversed(self._levels):
            at <<= _GROUP
            while below + counts[at] < rest:
                below += counts[at]
                at += 1
        self._at, self._below, self._up_to = at, below, below + self._levels[0][at]


class ExpectedOutput:
    """The output length to expect of a request, by ``front_door.expected``; never more than its ``max_tokens``, or than fits
    the model.

    ``max_tokens`` that are not known, and a prediction that is not there, give way to the next of: the trace's prediction, the
    quantile of the outputs finished so far, ``UNKNOWN_OUTPUT``.
    """

    __slots__ = ("_learnt", "_longest", "_source", "learn")

    def __init__(self, rules: FrontDoorRules, longest: int) -> None:
        self._source = rules.expected
        self._longest = longest
        quantile = LengthQuantile(rules.expected_quantile, longest)
        self._learnt = quantile.value
        self.learn = quantile.add
        """An answer of so many tokens is complete."""

    def of(self, request: Request) -> int:
        """Tokens, at least 1."""
        most = self._longest - request.prompt_tokens
        if request.max_tokens is not None:
            if request.max_tokens < most:
                most = request.max_tokens
            if self._source == "max_tokens":
                return max(most, 1)
        guess = request.predicted_tokens if self._source != "quantile" else None
        if guess is None:
            guess = self._learnt()
            if guess is None:
                guess = UNKNOWN_OUTPUT
        if guess > most:
            guess = most
        return guess if guess > 1 else 1


def least_prefill(request: Request, *, caching: bool) -> int:
    """Prompt tokens the engine computes even if the prefix cache holds everything another request may have left there."""
    prefix = request.prefix
    cached = 0 if prefix is None or not caching else prefix.shared_blocks * prefix.block_tokens
    return max(request.prompt_tokens - cached, 1)


class FirstTokenBound:
    """The earliest first token behind ``tokens`` of prefill: iterations of at most the token budget, each at the profile's cost
    of its tokens. Attention, decodes beside it and refusals only add to it, so that what is hopeless by it is hopeless. ``once``:
    the host time is paid once a batch and left out.
    """

    __slots__ = ("_asynchronous", "_budget", "_host_ns", "_latency", "_rounding")

    def __init__(self, latency: Latency, config: SchedulerConfig, *, once: bool) -> None:
        self._latency = latency
        self._budget = config.token_budget
        self._host_ns = 0.0 if once else latency.h0_ns
        self._asynchronous = config.async_scheduling
        parts = (latency.floor_ns, latency.a_ns, latency.b_ns, latency.h0_ns)
        self._rounding = 0.0 if all(part == int(part) for part in parts) else 0.5
        """An iteration's time is whole ns: rounding may take this off each."""

    def ns(self, tokens: int) -> int:
        """Nanoseconds to compute ``tokens`` of prefill: as few iterations as the budget allows, equally full, which is the
        cheapest way to share them out (an iteration's cost is convex in its tokens)."""
        if not tokens:
            return 0
        iterations = -(-tokens // self._budget)
        return int(iterations * (self._iteration(tokens / iterations) - self._rounding))

    def _iteration(self, tokens: float) -> float:
        latency = self._latency
        device = max(latency.floor_ns, latency.a_ns + latency.b_ns * tokens)
        return max(device, self._host_ns) if self._asynchronous else device + self._host_ns

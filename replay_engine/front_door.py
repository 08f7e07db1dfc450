"""What happens before a request reaches an engine: let in, cut, or turned away. Each is decided once, here, with its reason.

The checks stand in this order, and the first that fails decides: prompt and expected length, queue in requests and tokens,
KV, the TTFT SLO, the tenant's requests at a time, the tenant's tokens. The bucket is charged last, so that only what is let in
is charged. A request that is cut is judged by its new length. Queue and KV are as the engine left them after its last decision,
plus what came since.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.expected import ExpectedOutput, FirstTokenBound, least_prefill
from replay_engine.profile import Latency
from replay_engine.queue_view import QueueView
from replay_engine.quotas import Quotas
from replay_engine.rules import FrontDoorRules, Rules
from replay_engine.tables import Decision, OutcomeReason, Verdict
from replay_engine.types import NEVER, Request

__all__ = ["ADMIT", "DoorFacts", "FrontDoor"]

ADMIT = Verdict(Decision.admit)
"""Let in as it is; always this very object."""
_TIMES = ("queue_timeout_s", "timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorFacts:
    """What the front door is told besides the rules.

    ``latency``: the profile's coefficients. ``ttft_slo_ns``: per request index, or one for all; ``None``: nobody has one.
    ``tenants``: the names behind the tenant codes.
    """

    latency: Latency | None = None
    ttft_slo_ns: SequenceOf[int] | int | None = None
    tenants: SequenceOf[str] = ()


class FrontDoor:
    """Decides about one request after the other, in time order. ``active``: some rule may turn a request away or cut it.
    ``follows``: it wants to know when requests end.
    """

    __slots__ = (
        "_degrades", "_ended", "_expected", "_first_token", "_longest", "_longest_answer", "_longest_prompt", "_quotas", "_roomy",
        "_rules", "_slo_ns", "_view", "_waiting", "active", "follows",
    )  # fmt: skip

    def __init__(self, config: SchedulerConfig, rules: Rules, facts: DoorFacts, view: QueueView) -> None:
        own = self._rules = rules.front_door
        self._longest = config.max_model_len - 1
        self._view = view
        self.active = own != FrontDoorRules(**{name: getattr(own, name) for name in _TIMES})
        self._longest_prompt = min(self._longest if own.max_prompt_tokens is None else own.max_prompt_tokens, self._longest)
        self._longest_answer = NEVER if own.max_expected_tokens is None else own.max_expected_tokens
        self._waiting = view.waiting
        self._roomy = NEVER if own.max_queued_reqs is None else own.max_queued_reqs
        """Fewer requests waiting than that, and there is room for one more: 0 where that is not all that matters."""
        if own.max_queued_tokens is not None or own.reject_above_kv is not None:
            self._roomy = 0
        self._degrades = own.degrade_above_kv is not None or own.degrade_above_queue is not None
        self._expected = ExpectedOutput(own, config.max_model_len)
        self._quotas = Quotas(own, facts.tenants) if Quotas.wanted(own) else None
        self.follows = self._quotas is not None or own.max_expected_tokens is not None
        self._ended: deque[tuple[int, int, int]] = deque()
        """Ends that later requests may not know of yet, in time order: when, whose, and the tokens of a complete answer (else
        -1)."""
        self._first_token: FirstTokenBound | None = None
        self._slo_ns = facts.ttft_slo_ns
        if own.reject_hopeless:
            if facts.latency is None or facts.ttft_slo_ns is None:
                raise ConfigError("front_door.reject_hopeless = true: no TTFT SLO is given; expected one, as --slo ttft=500ms")
            self._first_token = FirstTokenBound(facts.latency, config, once=rules.batching.mode == "static")

    def decide(self, request: Request, at: int) -> Verdict:
        """What becomes of ``request``, which comes to the door at ``at`` (ns). One that is degraded has its lengths cut here."""
        prompt = request.prompt_tokens
        if prompt > self._longest:
            return _reject(OutcomeReason.prompt_too_long, prompt, self._longest)
        if not self.active:
            return ADMIT
        ends = self._ended
        if ends and ends[0][0] <= at:
            self._catch_up(at)
        if prompt > self._longest_prompt:
            return _reject(OutcomeReason.prompt_limit, prompt, self._longest_prompt)
        expected = self._expected.of(request) if self.follows else 0
        if expected > self._longest_answer:
            return _reject(OutcomeReason.expected_limit, expected, self._longest_answer)
        verdict = self._full(request) if len(self._waiting) >= self._roomy else None
        if verdict is None and self._first_token is not None:
            verdict = self._hopeless(request, at)
        if verdict is not None:
            return verdict
        cut = self._cut(request) if self._degrades else None
        if cut is not None:
            expected = min(expected, self._rules.degrade_to_tokens)
        over = self._quotas.enter(request.tenant, prompt + expected, at) if self._quotas is not None else None
        if over is not None:
            return _reject(*over)
        if cut is not None:
            self._degrade(request)
        return cut or ADMIT

    def ended(self, request: Request, at: int, tokens: int) -> None:
        """A request that was let in ended at ``at`` (ns), with a complete answer of ``tokens``, or (-1) without."""
        ends, entry = self._ended, (at, request.tenant, -1 if request.degraded else tokens)
        if ends and at < ends[-1][0]:
            bisect.insort(ends, entry)
        else:
            ends.append(entry)

    def _catch_up(self, at: int) -> None:
        """What has ended up to ``at`` (ns) is known."""
        ends, quotas, learn = self._ended, self._quotas, self._expected.learn
        while ends and ends[0][0] <= at:
            _, tenant, tokens = ends.popleft()
            if tokens > 0:
                learn(tokens)
            if quotas is not None:
                quotas.left(tenant)

    def _full(self, request: Request) -> Verdict | None:
        """Whether the queue, or the KV cache, has room for it."""
        rules, view = self._rules, self._view
        if rules.max_queued_reqs is not None and (queued := view.requests()) >= rules.max_queued_reqs:
            return _reject(OutcomeReason.queue_requests, queued, rules.max_queued_reqs)
        if rules.max_queued_tokens is not None:
            tokens = view.tokens() + request.prompt_tokens
            if tokens > rules.max_queued_tokens:
                return _reject(OutcomeReason.queue_tokens, tokens, rules.max_queued_tokens)
        if rules.reject_above_kv is not None and view.kv_used() > (most := int(rules.reject_above_kv * view.kv_total)):
            return _reject(OutcomeReason.kv_use, view.kv_used(), most)
        return None

    def _hopeless(self, request: Request, at: int) -> Verdict | None:
        """Whether the first token must come too late, whatever the engine does from here."""
        bound, slo = self._first_token, self._slo_ns
        if bound is None or slo is None:
            return None
        limit = slo if isinstance(slo, int) else int(slo[request.index])
        view = self._view
        tokens = view.ahead_of(request) + least_prefill(request, caching=view.caching)
        first = at - request.arrival_ns + bound.ns(tokens)
        return _reject(OutcomeReason.ttft_unreachable, first, limit) if first > limit else None

    def _cut(self, request: Request) -> Verdict | None:
        """Whether its answer is to be cut; one that may not be longer anyway is let in as it is."""
        rules, view = self._rules, self._view
        if request.max_tokens is not None and request.max_tokens <= rules.degrade_to_tokens:
            return None
        if rules.degrade_above_queue is not None and view.requests() > rules.degrade_above_queue:
            return Verdict(Decision.degrade, OutcomeReason.queue_requests, view.requests(), rules.degrade_above_queue)
        if rules.degrade_above_kv is not None and view.kv_used() > (most := int(rules.degrade_above_kv * view.kv_total)):
            return Verdict(Decision.degrade, OutcomeReason.kv_use, view.kv_used(), most)
        return None

    def _degrade(self, request: Request) -> None:
        """``degraded`` says that the answer really ends earlier; a shorter one is not touched by the cut."""
        most = self._rules.degrade_to_tokens
        request.degraded = min(request.output_tokens, self._longest + 1 - request.prompt_tokens) > most
        request.output_tokens = min(request.output_tokens, most)
        request.max_tokens = most


def _reject(reason: OutcomeReason, value: int, bound: int) -> Verdict:
    return Verdict(Decision.reject, reason, value, bound)

"""The policy tables beyond vLLM's knobs: ``[batching] [order] [preemption] [front_door] [client]
[link] [fleet] [pd] [kv_link]``.

Each is one frozen object of plain values, validated once; durations are seconds in the file and stay so here. Combinations
that make no sense are refused in ``combinations.py``, each with its reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from replay_engine.config import ConfigError
from replay_engine.fleet_rules import FleetRules
from replay_engine.pd_rules import KvLinkRules, Pd
from replay_engine.rule_checks import at_least, check_share, check_types, one_of

__all__ = ["QUOTA_KNOBS", "Batching", "Client", "FrontDoorRules", "Link", "Order", "Preemption", "Rules", "Tier"]

_MODES = ("continuous", "dynamic", "static")
_STEPS = ("mixed", "decode_first", "prefill_first", "interleave")
_ORDERS = ("engine", "fcfs", "priority", "deadline", "shortest_first", "fair")
QUOTA_KNOBS = ("quota_tokens_per_s", "quota_burst_tokens", "quota_concurrent")
"""What ``[front_door.quotas.TENANT]`` may set for a tenant."""
_VICTIMS = ("engine", "last", "lowest_priority", "least_progress", "most_kv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How batches form, how KV is laid out, and how prefill and decode share an iteration.

    ``static`` collects ``size`` requests and runs them to the end; ``dynamic`` also closes a batch ``window_s`` after its
    first request came. Both keep a finished sequence's place until the longest of its batch ends; ``answers``: a request is
    answered at its ``own`` end, or when its ``batch`` ends. ``step``: ``mixed`` is vLLM (list order), ``decode_first`` gives
    decodes their tokens before any prefill chunk, ``prefill_first`` decodes only in iterations without prefill,
    ``interleave`` takes ``interleave`` = ``"n:m"`` prefill and decode iterations in turn. ``decode_reserve`` tokens of the
    budget are never given to prefill. A prefill chunk that does not end its prompt is a multiple of ``chunk_align`` tokens.
    At most ``max_partial_prefills`` prompts are partly done at a time. ``output_reserve``: admission also counts the output
    still expected of all admitted requests (``max_tokens``, or ``predicted``), cut at ``output_reserve_clip`` tokens and
    scaled by ``output_reserve_ratio``. ``admit``: a plugin that may defer the head of the queue after the engine's own tests.
    """

    mode: Literal["continuous", "dynamic", "static"] = "continuous"
    size: int = 8
    window_s: float = 0.05
    answers: Literal["own", "batch"] = "own"
    kv_allocation: Literal["paged", "contiguous"] = "paged"
    step: Literal["mixed", "decode_first", "prefill_first", "interleave"] = "mixed"
    interleave: str = "1:1"
    decode_reserve: int = 0
    chunk_align: int = 1
    max_partial_prefills: int | None = None
    output_reserve: Literal["none", "max_tokens", "predicted"] = "none"
    output_reserve_clip: int | None = None
    output_reserve_ratio: float = 1.0
    admit: Literal["engine"] | str = "engine"

    def __post_init__(self) -> None:
        check_types("batching", self)
        one_of("batching", "mode", self.mode, _MODES)
        one_of("batching", "kv_allocation", self.kv_allocation, ("paged", "contiguous"))
        one_of("batching", "answers", self.answers, ("own", "batch"))
        one_of("batching", "step", self.step, _STEPS)
        one_of("batching", "admit", self.admit, ("engine",), plugin=True)
        one_of("batching", "output_reserve", self.output_reserve, ("none", "max_tokens", "predicted"))
        for name in ("size", "chunk_align", "max_partial_prefills", "output_reserve_clip"):
            at_least("batching", name, getattr(self, name), 1)
        for name in ("window_s", "decode_reserve", "output_reserve_ratio"):
            at_least("batching", name, getattr(self, name), 0)
        self.turns  # noqa: B018  # refuses a malformed pair

    @property
    def turns(self) -> tuple[int, int]:
        """``interleave`` as two numbers: prefill iterations, then decode iterations."""
        n, colon, m = self.interleave.partition(":")
        if not colon or not n.isdecimal() or not m.isdecimal() or not int(n) or not int(m):
            raise ConfigError(f"batching.interleave = {self.interleave!r}: expected n:m, two whole numbers of at least 1, as 1:4")
        return int(n), int(m)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Room kept for requests of ``priority`` or more urgent (smaller): nobody below takes the last ``seqs`` seats or
    ``blocks`` blocks.
    """

    priority: int
    seqs: int = 0
    blocks: int = 0

    def __post_init__(self) -> None:
        check_types("order.reserved", self)
        for name in ("seqs", "blocks"):
            at_least("order.reserved", name, getattr(self, name), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Who is looked at first. ``engine`` is ``scheduler.policy``.

    ``deadline``: earliest first; with aging nobody counts as due later than ``aging_s`` after arrival, without it requests that
    have none come last.
    ``shortest_first`` by ``size``: ``prompt``, ``output`` (true length), ``predicted`` (the trace's prediction) or ``total``.
    ``fair``: the tenant with the smallest virtual counter of ``prompt_weight`` x prompt tokens + ``output_weight`` x output
    tokens. ``aging_s``: seconds of waiting worth one priority level, or 1,000 tokens of size; no aging by default.
    ``larger_first``: the trace's priorities are the larger the more urgent (SGLang's way; vLLM's is the other); they, and the
    tiers', are turned round as the trace is read. ``reserved``: room per tier.
    """

    by: Literal["engine", "fcfs", "priority", "deadline", "shortest_first", "fair"] | str = "engine"
    size: Literal["prompt", "output", "predicted", "total"] = "prompt"
    aging_s: float | None = None
    prompt_weight: float = 1.0
    output_weight: float = 2.0
    larger_first: bool = False
    reserved: tuple[Tier, ...] = ()

    def __post_init__(self) -> None:
        check_types("order", self)
        one_of("order", "by", self.by, _ORDERS, plugin=True)
        one_of("order", "size", self.size, ("prompt", "output", "predicted", "total"))
        if self.aging_s is not None and not self.aging_s > 0:
            raise ConfigError(f"order.aging_s = {self.aging_s!r}: expected seconds above 0")
        for name in ("prompt_weight", "output_weight"):
            at_least("order", name, getattr(self, name), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """What happens to a victim, and who it is.

    ``recompute`` drops its KV. ``swap`` moves it to a host pool of ``host_blocks`` over ``[link]`` (recompute when the pool
    is full). ``pause`` keeps its KV and gives up the seat; it makes sense where seats bind, and paused ones are evicted first
    when blocks run short. ``victim``: ``engine`` is ``last`` under fcfs and ``lowest_priority`` under priority, as vLLM.
    ``to_admit``: a strictly more urgent waiting request may preempt a running one.
    """

    mode: Literal["recompute", "swap", "pause"] = "recompute"
    victim: Literal["engine", "last", "lowest_priority", "least_progress", "most_kv"] | str = "engine"
    to_admit: bool = False
    host_blocks: int = 0

    def __post_init__(self) -> None:
        check_types("preemption", self)
        one_of("preemption", "mode", self.mode, ("recompute", "swap", "pause"))
        one_of("preemption", "victim", self.victim, _VICTIMS, plugin=True)
        at_least("preemption", "host_blocks", self.host_blocks, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The way between device and host: ``gb_per_s`` (1e9 bytes) and ``latency_s`` per transfer. Transfers queue, in each
    direction.
    """

    gb_per_s: float = 25.0
    latency_s: float = 0.0001

    def __post_init__(self) -> None:
        check_types("link", self)
        if not self.gb_per_s > 0:
            raise ConfigError(f"link.gb_per_s = {self.gb_per_s!r}: expected a bandwidth above 0")
        at_least("link", "latency_s", self.latency_s, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontDoorRules:
    """What is decided before a request reaches an engine. Everything is off by default.

    ``max_queued_reqs``/``max_queued_tokens``: reject beyond (503 in life). ``quota_tokens_per_s`` with
    ``quota_burst_tokens``, and ``quota_concurrent``: per tenant, ``quotas`` overrides them by tenant name.
    ``max_prompt_tokens``, ``max_expected_tokens``: reject longer ones. ``degrade_above_kv``/``degrade_above_queue``: cut the
    output to ``degrade_to_tokens`` when the KV share in use, or the requests waiting, exceed it. ``reject_above_kv``: reject
    when the KV share in use exceeds it. ``reject_hopeless``: reject when the TTFT SLO cannot be met any more by the profile's
    estimate. ``expected``: what stands for the output length: ``max_tokens``, ``predicted``, or ``quantile`` (the
    ``expected_quantile`` of those finished so far). ``queue_timeout_s``: give up on requests not admitted by then;
    ``timeout_s``: not ended by then.
    """

    max_queued_reqs: int | None = None
    max_queued_tokens: int | None = None
    max_prompt_tokens: int | None = None
    max_expected_tokens: int | None = None
    quota_tokens_per_s: float | None = None
    quota_burst_tokens: float | None = None
    quota_concurrent: int | None = None
    quotas: dict[str, dict[str, Any]] = field(default_factory=dict)
    degrade_above_kv: float | None = None
    degrade_above_queue: int | None = None
    degrade_to_tokens: int = 128
    reject_above_kv: float | None = None
    reject_hopeless: bool = False
    expected: Literal["max_tokens", "predicted", "quantile"] = "max_tokens"
    expected_quantile: float = 0.9
    queue_timeout_s: float | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        check_types("front_door", self)
        one_of("front_door", "expected", self.expected, ("max_tokens", "predicted", "quantile"))
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in ("quotas", "expected", "reject_hopeless"):
                at_least("front_door", each.name, value, 0)
        at_least("front_door", "degrade_to_tokens", self.degrade_to_tokens, 1)
        for name in ("degrade_above_kv", "reject_above_kv", "expected_quantile"):
            check_share("front_door", name, getattr(self, name))
        for tenant, own in self.quotas.items():
            _check_quota(tenant, own)


def _check_quota(tenant: str, own: dict[str, Any]) -> None:
    table = f"front_door.quotas.{tenant}"
    for name, value in own.items():
        if name not in QUOTA_KNOBS:
            raise ConfigError(f"{table}.{name}: unknown knob; expected {', '.join(QUOTA_KNOBS)}")
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value)):
            raise ConfigError(f"{table}.{name} = {value!r}: expected a number")
        at_least(table, name, value, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """``max_in_flight``: the client holds requests back beyond so many. ``arrival``: the clock of a held request starts when
    it was ``meant`` to be sent, or when its ``slot`` frees.
    """

    max_in_flight: int | None = None
    arrival: Literal["meant", "slot"] = "meant"

    def __post_init__(self) -> None:
        check_types("client", self)
        at_least("client", "max_in_flight", self.max_in_flight, 1)
        one_of("client", "arrival", self.arrival, ("meant", "slot"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All of them. The defaults are vLLM's behaviour exactly."""

    batching: Batching = field(default_factory=Batching)
    order: Order = field(default_factory=Order)
    preemption: Preemption = field(default_factory=Preemption)
    front_door: FrontDoorRules = field(default_factory=FrontDoorRules)
    client: Client = field(default_factory=Client)
    link: Link = field(default_factory=Link)
    fleet: FleetRules = field(default_factory=FleetRules)
    pd: Pd = field(default_factory=Pd)
    kv_link: KvLinkRules = field(default_factory=KvLinkRules)

    @property
    def several(self) -> bool:
        """Whether several engines run, so that rows name theirs (``replica``)."""
        return self.fleet.active or self.pd.prefill > 0

    @property
    def engine_count(self) -> int:
        """Engines of the service: those of both pools, or replicas."""
        return self.pd.prefill + self.pd.decode if self.pd.prefill else max(self.fleet.replicas, 1)

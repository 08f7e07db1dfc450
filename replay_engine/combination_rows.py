"""The rows of the table of combinations: what is refused, why and what to set instead; and what is allowed, and what it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from replay_engine.config import SchedulerConfig
from replay_engine.rules import Rules

__all__ = ["ALLOWED", "REFUSED", "Combination"]

Test = Callable[[SchedulerConfig, Rules], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Two settings together. ``first`` and ``second`` begin with a knob's name; ``example`` are ``--set`` pairs that show it.

    ``refused`` tells whether a policy has the combination; ``None``: it is allowed, and ``reason`` says what it does.
    """

    first: str
    second: str
    reason: str
    example: tuple[str, ...]
    expected: str = ""
    refused: Test | None = None


def _batches(rules: Rules) -> bool:
    return rules.batching.mode != "continuous"


def _order(config: SchedulerConfig, rules: Rules) -> str:
    return config.policy if rules.order.by == "engine" else rules.order.by


def _turns(rules: Rules) -> bool:
    return rules.batching.step in ("prefill_first", "interleave")


def _prefill_budget(config: SchedulerConfig, rules: Rules) -> int:
    return config.token_budget - rules.batching.decode_reserve


def _beyond_engine(rules: Rules) -> bool:
    plain = Rules()
    return (rules.batching, rules.order, rules.preemption) != (plain.batching, plain.order, plain.preemption)


def _apart(rules: Rules) -> bool:
    return rules.pd.prefill > 0


def _never_full(rules: Rules, most: int | None) -> bool:
    """A fixed batch that more than ``most`` requests never wait for."""
    return rules.batching.mode == "static" and most is not None and most < rules.batching.size


def _no(first: str, second: str, refused: Test, reason: str, expected: str, *example: str) -> Combination:
    return Combination(first=first, second=second, reason=reason, expected=expected, example=example, refused=refused)


def _yes(first: str, second: str, reason: str, *example: str) -> Combination:
    return Combination(first=first, second=second, reason=reason, example=example)


_STATIC = "batching.mode = static or dynamic"
_CONTIGUOUS = "batching.kv_allocation = contiguous"
_SWAP = "preemption.mode = swap"
_TURNS = "batching.step = prefill_first or interleave"

_BATCHING = (
    _no(_STATIC, "async_scheduling = true", lambda c, r: _batches(r) and c.async_scheduling,
        "a batch runs to its end and nobody joins it: there is no next plan to make ahead",
        "async_scheduling = false (left out, it is implied)", "batching.mode=static", "async_scheduling=true"),
    _no(_STATIC, "prefill_schedule_interval > 1", lambda c, r: _batches(r) and c.prefill_schedule_interval > 1,
        "a batch is prefilled when it is formed, not at intervals",
        "prefill_schedule_interval = 1", "batching.mode=static", "prefill_schedule_interval=4"),
    _no(_STATIC, "order.by = any but fcfs", lambda c, r: _batches(r) and _order(c, r) != "fcfs" and r.order.by != "engine",
        "a batch is made of who came first: any order among its members would end with the longest of them all the same",
        "order.by = fcfs", "batching.mode=dynamic", "order.by=shortest_first"),
    _no(_STATIC, "policy = priority", lambda c, r: _batches(r) and _order(c, r) != "fcfs",
        "a batch is made of who came first: any order among its members would end with the longest of them all the same",
        "policy = fcfs", "batching.mode=static", "policy=priority"),
    _no(_STATIC, "batching.step = any but mixed", lambda c, r: _batches(r) and r.batching.step != "mixed",
        "a batch is prefilled once and then only decodes: there is nothing to weigh against each other",
        "batching.step = mixed", "batching.mode=static", "batching.step=decode_first"),
    _no(_STATIC, "preemption.to_admit = true", lambda c, r: _batches(r) and r.preemption.to_admit,
        "nobody is admitted while a batch runs", "preemption.to_admit = false",
        "batching.mode=static", "preemption.to_admit=true"),
    _no("batching.size > max_num_seqs", "max_num_seqs", lambda c, r: _batches(r) and r.batching.size > c.seat_limit,
        "a batch needs a seat for each of its members", "batching.size of at most max_num_seqs",
        "batching.mode=static", "batching.size=16", "max_num_seqs=8"),
    _no("client.max_in_flight < batching.size", "batching.mode = static", lambda c, r: _never_full(r, r.client.max_in_flight),
        "the client never sends enough at a time to fill a batch, and a fixed batch waits until it is full",
        "client.max_in_flight of at least batching.size, or batching.mode = dynamic",
        "batching.mode=static", "batching.size=8", "client.max_in_flight=4"),
    _no("front_door.max_queued_reqs < batching.size", "batching.mode = static",
        lambda c, r: _never_full(r, r.front_door.max_queued_reqs),
        "requests are turned away before enough wait to fill a batch, and a fixed batch waits until it is full",
        "front_door.max_queued_reqs of at least batching.size, or batching.mode = dynamic",
        "batching.mode=static", "batching.size=8", "front_door.max_queued_reqs=4"),
    _no("batching.answers = batch", "batching.mode = continuous", lambda c, r: r.batching.answers == "batch" and not _batches(r),
        "continuous batching has no batch that ends", "batching.answers = own, or batching.mode = static or dynamic",
        "batching.answers=batch"),
    _no(_CONTIGUOUS, "enable_prefix_caching = true",
        lambda c, r: r.batching.kv_allocation == "contiguous" and c.enable_prefix_caching,
        "one stretch of memory belongs to one sequence and cannot be shared in part",
        "enable_prefix_caching = false (left out, it is implied)",
        "batching.kv_allocation=contiguous", "enable_prefix_caching=true"),
    _no(_CONTIGUOUS, _SWAP, lambda c, r: r.batching.kv_allocation == "contiguous" and r.preemption.mode == "swap",
        "the maximum length is reserved at admission, so KV never runs short and nobody is swapped out",
        "preemption.mode = recompute", "batching.kv_allocation=contiguous", "preemption.mode=swap", "preemption.host_blocks=100"),
    _no(_CONTIGUOUS, "scheduler_reserve_full_isl = false",
        lambda c, r: r.batching.kv_allocation == "contiguous" and not c.scheduler_reserve_full_isl,
        "the whole length is reserved at admission, so the whole prompt has to fit then",
        "scheduler_reserve_full_isl = true", "batching.kv_allocation=contiguous", "scheduler_reserve_full_isl=false"),
    _no(_CONTIGUOUS, "batching.output_reserve = max_tokens or predicted",
        lambda c, r: r.batching.kv_allocation == "contiguous" and r.batching.output_reserve != "none",
        "the maximum length is reserved already, and would be counted twice",
        "batching.output_reserve = none", "batching.kv_allocation=contiguous", "batching.output_reserve=max_tokens"),
)  # fmt: skip

_PREFILL = (
    _no(_TURNS, "prefill_schedule_interval > 1", lambda c, r: _turns(r) and c.prefill_schedule_interval > 1,
        "two rules would decide whether an iteration may prefill", "prefill_schedule_interval = 1",
        "batching.step=prefill_first", "prefill_schedule_interval=4"),
    _no("batching.decode_reserve > 0", _TURNS, lambda c, r: r.batching.decode_reserve > 0 and _turns(r),
        "an iteration that prefills has no decodes: the tokens kept for them would be lost", "batching.decode_reserve = 0",
        "batching.step=prefill_first", "batching.decode_reserve=64"),
    _no("batching.decode_reserve >= the token budget", "max_num_batched_tokens",
        lambda c, r: r.batching.decode_reserve >= c.token_budget,
        "nothing is left to prefill with", "a reserve that leaves at least one token",
        "batching.decode_reserve=8192", "max_num_batched_tokens=8192"),
    _no("batching.decode_reserve > 0", "enable_chunked_prefill = false",
        lambda c, r: r.batching.decode_reserve > 0 and not c.enable_chunked_prefill and _prefill_budget(c, r) < c.max_model_len,
        "without chunks a prompt of max_model_len has to fit what the reserve leaves of one iteration",
        "max_num_batched_tokens of at least max_model_len + decode_reserve",
        "batching.decode_reserve=64", "enable_chunked_prefill=false", "max_num_batched_tokens=4096", "max_model_len=4096"),
    _no("batching.chunk_align > the token budget", "max_num_batched_tokens",
        lambda c, r: r.batching.chunk_align > _prefill_budget(c, r),
        "no chunk of a long prompt would ever fit", "at most the token budget less decode_reserve",
        "batching.chunk_align=4096", "max_num_batched_tokens=2048"),
    _no("batching.chunk_align > long_prefill_token_threshold", "long_prefill_token_threshold",
        lambda c, r: 0 < c.long_prefill_token_threshold < r.batching.chunk_align,
        "a prompt's share of an iteration would be cut to nothing", "a threshold of at least chunk_align",
        "batching.chunk_align=512", "long_prefill_token_threshold=256"),
    _no("batching.chunk_align > 1", "enable_chunked_prefill = false",
        lambda c, r: r.batching.chunk_align > 1 and not c.enable_chunked_prefill,
        "there are no chunks to align", "batching.chunk_align = 1",
        "batching.chunk_align=64", "enable_chunked_prefill=false"),
)  # fmt: skip

_ORDER = (
    _no("order.reserved", "order.by = any but priority", lambda c, r: bool(r.order.reserved) and _order(c, r) != "priority",
        "a less urgent head that is refused the kept room would block the urgent requests it is kept for",
        "order.by = priority", "order.by=fcfs", "order.reserved=priority=0 seqs=2"),
    _no("order.by = fcfs, deadline, shortest_first, fair or a plugin", "policy = priority",
        lambda c, r: c.policy == "priority" and r.order.by not in ("engine", "priority"),
        "two orders at once", "policy = fcfs (vLLM's default)", "order.by=fair", "policy=priority"),
    _no("order.prompt_weight = 0", "order.output_weight = 0",
        lambda c, r: r.order.by == "fair" and not r.order.prompt_weight and not r.order.output_weight,
        "no tenant's counter would ever move", "at least one weight above 0",
        "order.by=fair", "order.prompt_weight=0", "order.output_weight=0"),
)  # fmt: skip

_PREEMPTION = (
    _no(_SWAP, "enable_prefix_caching = true", lambda c, r: r.preemption.mode == "swap" and c.enable_prefix_caching,
        "a swapped block would have two homes, the host pool and the cache",
        "enable_prefix_caching = false (left out, it is implied)",
        "preemption.mode=swap", "preemption.host_blocks=100", "enable_prefix_caching=true"),
    _no(_SWAP, "async_scheduling = true", lambda c, r: r.preemption.mode == "swap" and c.async_scheduling,
        "a plan made while the one before it runs cannot know when a copy is done",
        "async_scheduling = false", "preemption.mode=swap", "preemption.host_blocks=100", "enable_prefix_caching=false",
        "async_scheduling=true"),
    _no(_SWAP, _STATIC, lambda c, r: r.preemption.mode == "swap" and _batches(r),
        "a batch that was formed runs to its end; nobody comes back into it",
        "preemption.mode = recompute", "batching.mode=static", "preemption.mode=swap", "preemption.host_blocks=100"),
    _no(_SWAP, "preemption.host_blocks = 0", lambda c, r: r.preemption.mode == "swap" and not r.preemption.host_blocks,
        "there is nowhere to swap to", "preemption.host_blocks of at least 1", "preemption.mode=swap"),
    _no("preemption.mode = pause", "preemption.to_admit = false",
        lambda c, r: r.preemption.mode == "pause" and not r.preemption.to_admit,
        "a pause gives up a seat and nothing else, so only a request that wants the seat can cause one",
        "preemption.to_admit = true", "preemption.mode=pause"),
    _no("preemption.to_admit = true", "order.by = any but priority",
        lambda c, r: r.preemption.to_admit and _order(c, r) != "priority",
        "more urgent means a smaller priority; under another order the preempted request would come first again",
        "order.by = priority", "preemption.to_admit=true", "order.by=fcfs"),
    _no("engine_version = any but 0.33.0", "batching.*, order.*, preemption.*",
        lambda c, r: c.engine_version != "0.33.0" and _beyond_engine(r),
        "an older release is reproduced as it was; rules beyond vLLM stand on 0.33.0's semantics",
        "engine_version = 0.33.0", "engine_version=0.30.0", "batching.step=decode_first"),
)  # fmt: skip

_POOLS = ("pd.prefill=1", "pd.decode=1")
_APART = "pd.prefill > 0"

_PD = (
    _no(_APART, "fleet.replicas > 1", lambda c, r: _apart(r) and r.fleet.active,
        "the pools have their own numbers of engines, and their own routers", "fleet.replicas = 1",
        *_POOLS, "fleet.replicas=2"),
    _no(_APART, "batching.mode = static or dynamic", lambda c, r: _apart(r) and _batches(r),
        "a batch that runs to its end is prefilled and decoded by the engine that formed it", "batching.mode = continuous",
        *_POOLS, "batching.mode=static"),
    _no(_APART, "batching.kv_allocation = contiguous", lambda c, r: _apart(r) and r.batching.kv_allocation == "contiguous",
        "KV is moved between the pools in blocks", "batching.kv_allocation = paged",
        *_POOLS, "batching.kv_allocation=contiguous"),
    _no(_APART, "batching.step = any but mixed", lambda c, r: _apart(r) and r.batching.step != "mixed",
        "neither pool has both prefill and decode to weigh against each other", "batching.step = mixed",
        *_POOLS, "batching.step=prefill_first"),
    _no(_APART, "batching.output_reserve = max_tokens or predicted",
        lambda c, r: _apart(r) and r.batching.output_reserve != "none",
        "a decode engine takes blocks for a prompt before it has its KV, as vLLM does, whatever its output will need",
        "batching.output_reserve = none", *_POOLS, "batching.output_reserve=max_tokens"),
    _no(_APART, "preemption.mode = swap or pause", lambda c, r: _apart(r) and r.preemption.mode != "recompute",
        "what is preempted on a decode engine is computed again there, as in vLLM", "preemption.mode = recompute",
        *_POOLS, "preemption.mode=swap", "preemption.host_blocks=100"),
    _no(_APART, "preemption.to_admit = true", lambda c, r: _apart(r) and r.preemption.to_admit,
        "a request that takes a place on a decode engine has no KV yet and would keep it idle", "preemption.to_admit = false",
        *_POOLS, "preemption.to_admit=true", "order.by=priority"),
    _no(_APART, "order.reserved", lambda c, r: _apart(r) and bool(r.order.reserved),
        "a decode engine gives blocks before seats, so that kept seats would not keep room", "no reserved tiers",
        *_POOLS, "order.by=priority", "order.reserved=priority=0 seqs=2"),
    _no(_APART, "engine_version = any but 0.33.0", lambda c, r: _apart(r) and c.engine_version != "0.33.0",
        "how a release hands KV over is reproduced for 0.33.0 only", "engine_version = 0.33.0",
        *_POOLS, "engine_version=0.30.0"),
)  # fmt: skip

REFUSED: tuple[Combination, ...] = _BATCHING + _PREFILL + _ORDER + _PREEMPTION + _PD

ALLOWED: tuple[Combination, ...] = (
    _yes("pd.prefill > 0", "async_scheduling = true", "either pool makes its next plan ahead; KV is asked for when a plan starts",
         "pd.prefill=1", "pd.decode=2", "async_scheduling=true"),
    _yes("pd.prefill > 0", "enable_prefix_caching = true",
         "a prefill engine hits what it has handed over, a decode engine fetches only what it has not cached",
         "pd.prefill=2", "pd.decode=1", "pd.prefill_router=prefix_affinity"),
    _yes("pd.prefill > 0", "pools.prefill and pools.decode", "each pool its own budget, seats and blocks",
         "pd.prefill=1", "pd.decode=1", "prefill.max_num_seqs=8", "decode.max_num_seqs=64"),
    _yes("pd.prefill > 0", "order.by = any", "the order holds in either pool's queue", "pd.prefill=1", "pd.decode=1",
         "order.by=shortest_first"),
    _yes("batching.mode = static", _CONTIGUOUS, "batching before paged KV: a fixed batch, the maximum length reserved for each",
         "batching.mode=static", "batching.size=4", "batching.kv_allocation=contiguous"),
    _yes("batching.mode = dynamic", "batching.answers = batch", "a batch closes by size or window; its answers come at its end",
         "batching.mode=dynamic", "batching.size=4", "batching.window_s=20ms", "batching.answers=batch"),
    _yes("batching.mode = static", "max_num_batched_tokens", "a batch is prefilled in chunks over several iterations if need be",
         "batching.mode=static", "max_num_batched_tokens=1024"),
    _yes("batching.mode = continuous", _CONTIGUOUS, "what paging is measured against: waste and fragmentation are in the matrix",
         "batching.kv_allocation=contiguous"),
    _yes("batching.step = decode_first", "batching.chunk_align", "decodes are served before any chunk; chunks in whole multiples",
         "batching.step=decode_first", "batching.chunk_align=64"),
    _yes("batching.step = decode_first", "prefill_schedule_interval > 1", "prefill at intervals, decodes first in each",
         "batching.step=decode_first", "prefill_schedule_interval=4"),
    _yes("batching.step = prefill_first", "batching.output_reserve = max_tokens", "SGLang's way, with max_partial_prefills = 1",
         "batching.step=prefill_first", "batching.max_partial_prefills=1", "batching.output_reserve=max_tokens",
         "batching.output_reserve_clip=4096", "batching.output_reserve_ratio=0.7"),
    _yes("batching.step = interleave", "async_scheduling = true", "turns are counted in plans, made ahead or not",
         "batching.step=interleave", "batching.interleave=1:4"),
    _yes("batching.step = prefill_first", "enable_chunked_prefill = false", "whole prompts, then decodes: long gaps in decode",
         "batching.step=prefill_first", "enable_chunked_prefill=false"),
    _yes("batching.decode_reserve > 0", "long_prefill_token_threshold > 0", "the cap per request within what the reserve leaves",
         "batching.decode_reserve=64", "long_prefill_token_threshold=512"),
    _yes("order.by = priority", "order.reserved", "room for the urgent; with aging, nobody starves outside it",
         "order.by=priority", "order.aging_s=30", "order.reserved=priority=0 seqs=4 blocks=64"),
    _yes("order.by = priority", "policy = priority", "the same order twice; aging_s adds to it", "order.by=priority",
         "policy=priority", "order.aging_s=10"),
    _yes("order.by = deadline", "order.aging_s", "requests without a deadline are due aging_s after arrival; without aging, last",
         "order.by=deadline", "order.aging_s=10"),
    _yes("order.by = shortest_first", "order.aging_s", "aging_s of waiting is worth 1,000 tokens: long ones get their turn",
         "order.by=shortest_first", "order.size=total", "order.aging_s=5"),
    _yes("order.by = fair", "order.aging_s", "the smallest counter first; aging bounds what a heavy tenant can wait",
         "order.by=fair", "order.aging_s=60"),
    _yes("order.by = fair", _SWAP, "a preempted request keeps its place in its tenant's queue",
         "order.by=fair", "preemption.mode=swap", "preemption.host_blocks=1000"),
    _yes("preemption.mode = pause", "preemption.to_admit = true", "an urgent request takes a seat; the paused one keeps its KV",
         "preemption.mode=pause", "preemption.to_admit=true", "order.by=priority"),
    _yes(_SWAP, "preemption.to_admit = true", "an urgent request takes seat and blocks; the victim's KV goes to the host",
         "preemption.mode=swap", "preemption.host_blocks=1000", "preemption.to_admit=true", "order.by=priority"),
    _yes("preemption.victim = any", "order.by = any", "who goes first in need of blocks is chosen apart from who comes first",
         "preemption.victim=most_kv", "order.by=shortest_first"),
    _yes("front_door.*", "batching.mode = any", "decided before the engine, whatever it does",
         "front_door.max_queued_reqs=64", "front_door.queue_timeout_s=10s", "batching.mode=dynamic"),
    _yes("fleet.replicas > 1", "client.max_in_flight", "held in front of the router: so many in flight in all replicas together",
         "fleet.replicas=2", "client.max_in_flight=8"),
    _yes("fleet.replicas > 1", "front_door.*", "every replica has its own front door, with its own quotas and queue bounds",
         "fleet.replicas=2", "fleet.router=least_tokens", "front_door.max_queued_reqs=64"),
    _yes("client.max_in_flight", "order.by = any", "the client's own queue comes before the engine's",
         "client.max_in_flight=8", "order.by=priority"),
    _yes("engine_version = any but 0.33.0", "front_door.*, client.*", "in front of the engine, whatever its release",
         "engine_version=0.30.0", "front_door.max_queued_reqs=64"),
)  # fmt: skip

"""Which settings go together: every pair that is refused, each with its reason, and the pairs worth knowing that are not.

``TABLE`` is the whole list; ``docs/policies.md`` is made from it, and a test tries every row. ``check`` refuses, ``implied``
fills in what a rule leaves only one value for, ``remarks`` says what has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay_engine.combination_rows import ALLOWED, REFUSED, Combination
from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.plugins import plugin_name
from replay_engine.rules import Rules, Tier

__all__ = ["TABLE", "Combination", "check", "implied", "remarks"]

TABLE: tuple[Combination, ...] = REFUSED + ALLOWED

Settings = Mapping[str, Any]


def check(scheduler: SchedulerConfig, rules: Rules) -> None:
    """Raise ``ConfigError`` for the first refused combination: one line with both settings and the reason."""
    for row in REFUSED:
        if row.refused is not None and row.refused(scheduler, rules):
            both = f"{_setting(row.first, scheduler, rules)} with {_setting(row.second, scheduler, rules)}"
            raise ConfigError(f"{both}: {row.reason}; expected {row.expected}")
    for tier in rules.order.reserved:
        _check_tier(tier, scheduler)


def implied(settings: Settings, rules: Rules) -> tuple[dict[str, Any], tuple[str, ...]]:
    """``settings`` with vLLM knobs that a rule leaves only one value for, where they are not given, and a note for each."""
    found, notes = dict(settings), []
    if "async_scheduling" not in found:
        if rules.batching.mode != "continuous":
            found["async_scheduling"] = False
            notes.append(f"async_scheduling = false: batching.mode = {rules.batching.mode} runs a batch to its end")
        elif rules.preemption.mode == "swap":
            found["async_scheduling"] = False
            notes.append("async_scheduling = false: preemption.mode = swap waits for its copies")
    no_sharing = [
        name
        for name, wanted in (
            ("batching.kv_allocation = contiguous", rules.batching.kv_allocation == "contiguous"),
            ("preemption.mode = swap", rules.preemption.mode == "swap"),
        )
        if wanted
    ]
    if no_sharing and "enable_prefix_caching" not in found:
        found["enable_prefix_caching"] = False
        notes.append(f"enable_prefix_caching = false: {no_sharing[0]} cannot share blocks")
    return found, tuple(notes)


def remarks(scheduler: SchedulerConfig, rules: Rules) -> tuple[str, ...]:
    """What is set without an effect, and what depends on columns that a trace may lack."""
    return (*_idle(scheduler, rules), *_columns(rules))


def _idle(scheduler: SchedulerConfig, rules: Rules) -> list[str]:
    batching, order, preemption = rules.batching, rules.order, rules.preemption
    door, client = rules.front_door, rules.client
    by, whole = _order(scheduler, rules), not scheduler.enable_chunked_prefill
    degrades = door.degrade_above_kv is not None or door.degrade_above_queue is not None
    no_rate = door.quota_tokens_per_s is None and not door.quotas
    unreserved = batching.output_reserve == "none"
    idle = (
        ("batching.size", batching.size != 8 and batching.mode == "continuous", "batching.mode = continuous"),
        ("batching.window_s", batching.window_s != 0.05 and batching.mode != "dynamic", "batching.mode is not dynamic"),
        (
            "batching.interleave",
            batching.interleave != "1:1" and batching.step != "interleave",
            "batching.step is not interleave",
        ),
        ("batching.output_reserve_clip", batching.output_reserve_clip is not None and unreserved, "output_reserve = none"),
        ("batching.output_reserve_ratio", batching.output_reserve_ratio != 1 and unreserved, "output_reserve = none"),
        ("batching.max_partial_prefills", batching.max_partial_prefills is not None and whole, "enable_chunked_prefill = false"),
        ("order.aging_s", order.aging_s is not None and by == "fcfs", "first come, first served"),
        ("order.aging_s", order.aging_s is not None and plugin_name(by) is not None, "a plugin's key is taken as it is"),
        ("order.size", order.size != "prompt" and by != "shortest_first", "order.by is not shortest_first"),
        ("preemption.host_blocks", preemption.host_blocks > 0 and preemption.mode != "swap", "preemption.mode is not swap"),
        ("front_door.degrade_to_tokens", door.degrade_to_tokens != 128 and not degrades, "no degrade_above_kv or _queue"),
        ("front_door.quota_burst_tokens", door.quota_burst_tokens is not None and no_rate, "no quota_tokens_per_s"),
        ("client.arrival", client.arrival != "meant" and client.max_in_flight is None, "no max_in_flight"),
    )
    return [f"{knob} has no effect: {why}" for knob, unused, why in idle if unused]


def _columns(rules: Rules) -> list[str]:
    order, batching, door = rules.order, rules.batching, rules.front_door
    notes = []
    if order.by == "deadline":
        late = "last" if order.aging_s is None else f"as if due {order.aging_s:g} s after arrival"
        notes.append(f"order.by = deadline: requests without a deadline in the trace come {late}")
    predicted = [
        knob
        for knob, wanted in (
            ("order.size", order.by == "shortest_first" and order.size == "predicted"),
            ("batching.output_reserve", batching.output_reserve == "predicted"),
            ("front_door.expected", door.expected == "predicted"),
        )
        if wanted
    ]
    notes += [f"{knob} = predicted: it needs the trace's column of predicted lengths" for knob in predicted]
    if order.by == "fair":
        notes.append("order.by = fair: requests without a tenant in the trace count as one tenant")
    return notes


def _check_tier(tier: Tier, scheduler: SchedulerConfig) -> None:
    where = f"order.reserved of priority {tier.priority}"
    if tier.seqs >= scheduler.seat_limit:
        raise ConfigError(
            f"order.reserved.seqs = {tier.seqs} with max_num_seqs = {scheduler.seat_limit}: {where} leaves no seat for"
            f" anybody else; expected fewer than {scheduler.seat_limit}"
        )
    if tier.blocks >= scheduler.usable_blocks:
        raise ConfigError(
            f"order.reserved.blocks = {tier.blocks} with num_gpu_blocks = {scheduler.num_gpu_blocks}: {where} leaves no block"
            f" for anybody else; expected fewer than {scheduler.usable_blocks}"
        )


def _order(scheduler: SchedulerConfig, rules: Rules) -> str:
    return scheduler.policy if rules.order.by == "engine" else rules.order.by


def _setting(text: str, scheduler: SchedulerConfig, rules: Rules) -> str:
    """``knob = value`` with the value as it stands. ``text`` is a row's wording and begins with the knob."""
    if "*" in text:
        return f"a change in {text}"
    name = text.split(" ", 1)[0]
    table, _, knob = name.rpartition(".")
    value = getattr(getattr(rules, table) if table else scheduler, knob)
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, tuple):
        value = f"{len(value)} tier{'s' if len(value) != 1 else ''}"
    return f"{name} = {'not set' if value is None else value}"

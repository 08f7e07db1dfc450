"""A prepared replay carried out: one engine, a fleet, or separate pools, with its rows going into a record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from replay_engine.fleet.driver import FleetReplay
from replay_engine.fleet.pd_driver import PdReplay
from replay_engine.fleet.routers import make_router
from replay_engine.loop import Replay
from replay_engine.rules import Rules
from replay_engine.totals import RunTotals
from replay_engine.types import EventSink, RequestSource
from tracekit.cycles import quiet_gc
from tracekit.delivery import DeliverySink, DeliverySource, delivery_of
from tracekit.engines import engines_for, executor_for
from tracekit.traces.source import TraceSource

if TYPE_CHECKING:
    from tracekit.record import RunRecord
    from tracekit.replay import Setup

__all__ = ["Watcher", "block_bytes", "simulate", "simulate_into", "smaller_first"]

DEFAULT_KV_BYTES = 131072
"""KV bytes of a token where the profile has no model: those of an 8B model with grouped-query attention."""

Progress = Callable[[int, int, str], None]


class Watcher(Protocol):
    """Who is told how far a replay is, and may stop it: a job."""

    def progress(self, done: int, total: int | None, *, unit: str) -> None: ...

    def cancelled(self) -> bool: ...


def simulate(setup: Setup, record: RunRecord, job: Watcher, progress: Progress | None) -> str:
    """Replay ``setup`` into ``record``. Returns how it ended: a state of the run, or ``failed: ...``."""
    total = setup.source.total
    looked = time.monotonic()

    def on_chunk(totals: RunTotals) -> None:
        nonlocal looked
        now = time.monotonic()
        if now - looked < 0.1:
            return
        looked = now
        job.progress(totals.finished, total, unit="requests")
        if progress is not None:
            progress(totals.finished, total, f"{totals.iterations:,} iterations")
        if job.cancelled():
            raise KeyboardInterrupt

    state, record.totals, record.by_replica = simulate_into(
        setup, record.sink, stall_threshold_ns=record.stall_threshold_ns, on_chunk=on_chunk
    )
    job.progress(total, total, unit="requests")
    return state


def simulate_into(
    setup: Setup,
    sink: EventSink,
    *,
    stall_threshold_ns: int | None = None,
    on_chunk: Callable[[RunTotals], None] | None = None,
) -> tuple[str, RunTotals, list[RunTotals]]:
    """Replay ``setup`` into any sink: how it ended, the sums, and those of each replica. A fleet's rows have a ``replica``."""
    rules = setup.policy.rules
    if rules.order.larger_first:
        rules = smaller_first(setup.source, rules)
    there = delivery_of(setup.profile, rules)
    source: RequestSource = DeliverySource(setup.source, there) if there else setup.source
    sink = DeliverySink(sink, there, spans=setup.events == "full") if there else sink
    options: dict[str, Any] = {
        "mode": setup.events if setup.events in ("full", "iterations") else "outcomes",
        "stall_threshold_ns": stall_threshold_ns, "on_chunk": on_chunk,
        "rules": rules, "facts": setup.facts, "kv_block_bytes": block_bytes(setup),
    }  # fmt: skip
    if rules.pd.prefill:
        return _pools(setup, source, rules, sink, options)
    if rules.fleet.active:
        return _fleet(setup, source, rules, sink, options)
    executor, pool, sink = executor_for(setup, rules, sink)
    run = Replay(source, setup.policy.scheduler, executor, sink, pool=pool, **options)
    with quiet_gc():
        ended = run.run()
    return ended if run.failure is None else str(run.failure), run.totals, [run.totals]


def _fleet(
    setup: Setup, source: RequestSource, rules: Rules, sink: EventSink, options: dict[str, Any]
) -> tuple[str, RunTotals, list[RunTotals]]:  # fmt: skip
    config, fleet = setup.policy.scheduler, rules.fleet
    engines = engines_for(setup, rules, [config] * fleet.replicas)
    router = make_router(fleet.router, fleet.replicas, seed=setup.seed, blocks=config.usable_blocks)
    run = FleetReplay(source, config, engines.executors, router, sink, faults=fleet.faults(), own=engines.own, **options)
    with quiet_gc():
        ended = run.run()
    return ended if run.failure is None else str(run.failure), run.totals, run.totals_by_replica


def _pools(
    setup: Setup, source: RequestSource, rules: Rules, sink: EventSink, options: dict[str, Any]
) -> tuple[str, RunTotals, list[RunTotals]]:  # fmt: skip
    pd, configs = rules.pd, setup.policy.engines
    engines = engines_for(setup, rules, [configs["prefill"]] * pd.prefill + [configs["decode"]] * pd.decode)
    per_token = rules.kv_link.kv_bytes_per_token
    if engines.kv_block_bytes is not None:
        options["kv_block_bytes"] = engines.kv_block_bytes
    elif per_token is not None:
        options["kv_block_bytes"] = per_token * configs["prefill"].block_size
    run = PdReplay(
        source, configs, engines.executors, sink, faults=pd.faults(), seed=setup.seed + pd.seed, own=engines.own,
        connector=engines.connector, **options,
    )  # fmt: skip
    with quiet_gc():
        ended = run.run()
    return ended if run.failure is None else str(run.failure), run.totals, run.totals_by_replica


def smaller_first(source: TraceSource, rules: Rules) -> Rules:
    """Turn priorities round where the larger is the more urgent: the trace's in place, the tiers' in the rules returned."""
    if source.priority is not None:
        source.priority = -source.priority
    tiers = tuple(replace(tier, priority=-tier.priority) for tier in rules.order.reserved)
    return replace(rules, order=replace(rules.order, larger_first=False, reserved=tiers))


def block_bytes(setup: Setup) -> int:
    """Bytes of a KV block on one card, which its own link to the host carries."""
    model, hardware = setup.profile.model, setup.profile.hardware
    per_token = model.kv_bytes_per_token if model is not None else DEFAULT_KV_BYTES
    cards = hardware.tensor_parallel if hardware is not None else 1
    return max(1, int(per_token * setup.policy.scheduler.block_size / cards))

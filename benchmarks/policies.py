"""Simulated iterations per second under rules, against first come first served with none of them, at the same mean batch.

``python -m benchmarks.policies [--json] [--repeats N] [--scale S]``. One planned load (mean batch 64, 16 tenants, 3 priorities)
is replayed plainly, then with an order, quotas at the front door, and a KV cache so short that sequences are swapped out all
the time; the same requests, the full event log made and dropped. Best of N by process CPU time; all take turns, so that a slow
minute of the machine is not one replay's alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.engine_run import Timed, best_in_turns, replay_nowhere
from benchmarks.figures import Figure, Report, reference_figure, run_main
from benchmarks.workloads import ColumnSource, Load, planned
from replay_engine.config import SchedulerConfig
from replay_engine.profile import load_profile
from replay_engine.rules import FrontDoorRules, Order, Preemption, Rules
from replay_engine.types import RequestBatch

__all__ = ["LOAD", "ORDERS", "TenantSource", "main", "measure"]

LOAD = Load(name="tenants", requests=20_000, batch=64)
TENANTS, PRIORITIES = 16, 3
QUOTAS = FrontDoorRules(quota_tokens_per_s=1e9, quota_concurrent=100_000, max_queued_reqs=1_000_000)
"""Counted for every request, and so high that none is refused: the load stays the same."""
SWAP = Preemption(mode="swap", host_blocks=100_000)
ORDERS: dict[str, tuple[Order, Preemption]] = {
    "fair": (Order(by="fair"), SWAP),
    "priority": (Order(by="priority", aging_s=30.0), SWAP),
}
KV_SHARE = 1.05
"""Blocks under pressure, as a share of what the plain replay holds on average: the mean batch stays, peaks are swapped out."""


class TenantSource(ColumnSource):
    """Columns with a tenant and a priority for each request, drawn anew for each seed: a few tenants send most."""

    def batches(self, size: int = 8192) -> Iterator[RequestBatch]:
        rng = np.random.Generator(np.random.PCG64(1))
        tenant = np.minimum(rng.geometric(0.2, self.total) - 1, TENANTS - 1).astype(np.int32)
        priority = rng.integers(0, PRIORITIES, self.total)
        for batch in super().batches(size):
            yield replace(batch, tenant=tenant[batch.index], priority=priority[batch.index])


def _shape(timed: Timed) -> str:
    totals = timed.totals
    return (
        f"mean batch {timed.mean_batch:.1f}, {totals.iterations:,} iterations, {timed.cpu_s / totals.iterations * 1e6:.2f} us"
        f" each, {totals.preemptions:,} preemptions"
    )


def compare(load: Load, repeats: int) -> dict[str, Figure]:
    """The plain replay's speed, and for each order the speed and its ratio to the plain one."""
    profile = load_profile("h100")
    source = TenantSource(planned(load, profile.latency))
    config = SchedulerConfig(
        enable_prefix_caching=False, async_scheduling=False, max_model_len=8192, max_num_seqs=256, num_gpu_blocks=65536
    )
    run = partial(replay_nowhere, source, config, profile.latency)
    plain = run()
    kept = plain.totals.kv_used_ns / plain.totals.busy_ns
    tight = replace(config, num_gpu_blocks=max(round(KV_SHARE * kept), 1024))
    block_bytes = config.block_size * (profile.model.kv_bytes_per_token if profile.model else 1 << 17)
    runs: dict[str, Callable[[], Timed]] = {"plain": run}
    for name, (order, preemption) in ORDERS.items():
        rules = Rules(order=order, preemption=preemption, front_door=QUOTAS)
        runs[name] = partial(replay_nowhere, source, tight, profile.latency, rules, block_bytes)
    fastest = best_in_turns(repeats, runs)
    plain = fastest["plain"]
    figures = {"plain_per_s": Figure(value=plain.per_second, unit="it/s", reference=f"first come, first served; {_shape(plain)}")}
    for name in ORDERS:
        ruled = fastest[name]
        note = f"{tight.num_gpu_blocks:,} blocks of KV; {_shape(ruled)}"
        figures[f"{name}_per_s"] = Figure(value=ruled.per_second, unit="it/s", note=note)
        figures[f"{name}_ratio"] = Figure(
            value=ruled.per_second / plain.per_second, unit="x", target=load.target,
            reference=f"order.by = {name}, quotas, swap under KV pressure, over plain, in turns",
        )  # fmt: skip
    return figures


def measure(options: Any) -> Report:
    """All figures; ``options`` has ``repeats`` and ``scale``."""
    load = replace(LOAD, requests=max(round(LOAD.requests * options.scale), 100), target=0.5)
    said = f"{load.requests:,} requests of {TENANTS} tenants; rows made and dropped; process CPU time"
    report = Report(benchmark="policies", notes=[said])
    report.figures |= compare(load, options.repeats)
    report.figures["python_reference"] = reference_figure()
    return report


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; the fastest counts")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the load's requests")


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run_main("policies", "Iterations per second under rules, against none of them.", measure, argv, _options)


if __name__ == "__main__":
    main()

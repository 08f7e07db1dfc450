"""Simulated iterations per second, one core, full event log to a spool on disk: Azure conv on the H100 profile.

``python -m benchmarks.iterations [--json] [--repeats N] [--limit N]``. Best of N by process CPU time. Beside it, in the same run:
the lean walk on the same requests (caching off, synchronous, no event log; both must agree on every token's time), and a fixed
Python loop.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from benchmarks.engine_run import Timed, best, replay_spooled
from benchmarks.figures import Figure, Report, reference_figure, run_main
from benchmarks.lean_side import check_equal, run_lean
from benchmarks.workloads import azure_conv
from replay_engine.config import SchedulerConfig
from replay_engine.policy import default_policy
from replay_engine.profile import load_profile

__all__ = ["main", "measure"]

PEERS = "like machine, quiet: a Rust simulator about 130,000, a Go one 26,000, a Python one 7,000 to 10,000"
TARGETS = {"caching_on": 350_000.0, "caching_off": 450_000.0}


def _figure(timed: Timed, target: float | None, reference: str) -> Figure:
    per_iteration = timed.cpu_s / timed.totals.iterations * 1e6
    note = f"{timed.totals.iterations:,} iterations, {per_iteration:.2f} us each, {timed.spooled_bytes / 1e6:.0f} MB written"
    return Figure(value=timed.per_second, unit="it/s", target=target, reference=reference, note=note)


def measure(options: argparse.Namespace) -> Report:
    """All figures; ``options`` has ``repeats`` and ``limit``."""
    profile = load_profile("h100")
    source, said = azure_conv(options.limit)
    config = default_policy(profile).scheduler
    report = Report(benchmark="iterations", notes=[said, "full event log, spooled to disk; default policy; process CPU time"])
    figures = report.figures
    sync_off = config
    for asynchronous in (True, False):
        for caching in (True, False):
            chosen: SchedulerConfig = replace(config, enable_prefix_caching=caching, async_scheduling=asynchronous)
            timed = best(options.repeats, lambda chosen=chosen: replay_spooled(source, chosen, profile.latency))  # type: ignore[misc]
            kind = "caching_on" if caching else "caching_off"
            name = f"{kind}_per_s" if asynchronous else f"{kind}_sync_per_s"
            figures[name] = _figure(timed, TARGETS[kind] if asynchronous else None, PEERS if asynchronous and caching else "")
            if asynchronous and caching:
                figures["mean_batch"] = Figure(value=timed.mean_batch, unit="sequences", reference="decoding, per iteration")
            sync_off = chosen
    lean = min(
        (run_lean(source.arrival_ns, source.prompt_tokens, source.output_tokens, sync_off, profile.latency)
         for _ in range(options.repeats)), key=lambda run: run.cpu_s,
    )  # fmt: skip
    check_equal(lean, source, sync_off, profile.latency)
    figures["lean_walk_per_s"] = Figure(
        value=lean.per_second, unit="it/s", reference="caching off, synchronous, no event log; same token times to the ns"
    )
    figures["python_reference"] = reference_figure()
    return report


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=5, help="runs of each; the fastest counts")
    parser.add_argument("--limit", type=int, help="only the first requests of the trace")


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run_main("iterations", "Simulated iterations per second with the full event log.", measure, argv, _options)


if __name__ == "__main__":
    main()

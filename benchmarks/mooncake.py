"""Prefix caching on a trace that really shares: iterations per second on the Mooncake conversation trace, beside Azure conv.

``python -m benchmarks.mooncake [--json] [--repeats N] [--limit N]``. Caching on, default policy, H100 profile, full event log
spooled to disk, process CPU time. At its own arrivals the trace overloads one H100; that is part of the measurement.
"""

from __future__ import annotations

import argparse

from benchmarks.engine_run import best, replay_spooled
from benchmarks.figures import Figure, Report, reference_figure, run_main
from benchmarks.workloads import azure_conv, mooncake_conversation
from replay_engine.policy import default_policy
from replay_engine.profile import load_profile

__all__ = ["main", "measure"]


def measure(options: argparse.Namespace) -> Report:
    """All figures; ``options`` has ``repeats`` and ``limit``."""
    profile = load_profile("h100")
    config = default_policy(profile).scheduler
    source, said = mooncake_conversation(options.limit)
    azure_source, azure_said = azure_conv(options.limit)
    azure = best(options.repeats, lambda: replay_spooled(azure_source, config, profile.latency))
    timed = best(options.repeats, lambda: replay_spooled(source, config, profile.latency))
    totals = timed.totals
    computed = totals.prefill_tokens + totals.prefix_hit_tokens
    return Report(
        benchmark="mooncake",
        notes=[said, f"beside: {azure_said}"],
        figures={
            "mooncake_per_s": Figure(
                value=timed.per_second, unit="it/s", target=azure.per_second / 2,
                reference="target: half of Azure conv, same run",
                note=f"{totals.iterations:,} iterations, {timed.cpu_s / totals.iterations * 1e6:.2f} us each,"
                f" {totals.preemptions:,} preemptions, {totals.evicted:,} blocks evicted",
            ),
            "azure_per_s": Figure(value=azure.per_second, unit="it/s", reference="caching on, same run"),
            "share_of_azure": Figure(value=timed.per_second / azure.per_second, unit="x", target=0.5),
            "hit_share": Figure(
                value=totals.prefix_hit_tokens / max(computed, 1), unit="of prompt tokens",
                reference="36.6 % of the trace's blocks were seen before; the cache is bounded",
            ),
            "mean_batch": Figure(value=timed.mean_batch, unit="sequences"),
            "us_per_request": Figure(value=timed.cpu_s / source.total * 1e6, unit="us"),
            "python_reference": reference_figure(),
        },
    )  # fmt: skip


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=5, help="runs of each; the fastest counts")
    parser.add_argument("--limit", type=int, help="only the first requests of each trace")


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run_main("mooncake", "Iterations per second with a prefix cache that is hit.", measure, argv, _options)


if __name__ == "__main__":
    main()

"""The O(changes) scheduler against the lean per-sequence walk, same run, caching off, both synchronous, same latency form.

``python -m benchmarks.lean [--json] [--repeats N] [--scale X] [--only NAME]``. First-token and end times must be identical, else
there is no figure. ``*_ratio`` keeps totals only (the lean walk logs nothing), ``*_logged_ratio`` makes every row of the event
log and drops it, ``*_spooled_ratio`` writes it to disk.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from benchmarks.engine_run import best, replay_bare, replay_nowhere, replay_spooled
from benchmarks.figures import Figure, Report, reference_figure, run_main
from benchmarks.lean_side import LeanRun, check_equal, run_lean
from benchmarks.workloads import ColumnSource, Load, planned
from replay_engine.config import SchedulerConfig
from replay_engine.profile import Latency, load_profile

__all__ = ["LOADS", "compare", "main", "measure"]

LOADS = (
    Load(name="turnover_60", requests=9_000, batch=60, target=4.0),
    Load(name="turnover_210", requests=22_000, batch=210, target=7.0),
    Load(name="long_outputs_60", requests=1_500, batch=60, output=(500, 3000), target=8.0),
    Load(name="long_outputs_210", requests=3_500, batch=210, output=(500, 3000), target=18.0),
    Load(name="saturated_60", requests=4_000, batch=60, blocks=3_800, target=2.5),
    Load(name="saturated_110", requests=6_000, batch=110, blocks=7_000, target=2.5),
)


def compare(load: Load, latency: Latency, repeats: int) -> dict[str, Figure]:
    """Both sides over one load, in turn, the fastest of each."""
    config = SchedulerConfig(
        max_num_batched_tokens=8192, max_num_seqs=1024, max_model_len=8192, num_gpu_blocks=(load.blocks or 65_536) + 1,
        enable_prefix_caching=False, async_scheduling=False,
    )  # fmt: skip
    columns = planned(load, latency)
    source = ColumnSource(columns)
    lean: LeanRun | None = None
    for _ in range(max(repeats, 1)):
        run = run_lean(columns.arrival_ns, columns.input_tokens, columns.output_tokens, config, latency)
        lean = run if lean is None or run.cpu_s < lean.cpu_s else lean
    assert lean is not None
    check_equal(lean, source, config, latency)
    ours = best(repeats, lambda: replay_bare(source, config, latency))
    logged = best(repeats, lambda: replay_nowhere(source, config, latency))
    spooled = best(repeats, lambda: replay_spooled(source, config, latency))
    totals = ours.totals
    what = f"{totals.iterations:,} iterations, {totals.preemptions:,} preemptions, times identical"
    return {
        f"{load.name}_ratio": Figure(
            value=lean.cpu_s / ours.cpu_s, unit="x", target=load.target, note=f"mean batch {ours.mean_batch:.0f}, {what}",
            reference=f"lean {lean.cpu_s / lean.iterations * 1e6:.1f} us, ours {ours.cpu_s / totals.iterations * 1e6:.2f} us",
        ),
        f"{load.name}_logged_ratio": Figure(
            value=lean.cpu_s / logged.cpu_s, unit="x", reference=f"ours {logged.cpu_s / totals.iterations * 1e6:.2f} us",
        ),
        f"{load.name}_spooled_ratio": Figure(
            value=lean.cpu_s / spooled.cpu_s, unit="x", reference=f"ours {spooled.cpu_s / totals.iterations * 1e6:.2f} us",
            note=f"{spooled.spooled_bytes / 1e6:.0f} MB written",
        ),
        f"{load.name}_mean_batch": Figure(value=ours.mean_batch, unit="sequences"),
    }  # fmt: skip


def measure(options: argparse.Namespace) -> Report:
    """All figures; ``options`` has ``repeats``, ``scale`` (of the request counts) and ``only``."""
    latency = load_profile("h100").latency
    report = Report(benchmark="lean", notes=[__doc__.split("\n")[0], "process CPU time, the fastest run of each side"])
    for load in LOADS:
        if options.only and options.only not in load.name:
            continue
        sized = replace(load, requests=max(round(load.requests * options.scale), 1))
        report.figures |= compare(sized, latency, options.repeats)
    report.figures["python_reference"] = reference_figure()
    return report


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; the fastest counts")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the request counts")
    parser.add_argument("--only", help="only loads whose name has this in it")


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run_main("lean", "O(changes) against a lean per-sequence walk.", measure, argv, _options)


if __name__ == "__main__":
    main()

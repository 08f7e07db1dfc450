"""How long it takes to say where the time of every request went: 100,000 requests over a million iterations.

``python -m benchmarks.blame [--json] [--repeats N] [--requests N]``. One planned load (about twenty sequences decoding) is
replayed with all its events kept; then the attribution is made from its rows, and the culprits of all queueing. Best of N by
process CPU time. Beside it, in the same run: one pass over the same rows, the sum of each of their columns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from benchmarks.engine_run import replay_into
from benchmarks.figures import Figure, Report, reference_figure, run_main
from benchmarks.workloads import ColumnSource, Load, planned
from replay_engine.config import SchedulerConfig
from replay_engine.profile import load_profile
from replay_engine.sinks import MemorySink
from replay_engine.tables import TABLES
from tracekit.diagnosis.attribution import Blame
from tracekit.diagnosis.culprits import block_holders, budget_holders, seat_holders, waiting
from tracekit.diagnosis.iteration_cost import CostForm
from tracekit.diagnosis.run_data import tidy

__all__ = ["main", "measure"]

Rows = npt.NDArray[np.void]
REQUESTS, BATCH, TARGET_S = 100_000, 21, 1.0


def _best(repeats: int, task: Callable[[], object]) -> float:
    """Seconds of process CPU time of the fastest."""
    found = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        task()
        found = min(found, time.process_time() - began)
    return found


def _one_pass(tables: Mapping[str, Rows]) -> float:
    return float(sum(rows[name].sum(dtype=np.float64) for rows in tables.values() for name in rows.dtype.names or ()))


def measure(options: argparse.Namespace) -> Report:
    """All figures; ``options`` has ``repeats`` and ``requests``."""
    latency = load_profile("h100").latency
    config = SchedulerConfig(enable_prefix_caching=False, max_model_len=8192, max_num_seqs=24, num_gpu_blocks=4000)
    source, sink = ColumnSource(planned(Load(name="blame", requests=options.requests, batch=BATCH), latency)), MemorySink()
    replay_into(sink, source, config, latency)
    tables = {name: tidy(name, sink.table(name)) for name in TABLES}
    forms = {0: CostForm(latency, config.async_scheduling)}
    blame = Blame(tables, forms)
    found = blame.within()
    outcomes = tables["outcomes"]
    if not np.array_equal(found.first.sum(axis=1), outcomes["ttft_ns"]) or "not_explained" in found.parts:
        raise RuntimeError("the parts do not sum to the time to first token: no figure")
    everybody = np.ones(len(outcomes), bool)

    def culprits() -> None:
        lost = waiting(blame, everybody)
        budget_holders(blame, lost), seat_holders(blame, lost), block_holders(blame, lost, config.block_size)

    waits = found.of("queue").sum() / 1e9
    said = (
        f"{len(outcomes):,} requests, {len(tables['iterations']):,} iterations, {len(tables['spans']):,} spans,"
        f" {len(tables['prefill_entries']):,} prefill entries; {waits:,.0f} s in the queue; process CPU time"
    )
    once = _best(options.repeats, lambda: _one_pass(tables))
    whole = _best(options.repeats, lambda: Blame(tables, forms).within())
    window = _best(options.repeats, lambda: blame.within(0, int(outcomes["arrival_ns"][len(outcomes) // 10])))
    target = TARGET_S if options.requests >= REQUESTS else None
    return Report(
        benchmark="blame",
        notes=[said],
        figures={
            "attribution_s": Figure(value=whole, unit="s", target=target, at_most=True, reference="all requests, from the rows"),
            "window_s": Figure(value=window, unit="s", reference="a tenth of the run, once prepared"),
            "culprits_s": Figure(value=_best(options.repeats, culprits), unit="s", reference="budget, seats, blocks; all waits"),
            "one_pass_s": Figure(value=once, unit="s", reference="the sum of every column of the same rows"),
            "attribution_ratio": Figure(value=whole / once, unit="x", reference="attribution over one pass"),
            "python_reference": reference_figure(),
        },
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each; the fastest counts")
    parser.add_argument("--requests", type=int, default=REQUESTS, metavar="N", help="requests of the planned load")


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    run_main("blame", "Where the time of every request went: seconds for a million iterations.", measure, argv, _options)


if __name__ == "__main__":
    main()

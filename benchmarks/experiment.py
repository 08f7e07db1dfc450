"""An experiment in several processes against the same replays one after another in one process.

``python -m benchmarks.experiment [--json] [--jobs N] [--repeats N] [--quick]``: 3 levels x 8 windows x 2 traces (Azure 2023
code and conversation, an hour each; and continued to ten times their length, in windows of 30 minutes). Both sides plan,
replay all 48 cells, conclude and record; the traces are loaded before. Wall time is the machine's as it is: where other work
runs beside it, two processes get more of it than one, so the figure that counts is then the bound from CPU time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Report, reference_figure, run_main
from benchmarks.process import run_python
from benchmarks.workloads import TRACES
from tracekit.store import Store
from tracekit.traces.load import load_trace, read_trace
from tracekit.traces.source import TraceSource
from tracekit.traces.synth import continue_trace, synthesise, write_azure_csv

__all__ = ["main", "measure"]

FILES = ("AzureLLMInferenceTrace_code.csv", "AzureLLMInferenceTrace_conv.head13k.csv")
VARY = "max_num_batched_tokens=8192,4096,2048"
SIZES = {"hour": (1, ""), "long": (10, "30m")}
"""Per size: how many times the trace's requests, and the length of a window."""
REPLAYS = 48
RUN = """
import json, resource, sys, time
began = time.perf_counter()
import tracekit
db, jobs, length, vary, *names = sys.argv[1:]
slo = "ttft=500ms,tpot=50ms"
report = tracekit.experiment(names, vary=vary, slo=slo, length=length or None, jobs=int(jobs), fresh=True, db=db)
spent = [sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
changes = [[c["measure"], c["trace"], c["level"], c["interval"]["estimate"]] for c in report.document["changes"]]
print(json.dumps({"wall_s": time.perf_counter() - began, "own_s": spent[0], "workers_s": spent[1], "replayed": report.replayed,
                  "iterations": sum(r["iterations"] for r in report.document["replays"]), "changes": changes}))
"""


def _inputs(scratch: Path, times: int, quick: bool) -> tuple[list[Path], str]:
    """Two traces, and what they are."""
    files, what = [TRACES / name for name in FILES], "Azure 2023 code and conversation traces"
    if quick or not all(file.is_file() for file in files):
        files = [scratch / f"{at}-{times}.csv" for at in range(2)]
        what = "SYNTHETIC traces (small, or the Azure traces are not here)"
        for at, file in enumerate(files):
            write_azure_csv(synthesise(1000 * times if quick else 9000 * times, seed=at), file)
        return files, what
    if times == 1:
        return files, what
    longer = [scratch / f"{file.stem}-{times}.csv" for file in files]
    for file, long in zip(files, longer, strict=True):
        base = TraceSource.from_loaded(read_trace(file))
        write_azure_csv(continue_trace(base, times * base.total), long)
    return longer, f"{what}, continued to {times} times their length"


def _side(db: Path, names: list[str], jobs: int, length: str, scratch: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_python(["-c", RUN, str(db), str(jobs), length, VARY, *names], scratch).out)
    if found["replayed"] != REPLAYS:
        raise RuntimeError(f"{found['replayed']} of {REPLAYS} replays: no figure")
    return found


def _size(name: str, options: argparse.Namespace, scratch: Path) -> tuple[dict[str, Figure], str]:
    """Both sides at one size; they must conclude the same to the last bit."""
    times, length = SIZES[name]
    files, what = _inputs(scratch, times, options.quick)
    store = Store(scratch / f"{name}.duckdb")
    with store.write("load the traces") as con:
        names = [load_trace(con, [file]).name for file in files]
    runs: dict[int, list[dict[str, Any]]] = {1: [], options.jobs: []}
    for _ in range(options.repeats):
        for jobs, found in runs.items():
            found.append(_side(store.path, names, jobs, "" if options.quick else length, scratch))
    one, several = (min(found, key=lambda run: float(run["wall_s"])) for found in runs.values())
    if one["changes"] != several["changes"]:
        raise RuntimeError("the two sides conclude differently: no figure")
    bound = one["own_s"] / (several["own_s"] + several["workers_s"] / options.jobs)
    work = f"{one['iterations']:,} iterations in {REPLAYS} replays"
    cpu = f"CPU of the parent {several['own_s']:.2f} s, of the workers {several['workers_s']:.2f} s"
    return {
        f"{name}_one_process_s": Figure(value=one["wall_s"], unit="s", note=f"{work}; CPU {one['own_s']:.2f} s"),
        f"{name}_several_s": Figure(value=several["wall_s"], unit="s", note=f"{options.jobs} processes; {cpu}"),
        f"{name}_speedup": Figure(value=one["wall_s"] / several["wall_s"], unit="x", target=1.8, reference="wall time"),
        f"{name}_speedup_by_cpu": Figure(
            value=bound, unit="x", target=1.8,
            reference="CPU of the one process over the parent's and an even share of the workers': at least this on idle cores",
        ),
    }, f"{name}: {what}, windows of {length or 'about a thousand requests'}"  # fmt: skip


def measure(options: argparse.Namespace) -> Report:
    """All figures."""
    report = Report(benchmark="experiment", notes=["3 levels x 8 windows x 2 traces; the fastest run of each side by wall time"])
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as folder:
        for name in SIZES if not options.quick else ("hour",):
            figures, note = _size(name, options, Path(folder))
            report.figures |= figures
            report.notes.append(note)
    report.figures["python_reference"] = reference_figure()
    return report


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=2, help="processes of the second side")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each side; the fastest counts")
    parser.add_argument("--quick", action="store_true", help="small synthetic traces")


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run_main("experiment", "An experiment in several processes.", measure, argv, _options)


if __name__ == "__main__":
    main()

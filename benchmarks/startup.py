"""How long a person waits for nothing: ``tracekit --help`` and ``import tracekit``, each in a fresh process.

``python -m benchmarks.startup [--json] [--repeats N]``. Wall time, the fastest of N; and what must not be loaded is not.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.figures import Figure, Report, reference_figure, run_main
from benchmarks.process import Spent, run_python

__all__ = ["FORBIDDEN", "main", "measure"]

FORBIDDEN = ("torch", "dash", "optuna", "ray")
HEAVY = ("polars", "duckdb", "pyarrow", "numpy", "rich")
LIMIT_S = 0.4
HELP = """
import sys
sys.argv = ["tracekit", "--help"]
from tracekit.cli.main import main
try:
    main()
except SystemExit:
    pass
"""
SHOW = "import json, sys; print('\\n' + json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
STARTS = {
    "help": (["-m", "tracekit.cli.main", "--help"], HELP),
    "import": (["-c", "import tracekit"], "import tracekit\n"),
}


def _loaded(code: str, scratch: Path) -> list[str]:
    """Top-level modules in ``sys.modules`` after ``code``."""
    modules: list[str] = json.loads(run_python(["-c", code + SHOW], scratch).out.splitlines()[-1])
    return modules


def measure(options: argparse.Namespace) -> Report:
    """All figures; ``options`` has ``repeats``."""
    report = Report(benchmark="startup", notes=["fresh processes, wall time, the fastest run"])
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as folder:
        scratch = Path(folder)
        bare = min(run_python(["-c", "pass"], scratch).wall_s for _ in range(options.repeats))
        for name, (words, code) in STARTS.items():
            runs: list[Spent] = [run_python(words, scratch) for _ in range(options.repeats)]
            modules = _loaded(code, scratch)
            wrong = [module for module in FORBIDDEN if module in modules]
            heavy = [module for module in HEAVY if module in modules]
            report.figures[f"{name}_s"] = Figure(
                value=min(run.wall_s for run in runs), unit="s", target=LIMIT_S, at_most=True,
                reference=f"an empty Python process: {bare:.3f} s",
                note=f"CPU {min(run.cpu_s for run in runs):.3f} s; {len(modules)} top-level modules"
                + (f", of the larger ones {', '.join(heavy)}" if heavy else ""),
            )  # fmt: skip
            report.figures[f"{name}_forbidden"] = Figure(
                value=len(wrong), unit="modules", target=0, at_most=True, reference=f"none of {', '.join(FORBIDDEN)}",
                note=", ".join(wrong),
            )  # fmt: skip
    report.figures["python_reference"] = reference_figure()
    return report


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=7, help="runs of each; the fastest counts")


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run_main("startup", "Time to the first word.", measure, argv, _options)


if __name__ == "__main__":
    main()

"""The verbs as functions: the same names and defaults as on the command line, and what they return."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tracekit
from tracekit.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
DEMO = str(ROOT / "examples" / "demo_trace.jsonl.gz")
VERBS = ("load", "replay", "describe", "diagnose", "compare", "experiment", "calibrate", "tune", "gate")
COMMAND_ONLY = {"as_json", "debug", "notify", "context", "job", "out"}
"""How a command prints and whom it tells; a job file and a folder of files are the command's own (``calibrate`` has ``out``)."""
LIBRARY_ONLY = {"progress", "say"}
NEGATED = {"no_diagnose": "diagnose"}


def plain(value: Any) -> Any:
    """A default, whatever the option parser wants it wrapped in."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, Path):
        value = str(value)
    return None if value in ((), [], inspect.Parameter.empty) else value


def command_defaults(verb: str) -> dict[str, Any]:
    from importlib import import_module

    module = import_module("tracekit.cli.traces_cmd" if verb == "load" else f"tracekit.cli.{verb}_cmd")
    parameters = inspect.signature(getattr(module, verb)).parameters
    found = {}
    for name, each in parameters.items():
        if name in COMMAND_ONLY and not (name == "out" and verb == "calibrate"):
            continue
        found[NEGATED.get(name, name)] = not each.default if name in NEGATED else plain(each.default)
    return found


def function_defaults(verb: str) -> dict[str, Any]:
    from tracekit.experiments.run import _READING

    parameters = inspect.signature(getattr(tracekit, verb)).parameters
    found = {name: plain(each.default) for name, each in parameters.items() if name not in LIBRARY_ONLY and name != "reading"}
    if "reading" in parameters:
        found |= {name: plain(value) for name, value in _READING.items()}
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_names_and_defaults_are_the_commands(verb: str) -> None:
    assert function_defaults(verb) == command_defaults(verb)


def test_the_package_names_its_verbs() -> None:
    assert set(VERBS) <= set(tracekit.__all__)
    assert set(VERBS) <= set(dir(tracekit))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tracekit.nothing


@pytest.mark.parametrize("first", ["import tracekit.replay, tracekit.describe, tracekit.gate.run", "pass"])
def test_a_verb_is_called_whatever_was_imported_before(first: str) -> None:
    """A module and a verb of one name: either can be had, in either order."""
    lines = [
        f"import inspect, tracekit; {first}",
        "assert all(callable(getattr(tracekit, name)) for name in ('replay', 'describe', 'gate'))",
        "assert 'rate_scale' in inspect.signature(tracekit.replay).parameters",
        "try:",
        "    tracekit.replay()",
        "except Exception as error:",
        "    print(error)",
    ]
    code = "\n".join(lines)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.startswith("no trace; expected"), done.stderr


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("api") / "api.duckdb")


@pytest.fixture(scope="module")
def trace(db: str) -> Any:
    return tracekit.load(DEMO, db=db)


@pytest.fixture(scope="module")
def run(db: str, trace: Any) -> Any:
    return tracekit.replay(trace.name, engine="sim", limit=150, slo="ttft=500ms,tpot=50ms", name="small", db=db)


def test_a_trace_is_a_frame(trace: Any) -> None:
    frame = trace.requests()
    assert frame.height == trace.report.rows_kept == 2000
    assert frame["input_tokens"][0] == 967
    assert frame.null_count().sum_horizontal()[0] < frame.height * frame.width


def test_a_run_is_frames(run: Any) -> None:
    assert isinstance(run.outcomes, pl.DataFrame)
    outcomes = run.outcomes
    assert outcomes["request"].to_list() == list(range(150))
    latency = run.matrix["latency"]["ttft_ns"]
    assert outcomes["ttft_ns"].mean() == pytest.approx(latency["mean"])
    assert int(run.iterations["finished"].sum()) == 150
    assert run.table("spans").height > 150
    assert "run" not in outcomes.columns
    with pytest.raises(UsageError, match="expected one of"):
        run.table("runs")


def test_a_diagnosis_and_a_comparison_are_frames(db: str, run: Any) -> None:
    slow = tracekit.replay(from_run="small", sets=["max_num_seqs=2"], name="slow", db=db)
    found = tracekit.diagnose("slow", no_prove=True, db=db).findings()
    assert found["id"][0] == "QUEUE_SEATS"
    assert 0 < found["share"][0] <= 1
    assert found.schema["confirmed"] == pl.Boolean
    figures = tracekit.compare(run.run, slow.run, db=db).figures()
    row = figures.row(by_predicate=pl.col("measure") == "ttft_p50", named=True)
    assert row["after"] > row["before"] > 0


def test_a_gate_is_a_frame(db: str, run: Any) -> None:
    found = tracekit.gate("small", gates=["ttft_p50<=1us", "requests>=150"], seeds=2, gate_file=None, db=db)
    assert (found.verdict, found.exit_code) == ("failed", 1)
    assert found.gates()["status"].to_list() == ["failed", "passed"]


def test_a_description_is_a_document(db: str, trace: Any) -> None:
    assert tracekit.describe(trace.name, db=db)["whole"]["requests"] == 2000


def test_slips_are_errors_of_one_line(db: str) -> None:
    for call in (lambda: tracekit.calibrate(check="h100", model="tiny", db=db), lambda: tracekit.diagnose(prove="lots", db=db)):
        with pytest.raises(UsageError):
            call()


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    monkeypatch.setenv("TRACEKIT_NOTEBOOK_TRACE", DEMO)
    monkeypatch.setenv("TRACEKIT_NOTEBOOK_DB", str(tmp_path / "notebook.duckdb"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(ROOT / "examples" / "notebooks" / "tail.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "".join(str(output) for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs)
    assert "QUEUE_SEATS" in said
    assert "ttft_p99_ms" in said
    assert "passed" in said

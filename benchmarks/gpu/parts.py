"""The parts of ``benchmarks/gpu/run.sh``: each a process with a time limit; then one table of all that they measured."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["PARTS", "Outcome", "Part", "Row", "main", "run_part"]

WHOLE_S = 480
REHEARSAL = 20
"""A rehearsal proves no time, and may share its machine: it has so many times as long."""


class Row(NamedTuple):
    """One line of the last table; ``reached`` None where nothing is promised."""

    part: str
    what: str
    value: str
    floor: str
    reached: bool | None


class Part(NamedTuple):
    """``words`` gives the command after ``python -m`` from (device, tiny, folder); ``rows`` reads what it left in the folder."""

    name: str
    limit_s: int
    words: Callable[[str, bool, Path], list[str]]
    rows: Callable[[Path], list[Row]]


class Outcome(NamedTuple):
    """How a part ended: its exit code (None: out of time) and the seconds it took."""

    name: str
    code: int | None
    seconds: float
    said: str


def _check_words(device: str, tiny: bool, folder: Path) -> list[str]:
    del folder
    return ["replay_kernels.check", "--device", device, "--json", *(("--only", "op", "--dtype", "float32") if tiny else ())]


def _check_rows(folder: Path) -> list[Row]:
    findings = _json_lines(folder / "checks.txt")
    if not findings:
        return []
    failed = [finding for finding in findings if not finding["holds"]]
    summary = Row("checks", "findings that hold", f"{len(findings) - len(failed)} of {len(findings)}", "all", not failed)
    return [summary, *(Row("checks", finding["name"], finding["said"], "holds", False) for finding in failed[:10])]


def _kernel_words(device: str, tiny: bool, folder: Path) -> list[str]:
    extra = ["--tiny"] if tiny else ["--trials"]
    return ["replay_kernels.bench", "--device", device, *extra, "--json", str(folder / "kernels.json")]


def _kernel_rows(folder: Path) -> list[Row]:
    file = folder / "kernels.json"
    if not file.is_file():
        return []
    found = json.loads(file.read_text(encoding="utf-8"))
    rows = [Row("kernels", "device copy", f"{found['copy_bytes_per_second'] / 1e9:.0f} GB/s", "", None)]
    for line in found["lines"]:
        if line["error"] or line["floor"] or not line["shape"].startswith("trial"):
            rows.append(Row("kernels", f"{line['name']} {line['shape']}", _numbers(line), line["floor"], line["reached"]))
    return rows


def _numbers(line: dict[str, Any]) -> str:
    if line["error"]:
        return f"FAILED: {line['error']}"
    tflops = "" if line["tflops"] is None else f", {line['tflops']} TFLOP/s"
    return f"{line['microseconds']} us, {line['gigabytes_per_second']} GB/s, {line['percent_of_copy']} % of copy{tflops}"


def _json_lines(file: Path) -> list[dict[str, Any]]:
    """The lines of a part's output that are JSON objects; a part that was ended may have cut its last one."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [value for value in found if isinstance(value, dict)]


def _figures(part: str, module: str, file: str) -> Callable[[Path], list[Row]]:
    """Reads a part that leaves figures: what ``module`` measured lies in ``file``."""

    def rows(folder: Path) -> list[Row]:
        if not (folder / file).is_file():
            return [Row(part, f"{module} left nothing", "", "", False)]
        found = []
        for one in json.loads((folder / file).read_text(encoding="utf-8"))["figures"]:
            value = f"FAILED: {one['error']}" if one["error"] else f"{one['value']:g} {one['unit']}"
            found.append(Row(part, one["name"], value, one["floor"], one["reached"]))
        return found

    return rows


def _measuring(name: str, limit_s: int, module: str, *, profile: bool = False) -> Part:
    """A part whose ``module`` of this package writes figures to a JSON file; ``profile``: it needs what was calibrated."""
    file = f"{module}.json"

    def words(device: str, tiny: bool, folder: Path) -> list[str]:
        extra = [*(["--tiny"] if tiny else []), *(["--profile", str(folder / "calibration.toml")] if profile else [])]
        return [f"benchmarks.gpu.{module}", "--device", device, *extra, "--json", str(folder / file)]

    return Part(name, limit_s, words, _figures(name, module, file))


PARTS: tuple[Part, ...] = (
    Part("checks", 120, _check_words, _check_rows),
    Part("kernels", 75, _kernel_words, _kernel_rows),
    _measuring("engine", 140, "engine"),
    _measuring("event log", 30, "event_log"),
    _measuring("calibration", 65, "calibration"),
    _measuring("simulator", 40, "against", profile=True),
)
"""Their limits sum to less than ``WHOLE_S``: none can take another one's time."""


def run_part(part: Part, limit_s: float, device: str, tiny: bool, folder: Path) -> Outcome:
    """Runs one part; its output goes to ``<name>.txt`` and ``<name>.err`` in ``folder``."""
    start, file = time.perf_counter(), part.name.replace(" ", "_")
    command = [sys.executable, "-m", *part.words(device, tiny, folder)]
    output, errors = folder / f"{file}.txt", folder / f"{file}.err"
    code: int | None = None
    with output.open("w", encoding="utf-8") as out, errors.open("w", encoding="utf-8") as err:
        try:
            code = subprocess.run(command, stdout=out, stderr=err, timeout=limit_s, check=False).returncode
        except subprocess.TimeoutExpired:
            code = None
    seconds = time.perf_counter() - start
    said = "done" if code == 0 else f"ended after {limit_s:.0f} s" if code is None else _last_line(errors) or f"exit code {code}"
    return Outcome(part.name, code, round(seconds, 1), said)


def _last_line(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else ""


def _environment(device: str) -> dict[str, Any]:
    code = (
        "import json, sys, torch; cuda = torch.cuda.is_available(); import importlib.metadata as m; print(json.dumps({"
        "'python': sys.version.split()[0], 'torch': torch.__version__, 'triton': m.version('triton'), 'cuda': torch.version.cuda,"
        "'device': torch.cuda.get_device_name(0) if cuda else 'none'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    found = json.loads(done.stdout) if done.returncode == 0 else {"error": (done.stderr.strip().splitlines() or ["?"])[-1]}
    return {"asked": device, **found}


def _printed(rows: list[Row], outcomes: list[Outcome]) -> None:
    for row in rows:
        verdict = "" if row.reached is None else "reached" if row.reached else "MISSED"
        print(f"{row.part:11} {row.what:70.70} {row.value:64.64} {row.floor:16} {verdict}")
    for outcome in outcomes:
        print(f"{outcome.name:11} {'ok' if outcome.code == 0 else 'FAILED':6} {outcome.seconds:6.1f} s  {outcome.said}")


def main(words: list[str] | None = None) -> int:
    """The command line; exit code 1 if a part did not end well or a floor was missed."""
    parser = argparse.ArgumentParser(prog="benchmarks/gpu/run.sh", description="Every claim about a GPU, in one run.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: a rehearsal")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for JSON and the parts' output")
    parser.add_argument("--only", action="append", choices=[part.name for part in PARTS], help="only this part (may be repeated)")
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    slack = REHEARSAL if given.tiny else 1
    environment, end = _environment(given.device), time.monotonic() + slack * WHOLE_S
    print(" ".join(f"{name}={value}" for name, value in environment.items()), flush=True)
    outcomes, rows = [], []
    for part in PARTS:
        if given.only and part.name not in given.only:
            continue
        print(f"{part.name} ...", flush=True)
        left = max(1.0, end - time.monotonic())
        outcomes.append(run_part(part, min(slack * part.limit_s, left), given.device, given.tiny, given.out))
        try:
            rows += part.rows(given.out)
        except (OSError, ValueError, KeyError) as error:
            rows.append(Row(part.name, "results cannot be read", f"{type(error).__name__}: {error}", "", False))
    _printed(rows, outcomes)
    whole = {"environment": environment, "parts": [o._asdict() for o in outcomes], "rows": [r._asdict() for r in rows]}
    (given.out / "results.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    return 1 if any(outcome.code != 0 for outcome in outcomes) or any(row.reached is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Job files: everything that ``tracekit tune`` takes, in a table ``[tune]``, to run unattended.

::

    [tune]
    trace = "monday.jsonl"
    slo = "ttft=500ms,tpot=50ms"
    policy = "current.toml"
    trials = 200
    minutes = 30
    seed = 7
    out = { report = "answer.txt", json = "answer.json" }

Names are those of the options, with underscores; paths are relative to the file. What the command line gives wins.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay_engine.settings_file import nearest
from tracekit.errors import UsageError, shown, shown_path

if TYPE_CHECKING:
    from tuner.tune import TuneReport

__all__ = ["read_job", "write_out_files"]

ALIASES: dict[str, str] = {"set": "sets", "map": "mapping", "format": "trace_format", "base": "policy"}
LISTS = ("sets", "mapping", "also")
PATHS = ("trace", "policy", "profile", "space", "db")


def read_job(path: str, options: Mapping[str, Any], typed: set[str]) -> dict[str, Any]:
    """``options`` with the file's values wherever the command line did not give any. Errors: ``UsageError``."""
    where = f"--job {shown_path(path)}"
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UsageError(f"{where}: {reason}; expected a TOML file with a table [tune]") from None
    table = document.get("tune")
    if not isinstance(table, Mapping):
        raise UsageError(f"{where}: has no table [tune]; expected one")
    merged = dict(options)
    for key, value in dict(table).items():
        name: str = ALIASES.get(key, key)
        if name == "out":
            merged["out"] = _outputs(where, value, Path(path).parent)
        elif name not in options:
            raise UsageError(f"{where}: {shown(key)}: unknown; {nearest(key, (*options, 'out'))}")
        elif name not in typed:
            merged[name] = _value(where, name, key, value, options[name], Path(path).parent)
    return merged


def _value(where: str, name: str, key: str, value: Any, default: Any, folder: Path) -> Any:
    if name in LISTS:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            raise UsageError(f"{where}: {shown(key)} = {shown(value)}: expected a list of texts")
        return tuple(_path(folder, each) if name == "also" else each for each in values)
    wanted = _kinds(name, default)
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise UsageError(f"{where}: {shown(key)} = {shown(value)}: expected {' or '.join(kind.__name__ for kind in wanted)}")
    return _path(folder, value) if name in PATHS and isinstance(value, str) else value


def _kinds(name: str, default: Any) -> tuple[type, ...]:
    if isinstance(default, bool):
        return (bool,)
    if name in ("minutes", "price_per_hour", "target", "rate_scale"):
        return (int, float)
    if name in ("trials", "workers", "windows", "holdout", "seed", "top"):
        return (int,)
    return (str,)


def _path(folder: Path, text: str) -> str:
    """The file beside the job file where there is one; else as written, which may be a name."""
    return str(folder / text) if not os.path.isabs(text) and (folder / text).exists() else text


def _outputs(where: str, value: Any, folder: Path) -> dict[str, Path]:
    if not isinstance(value, Mapping) or not set(value) <= {"report", "json"}:
        raise UsageError(f"{where}: out = {shown(value)}: expected {{ report = FILE, json = FILE }}")
    return {kind: folder / str(name) for kind, name in value.items()}


def write_out_files(out: Mapping[str, Path], report: TuneReport) -> None:
    """The report's text and document to the files that the job names."""
    for kind, path in out.items():
        text = report.text if kind == "report" else json.dumps(report.document, indent=2, default=str) + "\n"
        path.write_text(text, encoding="utf-8")

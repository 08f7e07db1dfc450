"""What a calibration can be made from, how it is told from what is given, and who reads it.

A source is one module with one function ``SourceRequest -> SourceReport``, named in ``KINDS`` together with the options that mean
something to it; any other option is refused, so that none is ignored in silence.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from replay_engine.config import ConfigError
from replay_engine.profile import PhysicsError, Profile
from tracekit.calibration.looking import looked_at
from tracekit.errors import InputError, UsageError, shown, shown_path
from tracekit.store import Store

__all__ = [
    "KINDS", "NO_CARD", "Kind", "ReportTable", "SourceReport", "SourceRequest", "calibrate_source", "find_kind", "in_words",
    "refused", "write_profile",
]  # fmt: skip

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRequest:
    """What was asked for. ``None`` and ``()`` stand for not given.

    ``sets`` and ``policy`` say under which settings the engine ran (``policy``: a file, a ``vllm serve`` command or the
    ``non-default args`` line of a log); ``prior`` names the profile whose numbers stand where the source cannot tell.
    """

    source: str
    sets: tuple[str, ...] = ()
    policy: str | None = None
    prior: str | None = None
    model: str | None = None
    hardware: str | None = None
    tensor_parallel: int | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    db: str | Path = "tracekit.duckdb"
    seed: int = 0
    progress: Progress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A table for a person; the same figures stand in ``SourceReport.document`` for a program."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(slots=True, kw_only=True)
class SourceReport:
    """A profile from a source, what is said of it line by line and in tables, and the same as plain values in ``document``."""

    kind: str
    profile: Profile
    lines: list[str] = field(default_factory=list)
    tables: list[ReportTable] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)

    def write(self, file: str | Path) -> None:
        """The profile as TOML, for ``--profile``. ``UsageError``: the file cannot be written."""
        write_profile(self.profile, file)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"source": self.kind, "profile": self.profile.to_dict(), "notes": list(self.lines), **self.document}


class Written(Protocol):
    """Whatever a calibration ends as: it can be written, and told."""

    profile: Profile

    def write(self, file: str | Path) -> None: ...

    def to_dict(self) -> dict[str, Any]: ...


NO_CARD = 'physics = "off": nobody said which model and card this was; --profile NAME says so'
"""Of a fit that is held to nothing, and of which no share of a peak can be told."""


def in_words(low: float, high: float) -> str:
    """A range as a source of a number tells it."""
    form = ",.0f" if high >= 1000 else ",.4g"
    return f"{low:{form}} to {high:{form}}"


def write_profile(profile: Profile, file: str | Path) -> None:
    """``profile`` as TOML. ``UsageError``: the file cannot be written."""
    try:
        Path(file).write_text(profile.to_toml(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {shown_path(file)}: {error.strerror or error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of source: ``reads`` names its function as ``module:function``, ``options`` the fields of ``SourceRequest`` it takes
    besides the source itself."""

    what: str
    reads: str
    options: frozenset[str] = frozenset()


KINDS: dict[str, Kind] = {
    "run": Kind(what="the iterations of a recorded run", reads="tracekit.calibration.recorded:calibrate_recorded"),
    "vllm-log": Kind(
        what="a vLLM log with --enable-logging-iteration-details",
        reads="tracekit.calibration.vllm_log:calibrate_vllm_log",
        options=frozenset({"sets", "prior"}),
    ),
    "vllm-stats": Kind(
        what="a vLLM log with its ten-second statistics",
        reads="tracekit.calibration.vllm_stats:calibrate_vllm_stats",
        options=frozenset({"sets", "prior"}),
    ),
    "prometheus": Kind(
        what="snapshots of vLLM's Prometheus metrics, in a file or a folder of files",
        reads="tracekit.calibration.prometheus:calibrate_prometheus",
        options=frozenset({"sets", "prior"}),
    ),
    "sglang-log": Kind(
        what="the batch lines of an SGLang log",
        reads="tracekit.calibration.sglang_log:calibrate_sglang_log",
        options=frozenset({"prior"}),
    ),
    "events": Kind(
        what="an event log: Parquet or JSONL rows of iterations (docs/event_log.md)",
        reads="tracekit.calibration.event_log:calibrate_event_log",
        options=frozenset({"prior"}),
    ),
    "roofline": Kind(
        what="a model's config.json, or the folder it is in",
        reads="tracekit.calibration.on_paper:calibrate_on_paper",
        options=frozenset({"hardware", "tensor_parallel", "dtype", "kv_dtype"}),
    ),
    "latencies": Kind(
        what="a trace with observed latencies",
        reads="tracekit.calibration.observed.source:calibrate_latencies",
        options=frozenset({"sets", "policy", "prior"}),
    ),
}
FILES = frozenset({"vllm-log", "vllm-stats", "prometheus", "sglang-log", "events", "roofline"})
FOLDERS = frozenset({"roofline", "prometheus"})
ALWAYS = frozenset({"source", "db", "seed", "progress"})
OPTIONS = {
    "sets": "--set", "policy": "--policy", "prior": "--profile", "model": "--model", "hardware": "--hardware",
    "tensor_parallel": "--tensor-parallel", "dtype": "--dtype", "kv_dtype": "--kv-dtype",
}  # fmt: skip


def calibrate_source(request: SourceRequest, kind: str | None = None) -> Written:
    """Calibrate from ``request.source``, whose kind is found by what it is unless it is named.

    ``UsageError``: no such source or kind, or an option that means nothing to it; ``InputError``, ``ConfigError``: what is in it.
    """
    name = find_kind(request) if kind is None else kind
    taken = f", which {shown_path(request.source)} was taken for" if kind is None else ""
    if name not in KINDS:
        raise UsageError(f"--as {shown(name)}: expected one of {', '.join(KINDS)}")
    found = KINDS[name]
    for each in fields(request):
        given = getattr(request, each.name) not in (None, ())
        if given and each.name not in ALWAYS and each.name not in found.options:
            takes = ", ".join(sorted(OPTIONS[o] for o in found.options)) or "no such option"
            raise UsageError(f"{OPTIONS[each.name]}: means nothing to {found.what} (--as {name}){taken}; expected {takes}")
    path = Path(request.source)
    if name in FILES and not path.exists():
        raise UsageError(f"{shown_path(request.source)}: no such file; expected {found.what}")
    if name in FILES and path.is_dir() and name not in FOLDERS:
        raise UsageError(f"{shown_path(request.source)}: a folder; expected {found.what}")
    module, _, function = found.reads.partition(":")
    read: Callable[[SourceRequest], Written] = getattr(import_module(module), function)
    try:
        return read(request)
    except PhysicsError as error:
        expected = "--profile of the model and card that it ran on; without it nothing is held to a card"
        raise refused(request, error, expected) from None


def refused(request: SourceRequest, error: PhysicsError, expected: str) -> ConfigError:
    """A fit that beats the card, told of the source that it came from."""
    return ConfigError(f"{shown_path(request.source)}: the fit is refused, {error.finding}; expected {expected}")


def find_kind(request: SourceRequest) -> str:
    """The kind of the source, by what it is. ``UsageError``: neither a file nor the name of a run."""
    path = Path(request.source)
    if path.is_file() and path.suffix == ".parquet" and _has_iterations(path):
        return "events"
    if path.is_file():
        text = looked_at(path)
        if text.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise InputError("UTF-16 text", file=shown_path(request.source), expected="UTF-8 text")
        for name, marks in _MARKS.items():
            if all(mark in text for mark in marks):
                return name
        if any(mark in text for mark in _OF_VLLM):
            raise InputError("a log of vLLM without iteration lines or statistics", file=shown_path(request.source), expected=(
                "one with --enable-logging-iteration-details, or the ten-second lines that --disable-log-stats leaves out"
            ))  # fmt: skip
        if _is_trace(path):
            return "latencies"
    if (path / "config.json").is_file():
        return "roofline"
    if path.is_dir() and any(_MARKS["prometheus"][0] in looked_at(each) for each in _files_in(path, 3)):
        return "prometheus"
    if path.is_file() and path.stat().st_size == 0:
        raise InputError("empty", file=shown_path(request.source), expected=_expected())
    if path.exists():
        raise UsageError(f"{shown_path(request.source)}: not a source of a known kind; expected {_expected()}")
    if os.sep in request.source or not Path(request.db).exists():
        raise UsageError(f"{shown_path(request.source)}: no such file, nor a recorded run; expected {_expected()}")
    return _of_database(request)


def _of_database(request: SourceRequest) -> str:
    """A name in the database: of a trace that was loaded, else of a run. ``UsageError``: of both."""
    with Store(request.db).read() as con:
        tables = {name for (name,) in con.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
        named = [
            table for table in ("traces", "runs")
            if table in tables and con.execute(f"SELECT 1 FROM {table} WHERE name = ? LIMIT 1", [request.source]).fetchall()
        ]  # fmt: skip
    if len(named) > 1:
        raise UsageError(f"{shown(request.source)}: a loaded trace and a run have this name; expected --as latencies or --as run")
    return "latencies" if named == ["traces"] else "run"


_MARKS = {
    "vllm-log": (b"Iteration(", b"iteration elapsed time"), "events": (b'"decode_seqs"', b'"prefill_tokens"'),
    "vllm-stats": (b"Avg prompt throughput: ", b"Avg generation throughput: "), "prometheus": (b"vllm:generation_tokens_total",),
    "sglang-log": (b"Decode batch", b"#running-req"), "roofline": (b'"num_hidden_layers"', b'"hidden_size"'),
}  # fmt: skip
"""What the start or the middle of a file of each kind contains."""
_OF_VLLM = (b"non-default args: {", b"LLM engine (v", b"(EngineCore", b"(APIServer pid=")
"""What a log of vLLM has that tells no time."""


def _has_iterations(path: Path) -> bool:
    import polars as pl

    try:
        return "decode_seqs" in pl.read_parquet_schema(path)
    except (OSError, pl.exceptions.PolarsError):
        return False


def _is_trace(path: Path) -> bool:
    from tracekit.traces.formats import detect
    from tracekit.traces.inputs import open_sources

    try:
        with open_sources(str(path)) as sources:
            detect(sources[0], mapped=False)
    except InputError:
        return False
    return True


def _files_in(folder: Path, most: int) -> list[Path]:
    try:
        return [each for each in sorted(folder.iterdir())[:most] if each.is_file()]
    except OSError:
        return []


def _expected() -> str:
    return "; ".join(f"{name}: {kind.what}" for name, kind in KINDS.items())

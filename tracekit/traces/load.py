"""Loading a trace: into the tables of a DuckDB file, or into memory."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tracekit.errors import InputError, UsageError
from tracekit.traces.arrange import Arranged, arrange
from tracekit.traces.cached_tokens import count_cached
from tracekit.traces.columns import parse_mapping
from tracekit.traces.ddl import create_tables
from tracekit.traces.formats import Format, ReadOptions, detect, format_named
from tracekit.traces.inputs import Source, open_sources
from tracekit.traces.mapping import told_names
from tracekit.traces.said_prefix import Beginning, begin_alike, whole_blocks
from tracekit.traces.sidecars import attach_sidecars
from tracekit.traces.stage import Reject, Stage
from tracekit.traces.tolerance import Tolerance, check_again

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

__all__ = ["LOADER_VERSION", "LoadReport", "LoadedTrace", "inspect_trace", "load_trace", "read_trace", "report_of"]

DEFAULT = Tolerance()
LOADER_VERSION = "1"
IGNORED = 200
Inputs = str | Path | Sequence[str | Path]
Cached = Literal["inside", "outside"] | None
Mapping = list[str] | dict[str, str] | None


@dataclass(slots=True, kw_only=True)
class LoadReport:
    """What was read, as what, and what became of every row: ``rows_read == rows_kept + sum(rows_dropped.values())``."""

    trace: int | None
    name: str
    digest: str
    format: str
    detected_by: str
    files: list[str]
    rows_read: int
    rows_kept: int
    rows_dropped: dict[str, int]
    span_ns: int
    t0_ns: int | None
    block_tokens: int | None
    obs_clock: str | None
    arrival_kind: str = "relative"
    already_loaded: bool = False
    ignored_columns: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    times: dict[str, str] = field(default_factory=dict)
    """How each source column of times was read, and why so (empty for a trace that was loaded before)."""
    wall_s: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @property
    def left_out(self) -> str | None:
        """One line on the rows that are not in the trace; ``None``: all are."""
        count = sum(self.rows_dropped.values())
        why = ", ".join(f"{reason} {rows:,}" for reason, rows in self.rows_dropped.items())
        return f"{count:,} of {self.rows_read:,} rows were left out ({why})" if count else None


@dataclass(slots=True, kw_only=True)
class LoadedTrace:
    """A trace in memory: ``arrivals``, ``extras`` and ``runs`` have the columns of the tables ``arrivals``, ``request_extras``
    and ``blocks`` that the source fills, in the order of ``req_idx``; ``None`` where it has none."""

    report: LoadReport
    arrivals: pa.Table
    extras: pa.Table | None
    runs: pa.Table | None


def load_trace(con: duckdb.DuckDBPyConnection, inputs: Inputs, *, name: str | None = None, mapping: Mapping = None,
               fmt: str | None = None, tolerance: Tolerance = DEFAULT, cached: Cached = None,
               arrival: str | None = None, shared_prefix: Beginning | None = None) -> LoadReport:  # fmt: skip
    """Load a trace into the database of ``con`` (writable, inside a transaction that the caller owns).

    ``cached`` says whether the log's input counts have the cached tokens in them, ``arrival`` (``poisson:rate=5``) places
    requests that have no arrivals, ``shared_prefix`` what the prompts of a trace without block hashes begin alike with. The
    same bytes read the same way are found, not loaded again. Errors: ``InputError``, ``UsageError``.
    """
    began = time.perf_counter()
    shared_prefix = None if shared_prefix is None else whole_blocks(shared_prefix)
    create_tables(con)
    with open_sources(inputs) as sources, Stage() as stage:
        digest = _digest(sources, mapping, fmt, tolerance, cached, arrival, shared_prefix)
        found = con.execute("SELECT trace FROM traces WHERE digest = ?", [digest]).fetchall()
        if found:
            report = report_of(con, int(found[0][0]))
            check_again(report.rejects, report.rows_read, report.rows_dropped, tolerance)
            report.wall_s = time.perf_counter() - began
            return report
        chosen = _free_name(con, name, sources)
        arranged, why = _read(sources, stage, mapping, fmt, tolerance, cached, arrival)
        if shared_prefix is not None:
            begin_alike(arranged, shared_prefix, sources[0].name)
        trace = int(con.execute("SELECT coalesce(max(trace), 0) + 1 FROM traces").fetchall()[0][0])
        report = _report(arranged, sources, trace, chosen, digest, why)
        _insert(con, arranged, report, sources)
        report.wall_s = time.perf_counter() - began
        return report


def read_trace(inputs: Inputs, *, name: str | None = None, mapping: Mapping = None, fmt: str | None = None,
               tolerance: Tolerance = DEFAULT, cached: Cached = None, arrival: str | None = None) -> LoadedTrace:  # fmt: skip
    """Read a trace into memory, without a database. Errors: ``InputError``, ``UsageError``."""
    began = time.perf_counter()
    with open_sources(inputs) as sources, Stage() as stage:
        arranged, why = _read(sources, stage, mapping, fmt, tolerance, cached, arrival)
        digest = _digest(sources, mapping, fmt, tolerance, cached, arrival)
        report = _report(arranged, sources, None, name or _stem(sources), digest, why)
        arrivals = arranged.arrivals(0).read_all()
        extras = arranged.extras(0)
        report.wall_s = time.perf_counter() - began
        return LoadedTrace(report=report, arrivals=arrivals, extras=None if extras is None else extras.read_all(),
                           runs=_runs_table(arranged, 0))  # fmt: skip


def inspect_trace(inputs: Inputs, *, mapping: Mapping = None, fmt: str | None = None, tolerance: Tolerance = DEFAULT,
                  cached: Cached = None, arrival: str | None = None) -> LoadReport:  # fmt: skip
    """Read a trace only to see what becomes of it: nothing is kept. Errors: ``InputError``, ``UsageError``."""
    began = time.perf_counter()
    with open_sources(inputs) as sources, Stage() as stage:
        arranged, why = _read(sources, stage, mapping, fmt, tolerance, cached, arrival)
        report = _report(arranged, sources, None, _stem(sources), _digest(sources, mapping, fmt, tolerance, cached, arrival), why)
    report.wall_s = time.perf_counter() - began
    return report


def report_of(con: duckdb.DuckDBPyConnection, trace: int) -> LoadReport:
    """The report of a trace that is in the database."""
    rows = con.execute(
        "SELECT name, digest, source_format, list_transform(source_files, lambda f: f.name), rows_read, rows_kept, rows_dropped,"
        " span_ns, t0_ns, block_tokens, obs_clock, warnings, arrival_kind FROM traces WHERE trace = ?", [trace],
    ).fetchall()  # fmt: skip
    if not rows:
        raise UsageError(f"trace {trace}: not in this database")
    row = rows[0]
    rejects = con.execute('SELECT file, line, "column", value, reason FROM quarantine WHERE trace = ? ORDER BY 1, 2', [trace])
    return LoadReport(
        trace=trace, name=row[0], digest=row[1], format=row[2], detected_by="loaded before", files=row[3], rows_read=row[4],
        rows_kept=row[5], rows_dropped=dict(row[6]), span_ns=row[7], t0_ns=row[8], block_tokens=row[9], obs_clock=row[10],
        warnings=row[11], arrival_kind=row[12], already_loaded=True, rejects=[Reject(*reject) for reject in rejects.fetchall()],
    )  # fmt: skip


def _digest(sources: list[Source], mapping: Mapping, fmt: str | None, tolerance: Tolerance, cached: Cached,
            arrival: str | None, shared_prefix: Beginning | None = None) -> str:  # fmt: skip
    """One file read with nothing said is known by its own sha256; anything else by a digest over all that matters."""
    if len(sources) == 1 and not mapping and fmt is None and not (tolerance.dedupe or cached or arrival or shared_prefix):
        return sources[0].sha256
    said = sorted(mapping.items() if isinstance(mapping, dict) else mapping or [])
    matters = (fmt, said, [source.sha256 for source in sources], *(["dedupe"] if tolerance.dedupe else []),
               *([cached, arrival] if cached or arrival else []),
               *([shared_prefix.key] if shared_prefix else []))  # fmt: skip
    return hashlib.sha256(repr(matters).encode()).hexdigest()


def _stem(sources: list[Source]) -> str:
    name = Path(sources[0].name).name
    return re.sub(r"(\.(gz|csv|tsv|jsonl|json|ndjson|parquet|txt|log))+$", "", name) or name


def _free_name(con: duckdb.DuckDBPyConnection, name: str | None, sources: list[Source]) -> str:
    taken = {row[0] for row in con.execute("SELECT name FROM traces").fetchall()}
    if name is not None:
        if name in taken:
            raise UsageError(f"--name {name}: another trace has this name; expected a new one")
        return name
    stem = _stem(sources)
    return next(n for n in (stem, *(f"{stem}-{k}" for k in range(2, len(taken) + 3))) if n not in taken)


def _read(sources: list[Source], stage: Stage, mapping: Mapping, fmt: str | None,
          tolerance: Tolerance, cached: Cached, arrival: str | None) -> tuple[Arranged, tuple[str, str]]:  # fmt: skip
    options = ReadOptions(mapping=parse_mapping(mapping), cached=cached, arrival=arrival)
    if fmt is not None:
        chosen, why = format_named(fmt), "as said"
    else:
        chosen, match = detect(sources[0], mapped=bool(options.mapping))
        why = match.why
    absolute: bool | None = None
    _refuse_strangers(sources, chosen, fmt, stage)
    for source in sources:
        stage.names[source.number] = source.name
        chosen.read(source, stage, options)
        if source.cut_at is not None:
            if tolerance.on_error == "fail":
                raise InputError(f"the archive breaks off at byte {source.cut_at}", file=source.name,
                                 expected="a whole one (--on-error fail)")  # fmt: skip
            stage.facts.warn(f"{source.name}: the archive breaks off at byte {source.cut_at}; what it holds was read")
        if absolute is not None and absolute != stage.facts.absolute:
            stage.facts.warn(f"{source.name}: its times count from another start than those of the files before it")
        absolute = stage.facts.absolute
    if stage.kept:
        count_cached(stage, chosen.NAME, cached, sources[0].name)
    return arrange(stage, sources[0].name, tolerance, arrival), (chosen.NAME, why)


def _refuse_strangers(sources: list[Source], chosen: Format, fmt: str | None, stage: Stage) -> None:
    """Further files must look like the first one, unless a person said what they are."""
    seen: dict[str, str] = {}
    for source in sources:
        if source.sha256 in seen:
            stage.facts.warn(f"{source.name}: the same bytes as {seen[source.sha256]}; every request counts twice")
        seen.setdefault(source.sha256, source.name)
        if fmt is None and chosen.sniff(source.head) is None:
            raise InputError(f"not {chosen.NAME}, as {sources[0].name} is", file=source.name,
                             expected="files of one format in one load (or say it with --format)")  # fmt: skip


def _report(arranged: Arranged, sources: list[Source], trace: int | None, name: str, digest: str,
            how: tuple[str, str]) -> LoadReport:  # fmt: skip
    stage, facts = arranged.stage, arranged.stage.facts
    return LoadReport(
        trace=trace, name=name, digest=digest, format=how[0], detected_by=how[1], files=[source.name for source in sources],
        rows_read=stage.read, rows_kept=stage.kept, rows_dropped=dict(stage.dropped), span_ns=arranged.span_ns,
        t0_ns=arranged.t0_ns if facts.absolute else None, block_tokens=facts.block_tokens, obs_clock=facts.obs_clock,
        arrival_kind=facts.arrival_kind or ("absolute" if facts.absolute else "relative"),
        ignored_columns=_told(list(facts.ignored)), warnings=facts.warnings, rejects=stage.rejects,
        times=facts.times,
    )  # fmt: skip


def _told(names: list[str]) -> list[str]:
    """The columns that were not read, for people: a log keyed by its users' words has names by the thousand."""
    told = [told_names([name]) for name in names[:IGNORED]]
    return told + ([f"and {len(names) - IGNORED} more"] if len(names) > IGNORED else [])


def _runs_table(arranged: Arranged, trace: int) -> pa.Table | None:
    import numpy as np
    import pyarrow as pa

    runs = arranged.runs
    if runs is None:
        return None
    return pa.table(
        {
            "trace": pa.array(np.full(len(runs.pos), trace, np.uint32)),
            "req_idx": pa.array(runs.req_idx.astype(np.uint32)),
            "pos_start": pa.array(runs.pos.astype(np.uint32)),
            "first_id": pa.array(runs.first.astype(np.uint64)),
            "len": pa.array(runs.length.astype(np.uint32)),
        }
    )


def _insert(con: duckdb.DuckDBPyConnection, arranged: Arranged, report: LoadReport, sources: list[Source]) -> None:
    assert report.trace is not None
    _copy(con, "arrivals", arranged.arrivals(report.trace))
    _copy(con, "request_extras", arranged.extras(report.trace))
    _copy(con, "blocks", _runs_table(arranged, report.trace))
    _copy(con, "quarantine", _rejects_table(report))
    attach_sidecars(con, report.trace, report.files, report.t0_ns, arranged.stage.facts.warn)
    facts = arranged.stage.facts
    files = [{"name": source.name, "sha256": source.sha256, "bytes": source.size} for source in sources]
    con.execute(
        "INSERT INTO traces VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, map(?, ?), ?, ?, now()::TIMESTAMP)",
        [report.trace, report.name, report.digest, report.format, files, report.t0_ns, facts.zone_assumed, report.span_ns,
         arranged.resolution_ns, report.arrival_kind, facts.block_tokens,
         facts.hash_scope, facts.hash_rounding, facts.obs_clock, report.rows_read, report.rows_kept, list(report.rows_dropped),
         list(report.rows_dropped.values()), report.warnings, LOADER_VERSION],
    )  # fmt: skip


def _rejects_table(report: LoadReport) -> pa.Table | None:
    import pyarrow as pa

    if not report.rejects:
        return None
    names = ("file", "line", "column", "value", "reason")
    columns = {name: [getattr(reject, name) for reject in report.rejects] for name in names}
    arrays = {name: pa.array(values, pa.int64() if name == "line" else pa.string()) for name, values in columns.items()}
    return pa.table({"trace": pa.array([report.trace] * len(report.rejects), pa.uint32()), **arrays})


def _copy(con: duckdb.DuckDBPyConnection, table: str, rows: pa.Table | pa.RecordBatchReader | None) -> None:
    if rows is None:
        return
    con.register("incoming_rows", rows)
    con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming_rows")
    con.unregister("incoming_rows")

"""``export``: a run, a finding's change or a tuner's answer in a format that others read. Pages are ``dashboards.report``'s."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracekit.errors import UsageError, shown
from tracekit.exports.destination import STDOUT, refuse_existing, whole_file
from tracekit.exports.flag_text import FLAG_FORMATS, flag_text
from tracekit.exports.wanted import Wanted, read_tuned, wanted_by_finding, wanted_by_run, wanted_by_tuner
from tracekit.slices import parse_window
from tracekit.store import Store, load_run, resolve_run
from tracekit.store.findings import load_verdict

__all__ = ["FORMATS", "Asked", "ExportReport", "export", "is_tuned", "tuned_answer"]

FORMATS = ("perfetto", "csv", "parquet", "html", "markdown", *FLAG_FORMATS)
_NEVER = 1 << 62
"""Where a window ends that has no end, ns."""
TUNE = "tune"
"""What stands for the latest answer of a tuner where a run's name is expected."""
_FILES = {"perfetto": "run-{run}.perfetto.json.gz", "csv": "run-{run}-csv", "parquet": "run-{run}-parquet"}
_ONLY: dict[str, tuple[str, ...]] = {
    "tables": ("csv", "parquet"), "window": ("perfetto",), "finding": tuple(FLAG_FORMATS), "pool": tuple(FLAG_FORMATS),
    "diff": ("vllm-args",), "engine_version": tuple(FLAG_FORMATS),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What was written where. ``out``: the file or folder, ``None`` for a text that went nowhere yet (``text``); ``figures``:
    rows by table, numbers of events, flags, whatever the format counts."""

    to: str
    run: int | None
    out: str | None
    text: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"schema": "tracekit.export/1", "to": self.to, "run": self.run, "out": self.out, "text": self.text, **self.figures}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of ``export``, as there."""

    to: str
    out: str | None = None
    force: bool = False
    tables: tuple[str, ...] = ()
    window: str | None = None
    finding: str | None = None
    pool: str | None = None
    diff: str | None = None
    engine_version: str | None = None

    def __post_init__(self) -> None:
        if self.to not in FORMATS:
            raise UsageError(f"--to {shown(self.to)}: no such format; expected one of {', '.join(FORMATS)}")
        for option, formats in _ONLY.items():
            if getattr(self, option) and self.to not in formats:
                name = "table" if option == "tables" else option.replace("_", "-")
                raise UsageError(f"--{name} means nothing with --to {self.to}; expected it with {', '.join(formats)}")
        if self.finding and self.pool:
            raise UsageError("--finding and --pool: a finding's change is of the whole policy; expected one of them")


def export(
    run: str = "last",
    *,
    to: str,
    out: str | Path | None = None,
    force: bool = False,
    tables: Sequence[str] = (),
    window: str | None = None,
    finding: str | None = None,
    pool: str | None = None,
    diff: str | None = None,
    engine_version: str | None = None,
    db: str | Path = "tracekit.duckdb",
) -> ExportReport:
    """Export ``run`` (number, name, ``last``; for flags also a file with a tuner's answer, or ``tune``, the latest) as ``to``,
    one of ``FORMATS`` but ``html``. ``out`` left out: texts are returned, the rest goes to a file or folder named after the run.

    ``tables``: of csv and parquet; ``window``: part of the engine clock, as ``40s:80s``, for perfetto; for flags ``finding``:
    only the change confirmed against it, ``pool``: which of separate pools, ``diff``: against this ``vllm serve`` line,
    ``engine_version``: of vLLM. Nothing is left half written. ``UsageError``: what cannot be used or is there already.
    """
    asked = Asked(to=to, out=None if out is None else str(out), force=force, tables=tuple(tables), window=window, finding=finding,
                  pool=pool, diff=diff, engine_version=engine_version)  # fmt: skip
    if asked.out not in (None, STDOUT):
        refuse_existing(Path(str(asked.out)), force)
    store = Store(db)
    if is_tuned(run, store):
        if to not in FLAG_FORMATS:
            raise UsageError(f"--to {to}: a tuner's answer is no run; expected html or flags: {', '.join(FLAG_FORMATS)}")
        return _flags(asked, wanted_by_tuner(tuned_answer(run, store)), None)
    number = resolve_run(store, run)
    if to in FLAG_FORMATS:
        row = load_run(store, number)
        by_finding = finding is not None
        wanted = wanted_by_finding(row, load_verdict(store, number), str(finding)) if by_finding else wanted_by_run(row, pool)
        return _flags(asked, wanted, number)
    if to == "markdown":
        return _ticket(asked, store, number)
    return _perfetto(asked, store, number) if to == "perfetto" else _tables(asked, store, number)


def is_tuned(run: str, store: Store) -> bool:
    """Whether ``run`` means a tuner's answer: a JSON file, or ``tune`` where no run is called so."""
    if run.endswith(".json") and Path(run).is_file():
        return True
    if run != TUNE:
        return False
    if not store.exists():
        return True
    with store.read() as con:
        return not con.execute("SELECT 1 FROM runs WHERE name = ?", [TUNE]).fetchall()


def tuned_answer(run: str, store: Store) -> dict[str, Any]:
    """The document that ``run`` means. ``UsageError``: none was found, or it is no answer."""
    if run != TUNE:
        return read_tuned(run)
    answers = sorted((store.folder / "tune").glob("*/answer.json"), key=lambda path: (path.stat().st_mtime_ns, path.parent.name))
    if not answers:
        raise UsageError(f"tune: {store.path} has no answer of a tuner yet; `tracekit tune TRACE --slo ...` makes one")
    return read_tuned(answers[-1])


def _text(asked: Asked, text: str, run: int | None, figures: dict[str, Any]) -> ExportReport:
    """A text, to its file where one was named."""
    if asked.out in (None, STDOUT):
        return ExportReport(to=asked.to, run=run, out=None, text=text, figures=figures)
    with whole_file(str(asked.out), force=asked.force) as stream:
        stream.write(text.encode())
    return ExportReport(to=asked.to, run=run, out=asked.out, figures=figures)


def _flags(asked: Asked, wanted: Wanted, run: int | None) -> ExportReport:
    found = flag_text(wanted, asked.to, asked.engine_version)
    figures: dict[str, Any] = {"flags": list(found.flags), "versions": found.versions, "sets": wanted.pairs}
    if asked.diff is None:
        return _text(asked, found.text, run, figures)
    from tracekit.exports.command_diff import command_diff

    difference = command_diff(wanted, asked.diff, asked.engine_version)
    figures |= {"out_flags": list(difference.out), "in_flags": list(difference.into), "command": difference.command}
    return _text(asked, difference.text(wanted.title), run, figures)


def _ticket(asked: Asked, store: Store, number: int) -> ExportReport:
    from tracekit.exports.ticket import ticket

    row = load_run(store, number)
    if row["matrix"] is None:
        raise UsageError(f"run {number}: state {row['state']}, it has no matrix; expected a run that ended")
    return _text(asked, ticket(row, load_verdict(store, number)), number, {})


def _perfetto(asked: Asked, store: Store, number: int) -> ExportReport:
    from tracekit.exports.perfetto import write_perfetto

    row = load_run(store, number)
    window = None if asked.window is None else parse_window(asked.window, _NEVER, None)
    out = asked.out or _FILES["perfetto"].format(run=number)
    title = f"run {number}, {row['trace_name']}, {row['profile'] or row['engine']}"
    with whole_file(out, force=asked.force) as stream, store.read() as con:
        written = write_perfetto(con, number, stream, title=title, window_ns=window)
        if not any(written.values()):
            where = " in that window" if window else "; replay with --events full"
            raise UsageError(f"run {number} keeps nothing to draw{where}")
    return ExportReport(to=asked.to, run=number, out=out, figures=written)


def _tables(asked: Asked, store: Store, number: int) -> ExportReport:
    from tracekit.exports.tables import chosen_tables, write_tables

    with store.read() as con:
        tables = chosen_tables(con, number, asked.tables)
        name = _FILES[asked.to].format(run=number)
        out = asked.out or (f"run-{number}-{next(iter(tables))}.{asked.to}" if len(tables) == 1 else name)
        write_tables(con, number, asked.to, list(tables), out, force=asked.force)
    return ExportReport(to=asked.to, run=number, out=out, figures={"rows": tables})

"""Event logs: rows of iterations in Parquet or JSONL, from our own engine or from whatever writes ``docs/event_log.md``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay_engine.calibration.many import MOST, fit_many, thinned
from replay_engine.calibration.outcome import calibrate_samples, profile_of
from replay_engine.calibration.samples import EAGER_MODE, samples_of_rows
from replay_engine.profile import Profile, load_profile
from replay_engine.tables import LONGEST
from tracekit.calibration.event_lines import EXPECTED, first_wrong, line_of_row, read_rows
from tracekit.calibration.report import CalibrationReport
from tracekit.calibration.sources import NO_CARD, SourceRequest
from tracekit.errors import InputError, shown
from tracekit.store import Store, resolve_run

if TYPE_CHECKING:
    import polars as pl

__all__ = ["COLUMNS", "SCHEMA", "EventColumn", "calibrate_event_log", "read_event_log", "write_event_log"]

SCHEMA = "tracekit.iterations/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventColumn:
    """A column of an event log; ``needed`` unless ``default`` says what stands for it. Numbers are 0 or more."""

    name: str
    unit: str
    what: str
    needed: bool = False


COLUMNS: tuple[EventColumn, ...] = tuple(
    EventColumn(name=name, unit=unit, what=what, needed=needed)
    for name, unit, what, needed in (
        ("device_ns", "ns", "device time of the iteration; null: compilation or capture, the row is left out", False),
        ("duration_ns", "ns", "whole iteration; stands for device_ns where that column is not there", False),
        ("host_ns", "ns", "scheduling and submitting; null: not measured", False),
        ("prefill_tokens", "tokens", "computed of prompts, recomputed ones too", True),
        ("prefill_qk", "token^2", "sum over prefill entries of query x (KV before it + query / 2)", True),
        ("decode_seqs", "sequences", "that decode", True),
        ("decode_kv_tokens", "tokens", "sum of their contexts", True),
        ("running", "sequences", "of the running list; default: decode_seqs + prefill_seqs", False),
        ("prefill_seqs", "sequences", "prefill entries", False),
        ("changes", "sequences", "joined or left the decodes since the last plan", False),
        ("admitted", "sequences", "stands with finished and preempted for changes", False),
        ("finished", "sequences", "", False),
        ("preempted", "sequences", "", False),
        ("padded_tokens", "rows", "that a captured graph added to the decodes", False),
        ("decode_longest_tokens", "tokens", "the longest of those contexts; 0 where nobody decodes", False),
        ("mode", "text", "how it ran: eager, or graph and its bucket", False),
        ("engine", "number", "of several engines", False),
        ("iteration", "number", "", False),
        ("start_ns", "ns", "on the engine clock", False),
    )
)


NUMBERS = frozenset(each.name for each in COLUMNS if each.name not in ("mode", "engine", "iteration", "start_ns"))


def calibrate_event_log(request: SourceRequest) -> CalibrationReport:
    """``InputError``: what of the file cannot be used; ``ConfigError``: too few rows, or a fit that beats the prior's card."""
    file = Path(request.source)
    rows, facts = read_event_log(file)
    changes = rows.pop("changes", None)
    if not (rows["device_ns"] > 0).any():
        raise InputError("no row has a time above 0", file=str(file), column="device_ns", expected="ns of each iteration")
    samples = samples_of_rows(rows, changes)
    writer = shown(facts.get("writer", "an event log"))
    note = f"fitted: least squares of {len(samples)} iterations of {shown(file.name)} ({writer})"
    part = thinned(samples)
    found = calibrate_samples(part, sources={"device": note, "host": note})
    if len(samples) > MOST:
        device = fit_many(samples)
        names = ("floor_ns", "a_ns", "b_ns", "c_ns", "d_ns", "e_ns", "p_ns", "s_ns")
        whole = replace(found.latency, **{name: getattr(device, name) for name in names})
        found = replace(found, latency=whole, iterations=len(samples))
    prior = load_profile(request.prior) if request.prior is not None else None
    physical = prior is not None and not prior.synthetic
    profile = profile_of(
        found, name=file.stem, kind=f"fitted to an event log ({writer})", model=prior.model if prior else None,
        hardware=prior.hardware if prior else None, peaks=physical,
    )  # fmt: skip
    return CalibrationReport(profile=profile, found=found, notes=_notes(facts, len(samples), prior))


def _notes(facts: Mapping[str, Any], used: int, prior: Profile | None) -> list[str]:
    card = [NO_CARD] if prior is None else []
    rows, unknown = facts["rows"], facts["unknown"]
    read = f"read: {rows:,} iterations, {used:,} of them fitted"
    if unknown:
        read += f"; {unknown:,} do not tell what they computed"
    if rows - unknown - used:
        read += f"; {rows - unknown - used:,} have no device time, computed nothing, or leave something out that the others tell"
    if "cut" not in facts:
        return [read, *card]
    cut = f"line {facts['cut']:,} is cut short and was left out: the log is still being written, or was copied in part"
    return [read, *card, cut]


def read_event_log(file: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Columns as ``samples_of_rows`` takes them (``changes`` besides, where the log has it), and the facts of its head, with
    ``rows``, of which ``unknown`` were left out. ``InputError``: not readable, a column missing, or a value that is none."""
    frame, facts = _frame(file)
    if facts.get("schema", SCHEMA) != SCHEMA:
        raise InputError("not a schema that is known here", file=str(file), value=facts["schema"], expected=SCHEMA)
    for each in COLUMNS:
        if each.needed and each.name not in frame.columns:
            raise InputError("missing column", file=str(file), column=each.name, expected=f"{each.unit}: {each.what}")
    if not {"device_ns", "duration_ns"} & set(frame.columns):
        raise InputError("missing column", file=str(file), column="device_ns", expected="device_ns, or duration_ns instead")
    number = {name: _numbers(frame, name, file) for name in NUMBERS if name in frame.columns}
    known = np.all([np.isfinite(number[each.name]) for each in COLUMNS if each.needed], axis=0)
    facts |= {"rows": frame.height, "unknown": int((~known).sum())}
    rows = _rows(number)
    if "mode" in frame.columns:
        rows["mode"] = np.array(frame["mode"].cast(str).fill_null(EAGER_MODE).to_list(), np.str_)
    if LONGEST[0] in number:
        _check_longest(rows, known, file)
    return {name: values[known] for name, values in rows.items()}, facts


def _rows(number: Mapping[str, npt.NDArray[np.float64]]) -> dict[str, npt.NDArray[Any]]:
    """What stands for columns that are not there, and for what a row does not tell."""
    count = len(number["decode_seqs"])
    counted = {name: np.nan_to_num(number.get(name, np.zeros(count)))
               for name in ("prefill_seqs", "padded_tokens", "admitted", "finished", "preempted")}  # fmt: skip
    running = number["decode_seqs"] + counted.pop("prefill_seqs")
    if "running" in number:
        running = np.where(np.isnan(number["running"]), running, number["running"])
    rows: dict[str, npt.NDArray[Any]] = {
        "device_ns": np.nan_to_num(number["device_ns" if "device_ns" in number else "duration_ns"]),
        "host_ns": number.get("host_ns", np.full(count, np.nan)), "running": running, **counted,
    }  # fmt: skip
    rows |= {each.name: number[each.name] for each in COLUMNS if each.needed}
    rows |= {"changes": np.nan_to_num(number["changes"])} if "changes" in number else {}
    return rows | ({LONGEST[0]: number[LONGEST[0]]} if LONGEST[0] in number else {})


def _check_longest(rows: Mapping[str, npt.NDArray[Any]], known: npt.NDArray[np.bool_], file: Path) -> None:
    """A longest context below the mean one is none: what it costs would be fitted to something else."""
    longest, seqs = rows[LONGEST[0]], rows["decode_seqs"]
    with np.errstate(invalid="ignore"):
        wrong = np.flatnonzero(known & (longest > 0) & (seqs > 0) & (longest * seqs < rows["decode_kv_tokens"]))
    if len(wrong):
        at = int(wrong[0])
        mean = rows["decode_kv_tokens"][at] / seqs[at]
        raise InputError("below the mean of the contexts", file=str(file), line=line_of_row(file, at), column=LONGEST[0],
                         value=f"{longest[at]:g}", expected=f"the longest of them, {mean:,.0f} or more")  # fmt: skip


def _frame(file: Path) -> tuple[pl.DataFrame, dict[str, Any]]:
    import polars as pl

    try:
        if file.suffix == ".parquet":
            facts = {key: value for key, value in pl.read_parquet_metadata(file).items() if key in ("schema", "writer")}
            return pl.read_parquet(file), dict(facts)
        return read_rows(file, NUMBERS)
    except (OSError, pl.exceptions.PolarsError) as error:
        # what a parser says may repeat what stands in the file
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not an event log"
        raise InputError(reason, file=str(file), expected=EXPECTED) from None


def _numbers(frame: pl.DataFrame, name: str, file: Path) -> npt.NDArray[np.float64]:
    import polars as pl

    column = frame[name]
    if not column.dtype.is_numeric() and column.dtype != pl.Null:
        found = None if file.suffix == ".parquet" else first_wrong(file.read_bytes(), NUMBERS, file, after=0)
        raise found or InputError("not a number", file=str(file), column=name, value=column.drop_nulls()[0], expected="0 or more")
    values: npt.NDArray[np.float64] = column.cast(pl.Float64).to_numpy().astype(np.float64)
    wrong = np.flatnonzero(values < 0)
    if len(wrong):
        at = int(wrong[0])
        raise InputError("below 0", file=str(file), line=line_of_row(file, at), column=name, value=f"{values[at]:g}",
                         expected="0 or more")  # fmt: skip
    return values


def write_event_log(store: Store, run: str, file: str | Path) -> int:
    """The iterations of a recorded run as an event log (Parquet). Returns their number. ``UsageError``: no such run."""
    import pyarrow.parquet

    number = resolve_run(store, run)
    with store.read() as con:
        there = {row[0] for row in con.execute("SELECT column_name FROM (DESCRIBE iterations)").fetchall()}
        names = [each.name for each in COLUMNS if each.name in there]
        picks = ", ".join(f"CAST({name} AS VARCHAR) AS {name}" if name == "mode" else name for name in names)
        query = f"SELECT {picks}, replica AS engine FROM iterations WHERE run = ? ORDER BY replica, iteration"
        table = con.sql(query, params=[number]).to_arrow_table()
    table = table.replace_schema_metadata({"schema": SCHEMA, "writer": "tracekit"})
    pyarrow.parquet.write_table(table, file)
    return int(table.num_rows)

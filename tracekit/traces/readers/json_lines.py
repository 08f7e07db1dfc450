"""JSON lines: a block of lines parsed at once, columns by field, prefix ids cut into runs by arrays.

A block that does not parse as a whole is parsed line by line, so that the bad lines can be named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tracekit.traces.columns import Mapped
from tracekit.traces.inputs import Source
from tracekit.traces.readers import json_values
from tracekit.traces.readers.json_prefix import Prefix, check_prefix
from tracekit.traces.readers.json_times import Units, times
from tracekit.traces.readers.json_values import Values
from tracekit.traces.stage import Stage
from tracekit.traces.units import duration_unit, nanoseconds

__all__ = ["Batches", "Derive", "Discover", "json_line_batches", "read_batches", "read_json_lines"]

BLOCK_BYTES = 48 << 10
"""Small, so that a block's objects are still in the processor's cache when their values are taken."""

GATHERED_ROWS = 4096
Ints = npt.NDArray[np.int64]
Derive = Callable[[dict[str, Values]], dict[str, Values]]
"""From the values of the fields read to those of canonical columns, for formats that compute some of them."""

Batches = Iterator[tuple[Ints, list[dict[str, Any]]]]
"""Line numbers and the records that begin there, some at a time."""

Discover = Callable[[list[str]], list[Mapped]]
"""From keys not seen before to fields to read from now on."""


@dataclass(slots=True)
class _Gathered:
    """Values of some thousand rows by canonical name; block ids are arrays already."""

    lines: list[Ints] = field(default_factory=list)
    values: dict[str, list[Any]] = field(default_factory=dict)
    ids: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    counts: list[Ints] = field(default_factory=list)
    bad_ids: dict[int, str] = field(default_factory=dict)
    rows: int = 0

    def add(self, lines: Ints, rows: list[dict[str, Any]], fields: Sequence[Mapped]) -> None:
        for mapped in fields:
            name = mapped.column.name
            picked = _pick(mapped.source, rows)
            if name == "hash_ids":
                ids, counts, bad = json_values.block_ids(picked)
                self.ids.append(ids)
                self.counts.append(counts)
                self.bad_ids |= {i + self.rows: reason for i, reason in bad.items()}
            else:
                self.values.setdefault(name, []).extend(picked)
        self.lines.append(lines)
        self.rows += len(rows)


def read_json_lines(source: Source, stage: Stage, fields: Sequence[Mapped], *, derive: Derive | None = None,
                    discover: Discover | None = None) -> None:  # fmt: skip
    """Read ``fields`` of every line into ``stage``; the rest as in ``read_batches``."""
    read_batches(source, stage, fields, json_line_batches(source, stage), derive=derive, discover=discover)


def read_batches(source: Source, stage: Stage, fields: Sequence[Mapped], batches: Batches, *, derive: Derive | None = None,
                 discover: Discover | None = None) -> None:  # fmt: skip
    """Read ``fields`` (canonical, or to be turned into canonical ones by ``derive``) of records into ``stage``.

    ``discover`` is asked about keys that appear for the first time, and may add fields; rows before them have NULL there.
    """
    state = Units()
    gathered = _Gathered()
    seen: set[str] = set()
    for numbers, rows in batches:
        fresh = set().union(*rows) - seen if discover is not None else seen
        added = discover(sorted(fresh)) if discover is not None and fresh else []
        if added:
            _convert(gathered, source, stage, fields, state, derive)
            gathered, fields = _Gathered(), [*fields, *added]
        seen |= fresh
        gathered.add(numbers, rows, fields)
        if gathered.rows >= GATHERED_ROWS:
            _convert(gathered, source, stage, fields, state, derive)
            gathered = _Gathered()
    _convert(gathered, source, stage, fields, state, derive)


def _convert(gathered: _Gathered, source: Source, stage: Stage, fields: Sequence[Mapped], state: Units,
             derive: Derive | None) -> None:  # fmt: skip
    if not gathered.rows:
        return
    lines = np.concatenate(gathered.lines)
    columns = {mapped.column.name: _column(mapped, gathered.values[mapped.column.name], lines, source, stage, state)
               for mapped in fields if mapped.column.kind != "blocks"}  # fmt: skip
    if derive is not None:
        columns = derive(columns)
    prefix = None
    blocks = next((mapped for mapped in fields if mapped.column.kind == "blocks"), None)
    if blocks is not None:
        ids = (np.concatenate(gathered.ids), np.concatenate(gathered.counts), gathered.bad_ids) if gathered.ids else None
        prefix = check_prefix(blocks, ids, gathered.values.get("prefix_runs", []), columns["input_tokens"].data, stage.facts)
    _append(source, stage, lines, columns, prefix, fields, gathered.values)


def json_line_batches(source: Source, stage: Stage) -> Batches:
    """Line numbers and objects, block by block; lines that are no object are rejected here."""
    number = 1
    for block in _whole_lines(source):
        lines = block.count(b"\n") + (not block.endswith(b"\n"))
        rows = _parse_block(block, lines)
        if rows is not None:
            yield np.arange(number, number + lines), rows
        else:
            yield _parse_lines(source, stage, block.removesuffix(b"\n").split(b"\n"), number)
        number += lines


def _whole_lines(source: Source) -> Iterator[bytes]:
    """The file in blocks that end with a line."""
    with open(source.path, "rb") as data:
        if data.read(3) != b"\xef\xbb\xbf":
            data.seek(0)
        begun: list[bytes] = []
        while block := data.read(BLOCK_BYTES):
            cut = block.rfind(b"\n") + 1
            if cut:
                yield b"".join([*begun, block[:cut]])
                begun = []
            if cut < len(block):
                begun.append(block[cut:])
        if begun:
            yield b"".join(begun)


def _parse_block(block: bytes, lines: int) -> list[dict[str, Any]] | None:
    try:
        # valid JSON has no line ends but those between its tokens
        rows = orjson.loads(b"[" + block.removesuffix(b"\n").replace(b"\n", b",") + b"]")
    except ValueError:
        return None
    return rows if len(rows) == lines and set(map(type, rows)) == {dict} else None


def _parse_lines(source: Source, stage: Stage, lines: list[bytes], number: int) -> tuple[Ints, list[dict[str, Any]]]:
    kept, rows = [], []
    for line, raw in enumerate(lines, number):
        if not raw.strip():
            continue
        try:
            value = _parse_line(raw)
        except ValueError:
            cut = line == source.physical_lines and not source.ends_with_newline
            at = source.size if source.cut_at is None else source.cut_at
            stage.reject(source.name, line, None, None, f"incomplete line (cut at byte {at})" if cut else "not valid JSON")
            continue
        if isinstance(value, dict):
            kept.append(line)
            rows.append(value)
        else:
            stage.reject(source.name, line, None, None, "not a JSON object")
    return np.asarray(kept, np.int64), rows


def _parse_line(raw: bytes) -> Any:
    """One value. ``NaN`` and ``Infinity`` are no JSON, but logs have them: their row is judged by its cells."""
    try:
        return orjson.loads(raw)
    except ValueError:
        if b"NaN" not in raw and b"Infinity" not in raw:
            raise
    try:
        return json.loads(raw)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _pick(key: str, rows: list[dict[str, Any]]) -> list[Any]:
    try:
        return list(map(itemgetter(key), rows))
    except KeyError:
        pass
    if "." not in key or any(key in row for row in rows):
        return [row.get(key) for row in rows]
    parts = key.split(".")
    return [_descend(row, parts) for row in rows]


def _descend(row: Any, parts: list[str]) -> Any:
    for part in parts:
        row = row.get(part) if isinstance(row, dict) else None
    return row


def _column(mapped: Mapped, values: list[Any], lines: Ints, source: Source, stage: Stage, state: Units) -> Values:
    column = mapped.column
    if column.kind == "count":
        return json_values.wholes(values, 0, 4294967295, not column.nullable)
    if column.kind == "integer":
        return json_values.wholes(values, -2147483648, 2147483647, not column.nullable)
    if column.kind == "text":
        return json_values.texts(values)
    if column.kind == "raw":
        return Values(values)
    if column.kind in ("duration", "gap"):
        if column.name not in state.units:
            known = [value for value in values if isinstance(value, int | float)]
            state.units[column.name] = duration_unit(mapped, float(np.median(known)) if known else None, stage.facts)
        factor = nanoseconds(state.units[column.name])
        return json_values.numbers(values, factor, not column.nullable, signed=column.kind == "gap")
    return times(mapped, values, lines, source, stage, state)


def _append(source: Source, stage: Stage, lines: Ints, columns: dict[str, Values], prefix: Prefix | None,
            fields: Sequence[Mapped], cells: dict[str, list[Any]]) -> None:  # fmt: skip
    """Good rows to the stage, the others rejected by their first bad field."""
    sources = {mapped.column.name: mapped.source for mapped in fields}
    bad: dict[int, tuple[str, str, Any]] = {}
    for name, values in columns.items():
        for i, reason in values.bad.items():
            bad.setdefault(i, (sources.get(name, name), reason, cells[name][i] if name in cells else None))
    for i, reason in prefix.bad.items() if prefix is not None else ():
        bad.setdefault(i, (prefix.source if prefix is not None else "", reason, None))
    keep = None
    if bad:
        keep = np.ones(len(lines), bool)
        keep[list(bad)] = False
        for i in sorted(bad):
            column, reason, value = bad[i]
            stage.reject(source.name, int(lines[i]), column, value, reason)
    if prefix is not None:
        row, pos, first, length = prefix.runs
        if keep is not None:
            picked = keep[row]
            row, pos, first, length = (np.cumsum(keep) - 1)[row[picked]], pos[picked], first[picked], length[picked]
        stage.append_runs(row + stage.kept, pos, first, length)
    kept_lines = lines if keep is None else lines[keep]
    stage.append(source.number, kept_lines, {name: values.arrow(keep) for name, values in columns.items()})

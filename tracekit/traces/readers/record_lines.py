"""Physical line numbers of delimited records: by arithmetic in a clean file, by looking at the bytes in any other.

Blank lines, broken records and line ends inside quotes shift the line of every later row, so what is kept is where the shift
changes: a file of forty million rows with a few scars costs no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tracekit.errors import InputError
from tracekit.traces.inputs import Source

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RecordLines", "ends_inside_quotes", "refuse_open_quote"]

CHUNK = 8 << 20
BATCH = 1 << 20
Ints = npt.NDArray[np.int64]


class RecordLines:
    """``base`` + row number is the line of a kept row, unless ``shifted``; ``torn`` are the lines of broken rows.

    ``positions`` (ascending) are the bytes (from 1) at which broken rows were found. Errors: ``InputError`` when rows, broken
    rows and records of the file do not reconcile.
    """

    def __init__(self, source: Source, path: Path, header_line: int, rows: int, positions: Ints, delimiter: str) -> None:
        self.base = header_line + 1
        self.rows = rows
        self.torn = np.zeros(0, np.int64)
        self.shifted = bool(len(positions)) or source.physical_lines != rows + header_line
        self._starts, self._shifts = np.zeros(1, np.int64), np.zeros(1, np.int64)
        if self.shifted:
            self._look(source, path, header_line, positions, delimiter)

    def batches(self) -> pa.RecordBatchReader:
        """The line of every kept row in order, column ``n``."""
        import pyarrow as pa

        schema = pa.schema([("n", pa.int64())])
        return pa.RecordBatchReader.from_batches(schema, (pa.record_batch([pa.array(n)], schema=schema) for n in self._numbers()))

    def _numbers(self) -> Iterator[Ints]:
        for low in range(0, self.rows, BATCH):
            row = np.arange(low, min(low + BATCH, self.rows), dtype=np.int64)
            yield row + self._shifts[np.searchsorted(self._starts, row, side="right") - 1]

    def _look(self, source: Source, path: Path, header_line: int, positions: Ints, delimiter: str) -> None:
        torn: list[Ints] = []
        starts: list[Ints] = []
        shifts: list[Ints] = []
        kept = found = 0
        last = -1
        # a copy that was tidied begins with the header
        for begins, numbers in _records(source, path, 0 if path == source.path else header_line - 1, delimiter):
            # a position can stand before blank lines: it means the next record
            mine = positions[found : int(np.searchsorted(positions, begins[-1], side="right"))]
            which = np.unique(np.searchsorted(begins, mine))
            torn.append(numbers[which])
            found += len(which)
            good = np.delete(numbers, which)
            shift = good - np.arange(kept, kept + len(good))
            turns = np.flatnonzero(np.diff(shift, prepend=last))
            starts.append(kept + turns)
            shifts.append(shift[turns])
            kept += len(good)
            last = int(shift[-1]) if len(shift) else last
        if kept != self.rows or found != len(positions):
            raise InputError(
                f"{kept + found} records, but {self.rows} rows and {len(positions)} broken ones", file=source.name,
                expected="balanced quotes and one request a line",
            )  # fmt: skip
        if torn:
            self.torn, self._starts, self._shifts = np.concatenate(torn), np.concatenate(starts), np.concatenate(shifts)


def refuse_open_quote(source: Source, path: Path, header_line: int, delimiter: str) -> None:
    """Errors: ``InputError`` that names the line of a quote that is never closed; nothing otherwise."""
    for _ in _records(source, path, 0 if path == source.path else header_line - 1, delimiter):
        pass


def _records(source: Source, path: Path, offset: int, delimiter: str) -> Iterator[tuple[Ints, Ints]]:
    """Byte position (from 1) and line of the records after the header, some megabytes of them at a time.

    Blank lines and line ends inside quotes are no records. Errors: ``InputError`` that names the line of a quote left open.
    """
    position, number, opened, header = 0, 1 + offset, 0, True
    for chunk in _whole_lines(path):
        data = np.frombuffer(chunk, np.uint8)
        ends = np.flatnonzero(data == 10)
        if chunk[-1:] != b"\n":
            ends = np.append(ends, len(data))
        begins = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
        record = _filled(chunk, data, begins, ends)
        if opened or source.count(b'"'):
            opened = _skip_quoted(chunk, data, begins, ends, record, (opened, number), delimiter.encode())
        at = np.flatnonzero(record)
        if header and len(at):
            at, header = at[1:], False
        if len(at):
            yield position + begins[at] + 1, number + at
        position, number = position + len(chunk), number + len(ends)
    if opened and opened < source.physical_lines:
        raise InputError("a quote opened here is never closed", file=source.name, line=opened, expected="balanced quotes")


def _filled(chunk: bytes, data: npt.NDArray[np.uint8], begins: Ints, ends: Ints) -> npt.NDArray[np.bool_]:
    """Which lines hold more than carriage returns."""
    filled: npt.NDArray[np.bool_] = ends > begins
    doubtful = np.flatnonzero(filled)
    doubtful = doubtful[data[begins[doubtful]] == 13]
    for i in doubtful.tolist():
        filled[i] = bool(chunk[begins[i] : ends[i]].strip(b"\r"))
    return filled


def _skip_quoted(chunk: bytes, data: npt.NDArray[np.uint8], begins: Ints, ends: Ints, record: npt.NDArray[np.bool_],
                 state: tuple[int, int], mark: bytes) -> int:  # fmt: skip
    """Unmark lines that continue a quoted cell. ``state``: line of the open quote (0: none), line of the first begin."""
    opened, number = state
    quoted = np.unique(np.searchsorted(ends, np.flatnonzero(data == 34)))
    resume = 0
    for i in quoted.tolist():
        inside = ends_inside_quotes(chunk[begins[i] : ends[i]], bool(opened), mark)
        if opened:
            record[resume : i + 1] = False
            opened, resume = (opened, i + 1) if inside else (0, 0)
        elif inside:
            opened, resume = number + i, i + 1
    if opened:
        record[resume:] = False
    return opened


def ends_inside_quotes(line: bytes, inside: bool, mark: bytes) -> bool:
    """Whether a quoted cell is open at the end of ``line``; a quote opens a cell only as its first character."""
    at = 0
    while at < len(line):
        if not inside and line[at : at + 1] == b'"':
            inside, at = True, at + 1
        elif inside:
            quote = line.find(b'"', at)
            if quote < 0:
                return True
            doubled = line[quote + 1 : quote + 2] == b'"'
            inside, at = doubled, quote + 1 + doubled
        if not inside:
            next_cell = line.find(mark, at)
            if next_cell < 0:
                return False
            at = next_cell + len(mark)
    return inside


def _whole_lines(path: Path) -> Iterator[bytes]:
    """The file in blocks that end with a line."""
    with open(path, "rb") as data:
        begun: list[Any] = []
        while block := data.read(CHUNK):
            cut = block.rfind(b"\n") + 1
            if cut:
                yield b"".join([*begun, block[:cut]])
                begun = []
            if cut < len(block):
                begun.append(block[cut:])
        if begun:
            yield b"".join(begun)

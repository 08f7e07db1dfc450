"""Physical line numbers of delimited records: by arithmetic in a clean file, by looking at the bytes in any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tracekit.errors import InputError
from tracekit.traces.inputs import Source

__all__ = ["RecordLines"]


class RecordLines:
    """``base`` + row number is the line of a kept row unless ``kept`` lists them; ``torn`` are the lines of broken rows.

    ``positions`` are the bytes (from 1) at which broken rows were found. Errors: ``InputError`` when rows, broken rows and
    records of the file do not reconcile.
    """

    def __init__(self, source: Source, path: Path, header_line: int, rows: int, positions: list[int]) -> None:
        self.base = header_line + 1
        self.kept: npt.NDArray[np.int64] | None = None
        self.torn = np.zeros(0, np.int64)
        if not positions and source.physical_lines == rows + header_line:
            return
        # a copy that was tidied begins with the header
        offset = 0 if path == source.path else header_line - 1
        starts, numbers = _records(source, path, offset)
        which = np.unique(np.searchsorted(starts, np.asarray(positions, np.int64))) if positions else np.zeros(0, np.int64)
        if len(numbers) != rows + len(positions) or len(which) != len(positions) or (len(which) and which[-1] >= len(starts)):
            raise InputError(
                f"{len(numbers)} records, but {rows} rows and {len(positions)} broken ones", file=source.name,
                expected="balanced quotes and one request a line",
            )  # fmt: skip
        self.torn = numbers[which]
        self.kept = np.delete(numbers, which)


def _records(source: Source, path: Path, offset: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Byte position (from 1) and line of every record after the header; blank lines and quoted line ends are no records."""
    starts: list[int] = []
    numbers: list[int] = []
    position, inside, opened = 0, False, 0
    with open(path, "rb") as data:
        for number, raw in enumerate(data, 1 + offset):
            if not inside and raw.strip(b"\r\n"):
                starts.append(position + 1)
                numbers.append(number)
            if source.count(b'"') and raw.count(b'"') % 2:
                inside, opened = not inside, number
            position += len(raw)
    if inside and opened < source.physical_lines:
        raise InputError("a quote opened here is never closed", file=source.name, line=opened, expected="balanced quotes")
    return np.asarray(starts[1:], np.int64), np.asarray(numbers[1:], np.int64)

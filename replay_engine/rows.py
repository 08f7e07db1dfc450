"""Packed event rows: one ``pack_into`` a row, one ``append`` a few thousand rows. Nothing in the loop formats text."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from replay_engine.tables import TABLES, row_format

__all__ = ["RowBuffer"]


class RowBuffer:
    """Rows of one event table. ``add(*values)`` in the dtype's field order; full buffers go to ``deliver``, which must not
    keep them.

    ``pack(buffer, at, *values)`` with ``at`` moved on by ``size`` writes a row in place, for the tightest loops; ``add_three``
    takes the values of three rows at once.
    """

    __slots__ = ("_deliver", "_dtype", "_name", "_pack_three", "at", "buffer", "end", "pack", "size")

    def __init__(self, table: str, deliver: Callable[[str, npt.NDArray[np.void]], None], *, rows: int = 4096) -> None:
        self._name = table
        self._dtype = TABLES[table]
        self.size = self._dtype.itemsize
        self.end = self.size * rows
        self.buffer = bytearray(self.end + 2 * self.size)
        layout = row_format(self._dtype)
        self.pack = struct.Struct(layout).pack_into
        self._pack_three = struct.Struct("<" + 3 * layout[1:]).pack_into
        self.at = 0
        self._deliver = deliver

    def add(self, *values: float) -> None:
        at = self.at
        self.pack(self.buffer, at, *values)
        self.at = at = at + self.size
        if at >= self.end:
            self.flush()

    def add_three(self, *values: float) -> None:
        at = self.at
        self._pack_three(self.buffer, at, *values)
        self.at = at = at + 3 * self.size
        if at >= self.end:
            self.flush()

    def flush(self) -> None:
        """Deliver what is buffered."""
        if self.at:
            self._deliver(self._name, np.frombuffer(self.buffer, dtype=self._dtype, count=self.at // self.size))
            self.at = 0

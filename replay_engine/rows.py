"""Packed event rows: one ``pack_into`` a row, one ``append`` a few thousand rows. Nothing in the loop formats text."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from replay_engine.tables import TABLES, row_format

__all__ = ["RowBuffer"]


class RowBuffer:
    """Rows of one event table. ``add(*values)`` in the dtype's field order; full buffers go to ``deliver``, which must not keep them."""

    __slots__ = ("_at", "_buffer", "_deliver", "_dtype", "_end", "_name", "_pack", "_size")

    def __init__(self, table: str, deliver: Callable[[str, npt.NDArray[np.void]], None], *, rows: int = 4096) -> None:
        self._name = table
        self._dtype = TABLES[table]
        self._size = self._dtype.itemsize
        self._buffer = bytearray(self._size * rows)
        self._pack = struct.Struct(row_format(self._dtype)).pack_into
        self._at = 0
        self._end = len(self._buffer)
        self._deliver = deliver

    def add(self, *values: float) -> None:
        at = self._at
        self._pack(self._buffer, at, *values)
        self._at = at = at + self._size
        if at == self._end:
            self.flush()

    def flush(self) -> None:
        """Deliver what is buffered."""
        if self._at:
            self._deliver(self._name, np.frombuffer(self._buffer, dtype=self._dtype, count=self._at // self._size))
            self._at = 0

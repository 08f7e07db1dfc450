"""Event sinks that need no disk: throw away, or keep in memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay_engine.tables import TABLES

__all__ = ["MemorySink", "NullSink"]


class NullSink:
    """Keeps nothing."""

    def append(self, table: str, rows: npt.NDArray[np.void]) -> None:
        pass


class MemorySink:
    """Keeps copies of all rows, for small runs, tests and the tuner's outcomes."""

    def __init__(self) -> None:
        self._chunks: dict[str, list[npt.NDArray[np.void]]] = {}

    def append(self, table: str, rows: npt.NDArray[np.void]) -> None:
        self._chunks.setdefault(table, []).append(rows.copy())

    def table(self, name: str) -> npt.NDArray[np.void]:
        """All rows of a table, in the order they were written."""
        chunks = self._chunks.get(name)
        return np.concatenate(chunks) if chunks else np.empty(0, dtype=TABLES[name])

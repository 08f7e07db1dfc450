"""Event sinks that need no disk: throw away, or keep in memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay_engine.tables import TABLES, with_replica
from replay_engine.types import EventSink

__all__ = ["MemorySink", "NullSink", "ReplicaSink"]


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


class ReplicaSink:
    """Passes rows on with the number of the replica they come from (-1: from in front of the replicas)."""

    def __init__(self, sink: EventSink, replica: int) -> None:
        self._sink = sink
        self._replica = replica

    def append(self, table: str, rows: npt.NDArray[np.void]) -> None:
        layout = with_replica(rows.dtype)
        if layout != rows.dtype:
            tagged = np.empty(len(rows), layout)
            tagged["replica"] = self._replica
            for name in rows.dtype.names or ():
                tagged[name] = rows[name]
            rows = tagged
        self._sink.append(table, rows)

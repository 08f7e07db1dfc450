"""A run's iterations as columns in memory, one set per replica, growing while the run does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["COLUMNS", "Columns", "Frame", "by_replica"]

COLUMNS: dict[str, str] = {
    "iteration": "<i8",
    "start_ns": "<i8",
    "duration_ns": "<i8",
    "prefill_tokens": "<i4",
    "recomputed_tokens": "<i4",
    "decode_seqs": "<i4",
    "running": "<i4",
    "waiting": "<i4",
    "kv_used": "<i4",
    "kv_cached": "<i4",
    "preempted": "<i4",
    "head_refused_by": "|u1",
}
"""What the timeline draws: 57 bytes an iteration. Times are ns on the engine clock, lengths tokens, KV blocks."""

Frame = Mapping[str, npt.NDArray[Any]]
"""The columns at one moment, each of shape ``(iterations,)``, in order of time."""
FIRST_ROWS = 4096


class Columns:
    """The iterations of one replica. Appending never moves what a ``frame`` handed out before."""

    def __init__(self) -> None:
        self.rows = 0
        self._arrays = {name: np.empty(FIRST_ROWS, kind) for name, kind in COLUMNS.items()}

    @property
    def bytes(self) -> int:
        """Bytes reserved."""
        return sum(array.nbytes for array in self._arrays.values())

    def append(self, rows: Mapping[str, npt.NDArray[Any]] | npt.NDArray[np.void]) -> None:
        """Append rows in order of time: a structured array or a mapping of columns; what is not drawn is left out."""
        count = len(rows["iteration"])
        end = self.rows + count
        if end > len(self._arrays["iteration"]):
            self._grow(max(end, 2 * self.rows))
        for name, array in self._arrays.items():
            array[self.rows : end] = rows[name]
        self.rows = end

    def _grow(self, size: int) -> None:
        grown = {name: np.empty(size, kind) for name, kind in COLUMNS.items()}
        for name, array in grown.items():
            array[: self.rows] = self._arrays[name][: self.rows]
        self._arrays = grown

    def frame(self) -> Frame:
        """The columns as they are now; rows that come later are not in it."""
        rows = self.rows
        return {name: array[:rows] for name, array in self._arrays.items()}


def by_replica(rows: npt.NDArray[np.void] | Mapping[str, npt.NDArray[Any]], into: dict[int, Columns]) -> None:
    """Deal rows out to their replicas (column ``replica``; 0 where there is none), keeping their order."""
    names = rows.dtype.names or () if isinstance(rows, np.ndarray) else tuple(rows)
    if "replica" not in names:
        into.setdefault(0, Columns()).append(rows)
        return
    replicas = rows["replica"]
    for replica in np.unique(replicas).tolist():
        mine = replicas == replica
        if mine.all():
            part: npt.NDArray[np.void] | Mapping[str, npt.NDArray[Any]] = rows
        else:
            part = rows[mine] if isinstance(rows, np.ndarray) else {name: rows[name][mine] for name in COLUMNS}
        into.setdefault(int(replica), Columns()).append(part)

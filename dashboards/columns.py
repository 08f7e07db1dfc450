"""A run's iterations as columns in memory, one set per replica, growing while the run does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.engines import RunEngines
from tracekit.diagnosis.iteration_cost import CostForm

__all__ = ["COLUMNS", "READ", "SKEWED", "Columns", "Frame", "by_replica"]

COLUMNS: dict[str, str] = {
    "iteration": "<i8",
    "start_ns": "<i8",
    "duration_ns": "<i8",
    "expected_ns": "<i8",
    "prefill_ns": "<i8",
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
"""What the timeline draws: 73 bytes an iteration. Times are ns on the engine clock, lengths tokens, KV blocks; ``expected_ns`` is
what the profile says the iteration takes, ``prefill_ns`` what its prefill adds to it, 0 where it says nothing."""
READ = (*(name for name in COLUMNS if name not in ("expected_ns", "prefill_ns")), "host_ns", "decode_kv_tokens", "prefill_qk")
"""Columns of ``iterations`` that these are made of."""
SKEWED = "decode_longest_tokens"
"""One more, where the longest context costs by the run's profile."""

Frame = Mapping[str, npt.NDArray[Any]]
"""The columns at one moment, each of shape ``(iterations,)``, in order of time."""
FIRST_ROWS = 4096


class Columns:
    """The iterations of one replica. Appending never moves what a ``frame`` handed out before. ``cost``: what one is expected to
    take, if that is known."""

    def __init__(self, cost: CostForm | None = None) -> None:
        self.rows = 0
        self._cost = cost
        self._arrays = {name: np.empty(FIRST_ROWS, kind) for name, kind in COLUMNS.items()}
        self._said = {"expected_ns": self._expected, "prefill_ns": self._prefill}

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
            array[self.rows : end] = self._said[name](rows) if name in self._said else rows[name]
        self.rows = end

    def _expected(self, rows: Mapping[str, npt.NDArray[Any]] | npt.NDArray[np.void]) -> npt.NDArray[Any] | int:
        return 0 if self._cost is None else np.rint(self._cost.expected_ns(rows)).astype(np.int64)

    def _prefill(self, rows: Mapping[str, npt.NDArray[Any]] | npt.NDArray[np.void]) -> npt.NDArray[Any] | int:
        if self._cost is None:
            return 0
        added = self._cost.prompts_ns(rows)
        whole: npt.NDArray[np.int64] = np.rint(np.minimum(added, rows["duration_ns"])).astype(np.int64)
        return whole

    def _grow(self, size: int) -> None:
        grown = {name: np.empty(size, kind) for name, kind in COLUMNS.items()}
        for name, array in grown.items():
            array[: self.rows] = self._arrays[name][: self.rows]
        self._arrays = grown

    def frame(self) -> Frame:
        """The columns as they are now; rows that come later are not in it."""
        rows = self.rows
        return {name: array[:rows] for name, array in self._arrays.items()}


def by_replica(
    rows: npt.NDArray[np.void] | Mapping[str, npt.NDArray[Any]], into: dict[int, Columns], engines: RunEngines | None = None
) -> None:
    """Deal rows out to their replicas (column ``replica``; 0 where there is none), keeping their order. ``engines`` says what
    iterations of each are expected to take."""
    names = rows.dtype.names or () if isinstance(rows, np.ndarray) else tuple(rows)
    replicas = rows["replica"] if "replica" in names else np.zeros(len(rows["iteration"]), np.int16)
    for replica in np.unique(replicas).tolist():
        mine = replicas == replica
        if mine.all():
            part: npt.NDArray[np.void] | Mapping[str, npt.NDArray[Any]] = rows
        else:
            part = rows[mine] if isinstance(rows, np.ndarray) else {name: rows[name][mine] for name in names}
        if replica not in into:
            into[replica] = Columns(None if engines is None else engines.cost(replica))
        into[replica].append(part)

"""What only a real engine can say of an iteration, beside what the loop records: its mode, its padding, its host times.

The recorder's rows stay as they are; on their way to the sink they are widened by what the executor has noted under the
iteration's number.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from replay_engine.tables import ITERATIONS, LONGEST
from replay_engine.types import EventSink

__all__ = ["EAGER", "ENGINE_COLUMNS", "GRAPH", "LATE", "PADDED", "WIDE_ITERATIONS", "EngineSink", "Note"]

EAGER, LATE, PADDED, GRAPH = 0, 1, 2, 3
"""Codes of ``replay_engine.tables.MODES``; a graph's bucket is added to its code."""
ENGINE_COLUMNS = [
    ("mode", "<i2"), ("padded_tokens", "<i4"), ("schedule_ns", "<i8"), ("submit_ns", "<i8"), ("wait_ns", "<i8"), LONGEST,
]  # fmt: skip
WIDE_ITERATIONS = np.dtype([*ITERATIONS.descr, *ENGINE_COLUMNS])
"""An ``iterations`` row with the engine's columns."""

Note = tuple[int, int, int, int, int, int]
"""The engine's columns of one iteration."""


class EngineSink:
    """Passes rows on to ``sink``, ``iterations`` widened with ``notes``, which are used up."""

    def __init__(self, sink: EventSink, notes: dict[int, Note]) -> None:
        self._sink = sink
        self._notes = notes

    def append(self, table: str, rows: npt.NDArray[np.void]) -> None:
        self._sink.append(table, widened(rows, self._notes) if table == "iterations" else rows)


def widened(rows: npt.NDArray[np.void], notes: dict[int, Note] | Mapping[int, Note]) -> npt.NDArray[np.void]:
    """``iterations`` rows as wide rows."""
    wide = np.empty(len(rows), WIDE_ITERATIONS)
    for name in ITERATIONS.names or ():
        wide[name] = rows[name]
    numbers = rows["iteration"].tolist()
    found = np.array([notes[number] for number in numbers], dtype=np.int64)
    for at, (name, _) in enumerate(ENGINE_COLUMNS):
        wide[name] = found[:, at]
    if isinstance(notes, dict) and numbers:
        for number in [number for number in notes if number <= numbers[-1]]:
            del notes[number]
    return wide

"""The windows a study replays: stretches of one or more traces, each with its lead-in, some to search on, others to prove on.

The trace is cut evenly as experiments cut it; search and hold-out windows take turns, so that both see the whole of it and none
of them counts a request that another counts. ``split = "past"`` searches on the earlier ones and proves on the later ones.
Requests are read once per process and window and then kept: a trace reaches a worker once, whatever the number of trials.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tracekit.experiments.layout import Layout
from tracekit.traces.mix import mixed
from tracekit.traces.slicing import Slice
from tracekit.traces.source import TraceRows, TraceSource

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["Reads", "StudyWindow", "WindowSources", "split_windows", "windows_of"]

MOST_KEPT = 1 << 28
"""Bytes of rows that a process keeps; what is beyond is read anew for each scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyWindow:
    """A window (ns from trace start) of a loaded trace; ``digest``: the trace's. ``requests``: sessions or requests in it."""

    trace: int
    name: str
    digest: str
    begin_ns: int
    end_ns: int
    lead_in_ns: int
    requests: int
    part: dict[str, Any]
    """Fields of ``Slice`` other than its window, lead-in and rate; ``mix`` (``tracekit.traces.mix``) where one is asked for."""
    rate_scale: float = 1.0

    def slice_at(self, rate: float) -> Slice:
        """The part of the trace, ``rate`` times as fast as the study's own rate."""
        part = {name: value for name, value in self.part.items() if name != "mix"}
        part |= {"thin": None if self.part["thin"] is None else tuple(self.part["thin"])}
        return replace(Slice(**part), window_ns=(self.begin_ns, self.end_ns), lead_in_ns=self.lead_in_ns,
                       rate_scale=self.rate_scale * rate)  # fmt: skip

    def key(self) -> dict[str, Any]:
        """What of it decides a replay: not where the trace lies in a database, nor what it is called there."""
        document = asdict(self)
        for name in ("trace", "name", "requests"):
            del document[name]
        return document

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> StudyWindow:
        return cls(**document)


def split_windows(windows: Sequence[StudyWindow], held: int, split: str) -> tuple[list[StudyWindow], list[StudyWindow]]:
    """(search, hold-out), each in time order: ``held`` of them are held out, evenly among the others or (``past``) the last."""
    n = len(windows)
    held = min(held, n - 1) if n > 1 else 0
    if split == "past":
        return list(windows[: n - held]), list(windows[n - held :])
    marks = {int((i + 0.5) * n / held) for i in range(held)} if held else set()
    search = [window for at, window in enumerate(windows) if at not in marks]
    return search, [windows[at] for at in sorted(marks)]


def windows_of(layout: Layout, source: TraceSource, **shared: Any) -> list[StudyWindow]:
    """A layout's windows, in time order; ``shared``: the fields that they have in common."""
    at = np.sort(source.start_ns)
    return [
        StudyWindow(begin_ns=begin, end_ns=end, requests=int(np.searchsorted(at, end) - np.searchsorted(at, begin)), **shared)
        for begin, end in layout.windows
    ]


class Reads(Protocol):
    """Whatever has the tables of traces: a database file (``Store``) or tables in memory (``tuner.shipping``)."""

    def read(self) -> AbstractContextManager[DuckDBPyConnection]: ...


class WindowSources:
    """The requests of windows, read when they are first asked for. ``together``: windows that are read with whichever of their
    trace comes first, since to open a database takes longer than to read a window of it."""

    def __init__(self, store: Reads, together: Sequence[StudyWindow] = ()) -> None:
        self._store = store
        self._together = [(window.trace, window.slice_at(1.0)) for window in together]
        self._rows: dict[str, TraceRows] = {}
        self._bytes = 0
        self._held: dict[tuple[int, int, int, float, str], TraceSource] = {}

    def get(self, window: StudyWindow, rate: float = 1.0) -> TraceSource:
        """A source of its own for one replay: a replay may turn the priorities of its source round."""
        key = (window.trace, window.begin_ns, window.end_ns, rate * window.rate_scale, repr(sorted(window.part.items())))
        if key not in self._held:
            part = window.slice_at(rate)
            source = TraceSource.from_rows(self._read(window.trace, part), part)
            mix = window.part.get("mix")
            self._held[key] = mixed(source, mix, part.seed) if mix else source
        return copy.copy(self._held[key])

    def _read(self, trace: int, part: Slice) -> TraceRows:
        """The same rows serve a window at every scale: a database is opened for each window, not for each replay."""
        key = _rows_key(trace, part)
        if key in self._rows:
            return self._rows[key]
        with self._store.read() as con:
            rows = self._kept(key, TraceSource.rows_of(con, trace, part))
            together = [piece for other, piece in self._together if other == trace]
            self._together = [pair for pair in self._together if pair[0] != trace]
            for piece in together:
                own = _rows_key(trace, piece)
                if own not in self._rows:
                    self._kept(own, TraceSource.rows_of(con, trace, piece))
                if own not in self._rows:
                    break  # there is no room for more
        return rows

    def _kept(self, key: str, rows: TraceRows) -> TraceRows:
        if self._bytes + rows.nbytes <= MOST_KEPT:
            self._rows[key] = rows
            self._bytes += rows.nbytes
        return rows


def _rows_key(trace: int, part: Slice) -> str:
    return repr((trace, replace(part, rate_scale=1.0, isl_scale=1.0, osl_scale=1.0, burst_scale=1.0)))

"""What can be said of a run under way: latencies of the requests that have ended, and what held the queue's head up."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dashboards.queries import RunBook, RunView
from tracekit.errors import TracekitError
from tracekit.metrics.slo import SloTable
from tracekit.store import SpoolInfo, SpoolTail, code_names

__all__ = ["SoFar", "SoFarKeeper"]

_LATENCIES = {"TTFT": "ttft_ns", "TPOT": "tpot_ns", "Longest gap": "max_gap_ns", "E2E": "e2e_ns"}
_LIMITS = {"TTFT": "ttft", "TPOT": "tpot", "Longest gap": "stall", "E2E": "e2e"}
PIECE = 1 << 16
KEPT = 4


class Measure(NamedTuple):
    """One latency over the requests that have it: seconds, and how many miss the SLO (``None``: it asks for none)."""

    name: str
    n: int
    p50_s: float
    p99_s: float
    most_s: float
    missed: int | None


class SoFar(NamedTuple):
    """``ended`` of ``total`` requests. ``refusals``: reason and share of the time in which the queue's head was refused."""

    ended: int
    total: int | None
    measures: tuple[Measure, ...]
    refusals: tuple[tuple[str, float], ...]


class _Ended:
    """The outcomes of a spool, each read once."""

    def __init__(self, spool: SpoolInfo) -> None:
        self.tail = SpoolTail(spool.folder, "outcomes")
        self.parts: dict[str, list[npt.NDArray[np.int64]]] = {column: [] for column in _LATENCIES.values()}
        self.rows = 0

    def read_on(self) -> None:
        try:
            while len(rows := self.tail.new_rows(PIECE)):
                self.rows += len(rows)
                for column, parts in self.parts.items():
                    parts.append(rows[column].astype(np.int64))
        except (FileNotFoundError, TracekitError):
            pass  # moved into the database in this moment: what was read stands

    def column(self, name: str) -> npt.NDArray[np.int64]:
        parts = self.parts[name]
        whole = np.concatenate(parts) if parts else np.empty(0, np.int64)
        self.parts[name] = [whole]
        return whole


class SoFarKeeper:
    """Follows the runs that are looked at; safe from any thread."""

    def __init__(self, book: RunBook) -> None:
        self._book = book
        self._lock = threading.Lock()
        self._ended: OrderedDict[str, _Ended] = OrderedDict()

    def look(self, ref: str) -> SoFar | None:
        """``None`` for a run that is recorded. Errors: ``UsageError``, ``LockedError``."""
        spool = self._book.spool(ref)
        if spool is None:
            return None
        view = self._book.view(ref)
        with self._lock:
            ended = self._ended.setdefault(spool.folder.name, _Ended(spool))
            self._ended.move_to_end(spool.folder.name)
            while len(self._ended) > KEPT:
                self._ended.popitem(last=False)
            ended.read_on()
            measures = tuple(_measures(ended, spool.run.get("slo")))
        return SoFar(ended.rows, spool.run.get("requests"), measures, _refusals(view))


def _measures(ended: _Ended, slo: dict[str, Any] | None) -> list[Measure]:
    default = SloTable.from_dict(slo).default if slo else None
    found = []
    for name, column in _LATENCIES.items():
        values = ended.column(column)
        values = values[values >= 0]
        if not len(values):
            continue
        limit = None if default is None else default.limit(_LIMITS[name])
        p50, p99 = np.percentile(values, [50, 99], method="higher")
        missed = None if limit is None else int((values > limit).sum())
        found.append(Measure(name, len(values), float(p50) / 1e9, float(p99) / 1e9, float(values.max()) / 1e9, missed))
    return found


def _refusals(view: RunView) -> tuple[tuple[str, float], ...]:
    reasons = code_names("iterations", "head_refused_by")
    spent = np.zeros(len(reasons))
    for frame in view.frames.values():
        spent += np.bincount(frame["head_refused_by"], weights=frame["duration_ns"], minlength=len(reasons))[: len(reasons)]
    spent[0] = 0.0  # none: nobody waited
    whole = spent.sum()
    if not whole:
        return ()
    order = np.argsort(-spent, kind="stable")
    return tuple((reasons[at], float(spent[at] / whole)) for at in order.tolist() if spent[at] > 0)

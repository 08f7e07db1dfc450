"""Latencies as somebody observed them, and how far a replay is from them.

Three ways of counting occur, and a trace does not say which is its own: everything from the request's arrival (``arrival``); TTFT
and E2E from the arrival but the wait in the queue from when the engine took the request in (``server``: vLLM's traces);
everything from when the engine took it in (``engine``: vLLM's own moments). In both of the latter the wait ends when the plan is
made, which under asynchronous scheduling is an iteration earlier than it is carried out. Whichever leaves the least error is
taken, and said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.calibration.observed.replays import Replayed
from tracekit.calibration.observed.terms import Delivered

if TYPE_CHECKING:
    from tracekit.traces.source import TraceSource

__all__ = ["COUNTING", "GROUPS", "Observations", "predictions"]

Column = npt.NDArray[np.float64]
COUNTING = ("arrival", "server", "engine")
GROUPS = ("ttft", "prefill", "tpot", "e2e")
NOWHERE = Delivered()
GRAIN_NS = 15e6
"""About what is lost on the grid of iterations: a difference of this size in a wait says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Per request of the source, ns, NaN: not observed. ``used``: the requests that a fit may look at."""

    queue: Column
    ttft: Column
    tpot: Column
    e2e: Column
    used: npt.NDArray[np.bool_]
    clock: str | None

    @classmethod
    def of(cls, source: TraceSource, used: npt.NDArray[np.bool_] | None = None, clock: str | None = None) -> Observations:
        """What the trace says of each request; what it leaves out follows from the rest where it does."""
        queue, ttft, tpot, e2e = (_column(getattr(source, f"obs_{name}_ns"), source.total) for name in _NAMES)
        gaps = np.maximum(source.output_tokens - 1, 1).astype(np.float64)
        several = source.output_tokens > 1
        e2e = np.where(np.isnan(e2e), np.where(several, ttft + tpot * gaps, ttft), e2e)
        tpot = np.where(several, np.where(np.isnan(tpot), (e2e - ttft) / gaps, tpot), np.nan)
        ttft = np.where(np.isnan(ttft), np.where(several, e2e - tpot * gaps, e2e), ttft)
        chosen = np.ones(source.total, np.bool_) if used is None else used
        return cls(queue=queue, ttft=ttft, tpot=tpot, e2e=e2e, used=chosen, clock=clock)

    @property
    def prefill(self) -> Column:
        """From being scheduled to the first token, as far as the ways of counting allow."""
        return self.ttft - self.queue

    def known(self) -> int:
        """Requests that a fit may look at and that something is known of."""
        return int((self.used & ~(np.isnan(self.ttft) & np.isnan(self.e2e) & np.isnan(self.tpot))).sum())

    def group(self, name: str) -> Column:
        """A group's values, ns."""
        column: Column = getattr(self, name)
        return column


_NAMES = ("queue", "ttft", "tpot", "e2e")


def _column(values: npt.NDArray[np.int64] | None, total: int) -> Column:
    if values is None:
        return np.full(total, np.nan)
    return np.where(np.asarray(values, np.float64) < 0, np.nan, np.asarray(values, np.float64))


def predictions(run: Replayed, counting: str, there: Delivered = NOWHERE) -> dict[str, Column]:
    """The replay's latencies (ns) counted as the observations were; NaN where a request did not get that far."""
    begin = run.queued if counting == "engine" else run.arrived
    before, after = NOWHERE if counting == "engine" else there
    asked = run.arrived if counting == "arrival" else run.queued
    queue = _span(asked, run.began(counting))
    ttft, e2e = _span(begin, run.first) + before, _span(begin, run.last) + before + after
    gaps = np.maximum(run.output - 1, 1)
    tpot = np.where(run.output > 1, (_span(run.first, run.last) + after) / gaps, np.nan)
    return {"queue": queue, "ttft": ttft, "prefill": ttft - queue, "tpot": tpot, "e2e": e2e}


def _span(begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> Column:
    return np.where((begin >= 0) & (end >= 0), (end - begin).astype(np.float64), np.nan)


def grain(name: str) -> float:
    """What is added to both sides before they are compared as a ratio, ns."""
    return 0.0 if name == "tpot" else GRAIN_NS

"""Where the windows of an experiment lie in a trace, and what the trace is like, in a line.

The trace is cut into as many equal stretches of time as windows are asked for, and each gives its middle: the windows sample
the whole trace evenly, and every level is replayed on the same ones. (The busiest and the most typical windows that
``describe`` names are not used: a conclusion about picked windows holds for picked windows.) Requests counted in one window
are counted in no other; a lead-in may replay the end of the window before it, uncounted.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.metrics.wording import count
from tracekit.traces.source import TraceSource
from tracekit.traces.windows import MIN_REQUESTS, window_length_s

__all__ = ["Layout", "TraceFacts", "lay_windows", "trace_facts"]

SECOND = 1_000_000_000
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """For which traffic a conclusion holds: requests, seconds, rate (1/s), P50 and P95 lengths (tokens).

    ``cv``: of the gaps between arrivals; where turns follow each other, between starts of ``sessions``.
    """

    requests: int
    sessions: int | None
    span_s: float
    rate_per_s: float | None
    cv: float | None
    input_p50: float
    input_p95: float
    output_p50: float
    output_p95: float

    def line(self) -> str:
        """The facts in a line."""
        rate = "at one instant" if self.rate_per_s is None else f"{count(self.rate_per_s)}/s over {_time(self.span_s)}"
        cv = "" if self.cv is None else f", gap CV {count(self.cv)}"
        lengths = [
            f"{name} P50 {low:,.0f} P95 {high:,.0f}"
            for name, low, high in (("input", self.input_p50, self.input_p95), ("output", self.output_p50, self.output_p95))
        ]
        turns = "" if self.sessions is None else f" in {self.sessions:,} sessions"
        return f"{self.requests:,} requests{turns}, {rate}{cv}, {', '.join(lengths)} tokens"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def trace_facts(source: TraceSource) -> TraceFacts:
    """Of a whole slice."""
    free = source.parent is None or bool((source.parent < 0).all())
    at = np.sort(source.arrival_ns if source.parent is None else source.arrival_ns[source.parent < 0])
    span = int(at[-1] - at[0])
    gaps = np.diff(at)
    lengths = [np.percentile(column, [50, 95]) for column in (source.prompt_tokens, source.output_tokens)]
    return TraceFacts(
        requests=source.total, sessions=None if free else len(at), span_s=span / SECOND,
        rate_per_s=(source.total - 1) / span * SECOND if span else None,
        cv=float(gaps.std() / gaps.mean()) if span else None, input_p50=float(lengths[0][0]), input_p95=float(lengths[0][1]),
        output_p50=float(lengths[1][0]), output_p95=float(lengths[1][1]),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """``windows``: (begin, end) in ns from trace start, ascending; ``notes`` say what of the wish could not be had."""

    windows: tuple[tuple[int, int], ...]
    length_ns: int
    every_ns: int
    notes: tuple[str, ...] = field(default=())

    def line(self, lead_in_ns: int) -> str:
        """How the windows lie, for a report."""
        if not self.windows:
            return "no window"
        lead = f"each after a lead-in of up to {_time(lead_in_ns / SECOND)} that is not counted"
        return (
            f"{len(self.windows)} windows of {_time(self.length_ns / SECOND)}, one every {_time(self.every_ns / SECOND)}, {lead}"
        )


def lay_windows(start_ns: Ints, wanted: int, *, length_ns: int | None = None, lead_in_ns: int = 0,
                part: tuple[int, int] | None = None) -> Layout:  # fmt: skip
    """Up to ``wanted`` windows over arrivals ``start_ns`` (ns from trace start; of sessions: their roots').

    ``length_ns``: left out, the time in which about a thousand requests come (one minute to half an hour), at least sixty.
    Fewer windows, and a note, where the trace is too short for all of them with at least 20 requests each; a window with
    fewer is left out.
    ``part``: only this stretch of the trace.
    """
    at = np.sort(start_ns)
    low, high = (int(at[0]), int(at[-1]) + 1) if part is None else part
    at = at[(at >= low) & (at < high)]
    span = high - low
    fit = min(wanted, max(len(at) // MIN_REQUESTS, 1))
    if length_ns is not None:
        fit = min(fit, max(span // max(length_ns, 1), 1))
    every = span // fit
    enough = max(window_length_s(span, len(at)) * SECOND, 3 * MIN_REQUESTS * span // max(len(at), 1))
    length = min(enough if length_ns is None else length_ns, every)
    begins = low + np.arange(fit, dtype=np.int64) * every + (every - length) // 2
    begins[0] = max(begins[0], min(low + lead_in_ns, low + every - length))
    n = np.searchsorted(at, begins + length) - np.searchsorted(at, begins)
    notes = []
    if fit < wanted:
        notes.append(f"{fit} of {wanted} windows: {len(at):,} requests over {_time(span / SECOND)} have no room for more")
    if (n < MIN_REQUESTS).any():
        notes.append(f"{int((n < MIN_REQUESTS).sum())} of {fit} windows left out: fewer than {MIN_REQUESTS} requests in them")
    windows = tuple((int(b), int(b) + int(length)) for b, inside in zip(begins, n, strict=True) if inside >= MIN_REQUESTS)
    return Layout(windows=windows, length_ns=int(length), every_ns=int(every), notes=tuple(notes))


def _time(seconds: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"

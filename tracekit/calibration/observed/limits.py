"""The limits that bound an observed engine: read from who was running while others waited, then tried by replay.

A limit that never held anybody up shows in nothing: then only what it was not below is known. Of switches and of the token budget
each value is tried with the coefficients found so far; values that leave about the same error are said to fit alike, and the
default stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.calibration.observed.observations import Observations
from tracekit.calibration.observed.shared_prefix import Sharing

if TYPE_CHECKING:
    from tracekit.traces.source import TraceSource

__all__ = ["Crowd", "Limit", "crowd_of"]

Column = npt.NDArray[np.float64]
HELD_UP_NS = 100e6
"""A wait in the queue beyond a few iterations: something was lacking."""
PLATEAU = 0.05
"""How much the number of those served may vary, as a share, to be called the same."""
FEW = 5
LOOKS = 3000
"""Moments that are looked at, at most twice as many; evenly over the requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A knob, what was made of it, and how it is known: ``given``, ``by replay``, ``at least`` or ``alike`` with others."""

    knob: str
    value: object
    known: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Who was being served when somebody got in after a wait. ``running`` and ``blocks`` at those moments (the one who got in
    counted, what several share counted once), ``peak`` and ``peak_blocks`` over all moments, ``waits`` how many waited."""

    running: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.int64]
    peak: int
    peak_blocks: int
    waits: int

    @property
    def seats(self) -> int | None:
        """About how many seats there are, where those who waited got in when about the same number was being served."""
        if self.waits < FEW:
            return None
        low, middle, high = np.quantile(self.running, (0.1, 0.5, 0.9))
        return round(float(middle)) if high - low <= max(PLATEAU * middle, 3) else None

    @property
    def memory(self) -> int | None:
        """Blocks that were in use when somebody who waited got in, where seats were not what they waited for."""
        if self.waits < FEW or self.seats is not None:
            return None
        return int(np.quantile(self.blocks, 0.9))


def crowd_of(source: TraceSource, seen: Observations, block_size: int, *, caching: bool) -> Crowd | None:
    """``None`` where the time in the queue was not observed: nobody can say then when a request began to be served. ``caching``:
    whether prompts that begin alike hold the same blocks."""
    known = seen.used & ~np.isnan(seen.queue) & ~np.isnan(seen.e2e) & ~np.isnan(seen.ttft)
    if not known.any():
        return None
    arrival = source.arrival_ns.astype(np.float64)
    begin, first, end = arrival + seen.queue, arrival + seen.ttft, arrival + seen.e2e
    waited = known & (seen.queue > HELD_UP_NS)
    places = np.flatnonzero(known)
    places = places[:: max(1, len(places) // LOOKS)]
    moments = begin[places]
    running = np.zeros(len(moments), np.int64)
    blocks = np.zeros(len(moments), np.int64)
    served = np.flatnonzero(known)
    sharing = Sharing(source)
    for place, now in enumerate(moments.tolist()):
        there = served[(begin[served] <= now) & (end[served] > now)]
        made = np.clip((now - first[there]) / np.maximum(end[there] - first[there], 1.0), 0, 1) * source.output_tokens[there]
        running[place] = len(there)
        blocks[place] = int(np.ceil((source.prompt_tokens[there] + made) / block_size).sum())
        if caching:
            blocks[place] -= sharing.repeated(there) // block_size
    late = waited[places]
    return Crowd(running=running[late], blocks=blocks[late], peak=int(running.max()), peak_blocks=int(blocks.max()),
                 waits=int(late.sum()))  # fmt: skip

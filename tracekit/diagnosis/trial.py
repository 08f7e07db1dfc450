"""One changed replay, in memory, down to what a proof needs of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay_engine.config import ConfigError
from replay_engine.totals import RunTotals
from tracekit.diagnosis.changes import changed_setup
from tracekit.diagnosis.run_data import RunData
from tracekit.errors import UsageError
from tracekit.metrics.gaps import TokenGaps
from tracekit.record import MemoryRecord
from tracekit.simulate import simulate_into

if TYPE_CHECKING:
    from tracekit.replay import Setup

__all__ = ["Trial", "base_trial", "run_trial"]

Besides = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """``state``: how the replay ended (``stopped``: it took more iterations than its share; ``refused``: there is no such
    configuration, ``why`` says so). ``outcomes`` in order of the requests; ``gaps_ns``: p50 and p99 of all gaps between tokens,
    where they were asked for. ``besides``: knobs that the change moved besides those it names.
    """

    state: str
    outcomes: npt.NDArray[np.void] | None = None
    iterations: int = 0
    output_tokens: int = 0
    span_ns: int = 0
    preemptions: int = 0
    gaps_ns: tuple[float, float] | None = None
    besides: Besides = ()
    why: str = ""


class _OverShareError(Exception):
    """A replay took more iterations than it may."""


def base_trial(data: RunData, *, gaps: bool) -> Trial:
    """The run that is diagnosed, seen as a trial that changes nothing."""
    rows = data.outcomes
    iterations = data.iterations
    end = int((iterations["start_ns"] + iterations["duration_ns"]).max(initial=0))
    begin = int(iterations["start_ns"].min(initial=end))
    return Trial(
        state=data.state, outcomes=rows, iterations=len(iterations), output_tokens=int(rows["output_tokens"].sum()),
        span_ns=end - begin, preemptions=int(rows["preemptions"].sum()), gaps_ns=_gaps(data.token_gaps) if gaps else None,
    )  # fmt: skip


def run_trial(
    setup: Setup, sets: Sequence[str], *, share: int, gaps: bool = False, looked: Callable[[RunTotals], None] | None = None
) -> Trial:
    """Replay ``setup`` with ``sets`` applied, at most about ``share`` iterations of it. ``looked(totals)`` is called now and then
    and may raise. The same whatever process it runs in."""
    try:
        changed = changed_setup(setup, sets)
    except (ConfigError, UsageError) as error:
        return Trial(state="refused", why=" ".join(str(error).split()))
    own = replace(changed.setup, events="full" if gaps else "outcomes", source=copy.copy(changed.setup.source))
    record = MemoryRecord(own)

    def on_chunk(totals: RunTotals) -> None:
        if totals.iterations > share:
            raise _OverShareError
        if looked is not None:
            looked(totals)

    try:
        state, totals, _ = simulate_into(own, record.sink, stall_threshold_ns=record.stall_threshold_ns, on_chunk=on_chunk)
    except _OverShareError:
        return Trial(state="stopped", iterations=share, besides=changed.besides)
    if state == "interrupted":
        raise KeyboardInterrupt
    rows = record.rows("outcomes")
    rows = rows[np.argsort(rows["request"], kind="stable")]
    record.totals = totals
    return Trial(
        state=state.partition(":")[0], outcomes=rows, iterations=totals.iterations,
        output_tokens=int(rows["output_tokens"].sum()), span_ns=max(totals.last_end_ns - totals.first_start_ns, 0),
        preemptions=totals.preemptions, gaps_ns=_gaps(record.inputs(state).gaps) if gaps else None, besides=changed.besides,
    )  # fmt: skip


def _gaps(found: TokenGaps | None) -> tuple[float, float] | None:
    """p50 and p99 over all gaps, ns."""
    if found is None:
        return None
    pooled = found.pooled()
    return (float(pooled["p50"]), float(pooled["p99"])) if "p99" in pooled else None

"""How long replays on a real engine take: a stretch of one is measured, and the rest told from it.

The engine's time is its own (a model, a device, how many sequences go together), so no profile and no count of tokens says it.
What is measured is the beginning of the longest window under the current policy, for ``MEASURED_S`` at most. The rest is told in
two ways, as if prompts took all of the time and as if outputs did: what the two differ by is how sure it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replay_engine.totals import RunTotals
from tracekit.errors import TracekitError
from tracekit.simulate import simulate_into
from tracekit.traces.source import TraceSource
from tuner.cells import Cell, setup_of
from tuner.windows import WindowSources

if TYPE_CHECKING:
    from tracekit.engines import TorchEngine

__all__ = ["MEASURED_S", "Pace", "Work", "measure_pace", "work_of"]

MEASURED_S = 10.0
Work = tuple[int, int]
"""Tokens of prompts, and of outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Of one replay: ``start_s`` to begin and to end it, ``busy_s`` in which the engine did ``work`` and ended ``requests`` of
    ``total``."""

    start_s: float
    busy_s: float
    work: Work
    requests: int
    total: int

    def minutes(self, windows: Sequence[Work], configurations: int) -> tuple[float, float]:
        """What so many configurations on ``windows`` take, at least and at most by the two ways of telling it."""
        times = []
        for kind in (0, 1):
            if self.work[kind]:
                share = sum(window[kind] for window in windows) / self.work[kind]
                times.append(configurations * (len(windows) * self.start_s + share * self.busy_s) / 60)
        return (min(times), max(times)) if times else (0.0, 0.0)

    def to_dict(self) -> dict[str, Any]:
        return {"seconds": round(self.start_s + self.busy_s, 3), "requests": self.requests, "of": self.total}


def work_of(source: TraceSource) -> Work:
    """All that a window asks for; the first token of an output comes with its prompt."""
    return int(source.prompt_tokens.sum()), int((source.output_tokens - 1).sum())


def measure_pace(cell: Cell, sources: WindowSources, torch: TorchEngine, *,
                 clock: Callable[[], float] = time.monotonic) -> Pace:  # fmt: skip
    """Replay a cell on the engine until it ends or ``MEASURED_S`` have passed by ``clock``. Errors: ``TracekitError`` where the
    engine fails; ``KeyboardInterrupt``."""
    began, over = clock(), False

    def look(_: RunTotals) -> None:
        nonlocal over
        if not over and clock() - began >= MEASURED_S:
            over = True
            raise KeyboardInterrupt

    setup = setup_of(cell, sources, torch=torch)
    state, totals, _ = simulate_into(setup, _Nowhere(), on_chunk=look)
    if state == "interrupted" and not over:
        raise KeyboardInterrupt
    if state not in ("finished", "interrupted"):
        raise TracekitError(f"the engine replays no window of this trace: {state}")
    busy = totals.busy_ns / 1e9
    prompts = totals.prefill_tokens + totals.prefix_hit_tokens - totals.recomputed_tokens
    work = work_of(setup.source) if state == "finished" else (prompts, totals.decode_tokens)
    return Pace(start_s=max(clock() - began - busy, 0.0), busy_s=busy, work=work,
                requests=setup.source.total if state == "finished" else totals.finished, total=setup.source.total)  # fmt: skip


class _Nowhere:
    """A sink that keeps nothing."""

    def append(self, table: str, rows: Any) -> None:
        """Nobody asks for rows."""

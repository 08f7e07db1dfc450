"""An executor that takes its durations from a record: the same plans at the same times, without the engine that made them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay_engine.types import BatchPlan, IterationResult

__all__ = ["RecordedExecutor"]


class _Done(IterationResult):
    __slots__ = ()

    def wait(self) -> IterationResult:
        return self


class RecordedExecutor:
    """Plays back the durations of ``iterations`` rows (``replay_engine.tables``), by iteration number.

    An iteration without a row computed nothing and takes no time.
    """

    def __init__(self, iterations: npt.NDArray[np.void]) -> None:
        columns = (iterations[name].tolist() for name in ("iteration", "duration_ns", "device_ns", "host_ns"))
        self._times = {it: (duration, device, host) for it, duration, device, host in zip(*columns, strict=True)}

    def submit(self, plan: BatchPlan) -> _Done:
        return _Done(*self._times.get(plan.iteration, (0, 0, 0)))

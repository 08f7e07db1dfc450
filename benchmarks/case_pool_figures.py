"""The figures that cases of several engines state: what goes on between and beside prefill and decode pools."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.case_runs import CaseRun
from replay_engine.types import Phase

__all__ = ["busy", "phase_mean", "phase_share", "queued_beside_idle"]

Of = Callable[[CaseRun, str | None], float]
Ints = npt.NDArray[np.int64]


def phase_mean(phase: Phase) -> Of:
    """Mean time of a request in a phase, s."""
    return lambda run, _: float(run.seconds_in(phase).mean())


def phase_share(phase: Phase) -> Of:
    """A phase's part of the mean TTFT."""
    return lambda run, _: float(run.seconds_in(phase).sum() / (run.outcomes["ttft_ns"].sum() / 1e9))


def _pool(run: CaseRun, name: str) -> list[npt.NDArray[np.void]]:
    """The iterations of each engine of a pool."""
    prefill = run.policy.rules.pd.prefill
    sinks = run.sinks[:prefill] if name == "prefill" else run.sinks[prefill:]
    return [sink.table("iterations") for sink in sinks]


def busy(name: str, of: Callable[[list[float]], float]) -> Of:
    """Share of the run in which the engines of a pool compute: ``of`` their shares."""

    def figure(run: CaseRun, _: str | None) -> float:
        length = int(run.outcomes["last_token_ns"].max()) - int(run.outcomes["arrival_ns"].min())
        return float(of([int(rows["duration_ns"].sum()) / length for rows in _pool(run, name)]))

    return figure


def queued_beside_idle(run: CaseRun, _: str | None) -> float:
    """Of the time in which a prompt waits for its prefill engine, the share in which another prefill engine computes nothing."""
    queued = run.spans[run.spans["phase"] == int(Phase.queued)]
    spells = [(rows["start_ns"], rows["start_ns"] + rows["duration_ns"]) for rows in _pool(run, "prefill")]
    moments = np.unique(np.concatenate([queued["start_ns"], queued["end_ns"], *(at for spell in spells for at in spell)]))
    lengths = np.diff(moments)
    somebody = _level(moments, queued["start_ns"], queued["end_ns"])[:-1] > 0
    computing = np.array([_level(moments, *spell)[:-1] > 0 for spell in spells])
    idle = somebody & ~computing.all(axis=0)
    return float(lengths[idle].sum() / lengths[somebody].sum())


def _level(moments: Ints, begin: Ints, end: Ints) -> Ints:
    """How many of the stretches cover the time after each moment."""
    return np.searchsorted(np.sort(begin), moments, "right") - np.searchsorted(np.sort(end), moments, "right")

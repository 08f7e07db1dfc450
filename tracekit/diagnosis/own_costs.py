"""What the iterations of a run cost, by themselves, where the profile does not say: a real engine that nobody has calibrated.

Without costs nothing can be weighed: what a request would take alone is not known, and no change can be replayed. The run's own
iterations tell both. They are the same ones that are judged, so that an engine which is slow throughout looks normal; what is
slow at times, or only with some traffic, still shows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from replay_engine.config import ConfigError
from replay_engine.types import RequestState
from tracekit.diagnosis.claim import percent, seconds
from tracekit.diagnosis.finding import Diagnosis
from tracekit.diagnosis.run_data import RunData

__all__ = ["KIND", "is_own", "with_model_error", "with_own_costs"]

KIND = "fitted to the iterations of the run that is diagnosed"
"""The ``kind`` in the provenance of such a profile."""
FEWEST = 50
"""Iterations below which nothing is fitted: seven coefficients, and a hold-out to judge them by."""
MOST = 5000
"""Iterations that are fitted: a verdict at the end of a replay does not wait for all of them."""
WORST = 0.3
"""Median error of a fit beyond which it is none: the machine was busy with something else."""
FAR = 0.25
"""Beyond, as a share, an unchanged replay is not the run any more."""


def with_own_costs(data: RunData) -> RunData:
    """``data`` under a profile fitted to its own iterations, device and host; ``data`` itself where the profile has costs, or
    where they cannot be told: fewer than ``FEWEST`` iterations, none with a measured device time, a fit worse than ``WORST``."""
    if data.profile.latency.known or len(data.iterations) < FEWEST:
        return data
    from replay_engine.calibration.fit import fit_latency, predicted_device
    from replay_engine.calibration.many import thinned
    from replay_engine.calibration.samples import samples_of_rows

    rows = data.iterations
    try:
        samples = samples_of_rows({name: rows[name] for name in rows.dtype.names or ()})
        latency = fit_latency(thinned(samples, MOST))
    except ConfigError:
        return data
    error = float(np.median(np.abs(predicted_device(latency, samples) / samples.device_ns - 1)))
    if error > WORST or not latency.known:
        return data
    fit = {"median_error": round(error, 5), "iterations": len(samples)}
    profile = replace(data.profile, latency=latency, synthetic=True, fit=fit, provenance={"kind": KIND})
    return replace(data, setup=replace(data.setup, profile=profile))


def is_own(data: RunData) -> bool:
    """Whether ``data`` is weighed by costs fitted to itself."""
    return data.profile.provenance.get("kind") == KIND


def with_model_error(data: RunData, unchanged: RunData, diagnosis: Diagnosis) -> Diagnosis:
    """``diagnosis`` with what a replay of the run as it was, by the simulator, is off by: a warning beyond ``FAR``, else a
    remark."""
    real, model = (_mean_e2e(each) for each in (data, unchanged))
    off = model / real - 1 if real > 0 else float("nan")
    sign = "+" if off > 0 else "-"
    text = (
        "a real engine took this run, and the simulator replays the changes; unchanged, it says"
        f" {seconds(model)} to the last token in the mean where the engine took {seconds(real)} ({sign}{percent(abs(off))})"
    )
    if abs(off) > FAR:
        return replace(diagnosis, warnings=(*diagnosis.warnings, text))
    return replace(diagnosis, remarks=(*diagnosis.remarks, text))


def _mean_e2e(data: RunData) -> float:
    """ns, of the counted requests that finished."""
    rows = data.outcomes
    done = rows[(rows["state"] == int(RequestState.finished)) & data.counted[rows["request"]]]
    return float(done["e2e_ns"].mean()) if len(done) else 0.0

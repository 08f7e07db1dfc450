"""The figures that stand beside a proof: before and after, of the requests that a finding is about."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.trial import Trial
from tracekit.diagnosis.yardstick import times_ns

__all__ = ["trial_figures"]

Figure = tuple[str, str, float | None, float | None]
_LATENCIES = (("ttft p50", "ttft", 50), ("ttft p99", "ttft", 99), ("longest gap", "gap", 100), ("e2e p50", "e2e", 50),
              ("e2e p99", "e2e", 99))  # fmt: skip


def trial_figures(base: Trial, trial: Trial, scope: npt.NDArray[np.bool_]) -> tuple[Figure, ...]:
    """(measure, unit, before, after). Latencies over the requests of ``scope`` (mask by index) that have them; rates over all."""
    sides = (base, trial)
    found: list[Figure] = []
    for name, measure, percent in _LATENCIES:
        values = []
        for side in sides:
            assert side.outcomes is not None
            times = times_ns(side.outcomes, measure)[scope[side.outcomes["request"]]]  # type: ignore[arg-type]
            known = times[~np.isnan(times)]
            values.append(float(np.percentile(known, percent)) if len(known) else None)
        found.append((name, "ns", values[0], values[1]))
    tpot = [_tpot(side, scope) for side in sides]
    found.append(("tpot p50", "ns", tpot[0], tpot[1]))
    if base.gaps_ns is not None and trial.gaps_ns is not None:
        found.append(("p99 of all gaps", "ns", base.gaps_ns[1], trial.gaps_ns[1]))
    rates = [side.output_tokens / side.span_ns * 1e9 if side.span_ns else None for side in sides]
    found.append(("output", "tokens/s", rates[0], rates[1]))
    found.append(("preemptions", "count", float(base.preemptions), float(trial.preemptions)))
    return tuple(found)


def _tpot(side: Trial, scope: npt.NDArray[np.bool_]) -> float | None:
    assert side.outcomes is not None
    values = side.outcomes["tpot_ns"][scope[side.outcomes["request"]]]
    values = values[~np.isnan(values)]
    return float(np.percentile(values, 50)) if len(values) else None

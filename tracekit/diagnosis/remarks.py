"""What is no fault and still worth knowing, and figures of a run that mislead."""

from __future__ import annotations

import numpy as np

from tracekit.diagnosis.claim import percent, seconds
from tracekit.diagnosis.signals import quarters_s
from tracekit.diagnosis.view import View

__all__ = ["remarks_of", "warnings_of"]


def remarks_of(view: View) -> tuple[str, ...]:
    """Pressure that has not become trouble."""
    found = []
    if view.data.has_iterations:
        preempted = int(view.data.iterations["preempted"].sum())
        if preempted:
            worst = int(view.data.outcomes["preemptions"].max())
            share = view.data.iterations["recomputed_tokens"].sum() / max(int(view.data.iterations["prefill_tokens"].sum()), 1)
            found.append(
                f"KV pressure: {preempted} evictions, at most {worst} of one request, {percent(float(share))} of the prefilled"
                " tokens computed again"
            )
    return tuple(found)


def warnings_of(view: View) -> tuple[str, ...]:
    """Metrics that point the wrong way."""
    rows, found = view.data.outcomes, []
    n = int(view.finished.sum())
    if 0 < n < 1000:
        found.append(f"a 99th percentile of {n} requests rests on {max(n // 100, 1)} of them")
    gaps = rows["max_gap_ns"][view.finished]
    if len(gaps) and float(np.quantile(gaps, 0.99)) > 20 * max(float(np.median(rows["tpot_ns"][view.finished])), 1.0):
        found.append(
            f"percentiles of token gaps hide the stalls: the longest gap is {seconds(float(gaps.max()))};"
            " a change can lower it and raise the 99th percentile of all gaps"
        )
    if not view.finished.all():
        lost = int((~view.finished).sum())
        found.append(f"{lost} requests did not finish: left out of latencies, they make them look better than they were")
    quarters = quarters_s(view)
    if len(rows) > 100 and quarters[3] > 3 * max(quarters[0], 1e-9) and quarters[3] > 1:
        found.append("the time to the first token grows over the run: its percentiles depend on how long the run is")
    return tuple(found)

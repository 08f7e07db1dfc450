"""What is no fault and still worth knowing, and figures of a run that mislead."""

from __future__ import annotations

import numpy as np

from tracekit.diagnosis.claim import percent, seconds
from tracekit.diagnosis.own_costs import is_own
from tracekit.diagnosis.signals import quarters_s
from tracekit.diagnosis.view import View
from tracekit.errors import shown

__all__ = ["remarks_of", "warnings_of"]

FEW = 100
"""Requests of a class below which its percentiles are single requests."""
CLASSES = 3
"""Classes that are warned of, those with the fewest requests first."""
INSTANT = 0.1
"""Of the median time that finished requests took: who failed within it looks fast."""


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
    rows, found = view.data.outcomes, list[str]()
    if not view.data.profile.latency.known:
        found.append(
            "the profile says of no iteration what it costs, so that what a request takes alone counts as nothing:"
            " tracekit calibrate, of this run, makes one that does"
        )
    elif is_own(view.data):
        fit = view.data.profile.fit
        found.append(
            f"nobody has said what this engine's iterations cost: held against a fit to these {fit['iterations']:,} themselves"
            f" (median error {percent(fit['median_error'])}), which takes what is always slow for normal;"
            " tracekit calibrate, of this run, keeps it"
        )
    n = int(view.finished.sum())
    if 0 < n < 1000:
        found.append(f"a 99th percentile of {n} requests rests on {max(n // 100, 1)} of them")
    gaps = rows["max_gap_ns"][view.finished]
    if len(gaps) and float(np.quantile(gaps, 0.99)) > 20 * max(float(np.median(rows["tpot_ns"][view.finished])), 1.0):
        found.append(
            f"percentiles of token gaps hide the stalls: the longest gap is {seconds(float(gaps.max()))};"
            " a change can lower it and raise the 99th percentile of all gaps"
        )
    found += _few(view)
    if not view.finished.all():
        found.append(_unfinished(view))
    quarters = quarters_s(view)
    if len(rows) > 100 and quarters[3] > 3 * max(quarters[0], 1e-9) and quarters[3] > 1:
        found.append("the time to the first token grows over the run: its percentiles depend on how long the run is")
    return tuple(found)


def _few(view: View) -> list[str]:
    """Classes with so few requests that their percentiles are single ones."""
    labels = view.data.labels("class")
    if labels is None or len(labels.names) < 2:
        return []
    codes = labels.codes[view.data.outcomes["request"]]
    counts = {shown(name): int((view.finished & view.counted & (codes == code)).sum()) for code, name in enumerate(labels.names)}
    few = sorted((n, name) for name, n in counts.items() if 0 < n < FEW)[:CLASSES]
    return [f"class {name}: its 95th percentile of {n} requests rests on {max(n // 20, 1)} of them" for n, name in few]


def _unfinished(view: View) -> str:
    """How many did not finish, and how they would look if their rows were taken for latencies."""
    ends, done = view.parts.blame.ends, view.finished
    lasted = ends.last - ends.arrival
    said = f"{int((~done).sum())} requests did not finish: left out of latencies, they make them look better than they were"
    if not done.any():
        return said
    instant = ~done & (lasted < INSTANT * float(np.median(lasted[done])))
    if not instant.any():
        return said
    longest = seconds(float(lasted[instant].max()))
    return f"{said}; {int(instant.sum())} of them ended within {longest}: in a mean over all rows they are the fastest"

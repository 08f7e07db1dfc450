"""The figures of an experiment for two whole runs: their values from the matrices, their intervals from blocks of arrivals."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.comparison.blocks import Draws, block_maxima, blocks_for, resampled
from tracekit.comparison.pairing import Pair, Side
from tracekit.experiments.intervals import Interval, Verdict, judge, paired_interval
from tracekit.experiments.measures import MEASURES, figures_of

__all__ = ["Compared", "compare_figures"]

Floats = npt.NDArray[np.float64]
_PERCENTS = (50.0, 95.0, 99.0)
_ONE_NUMBER = "one number a run: no interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One measure of both runs. ``requests``: how many have it in both."""

    measure: str
    interval: Interval
    verdict: Verdict
    requests: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare_figures(pair: Pair) -> tuple[list[Compared], int]:
    """Every measure of ``experiments.measures``, and the number of blocks. The longest gap is that of a block, in its middle."""
    sides = (pair.base, pair.other)
    residence = max(float(np.nanmean(side.values["e2e_ns"])) if _any(side, "e2e_ns") else 0.0 for side in sides)
    arrival = np.where(pair.base.arrival_ns >= 0, pair.base.arrival_ns, pair.other.arrival_ns)
    draws = Draws(blocks_for(arrival, residence))
    values = [_values(side) for side in sides]
    sampled = [_sampled(side, draws) for side in sides]
    found = []
    for name, measure in MEASURES.items():
        base, level = (figures[name]["value"] for figures in values)
        if name == "longest_gap":
            interval = _gaps(pair, draws)
        elif base is None or level is None:
            interval = Interval(n=0, scale=measure.scale, why=str((values[0][name] | values[1][name]).get("reason")))
        elif name in ("goodput", "attainment") and pair.base.row["slo"] != pair.other.row["slo"]:
            interval = Interval(n=0, scale=measure.scale, why="the runs' SLOs differ")
        elif name in sampled[0] and name in sampled[1]:
            interval = resampled(base, level, (sampled[0][name], sampled[1][name]), draws.blocks, measure.scale)
        else:
            interval = _unsure(base, level, name)
        found.append(Compared(measure=name, interval=interval, verdict=judge(interval, measure.better),
                              requests=_with_both(pair, name)))  # fmt: skip
    return found, draws.blocks


def _values(side: Side) -> dict[str, dict[str, Any]]:
    """As the matrix has them; preemptions are those of the counted requests, which the draws are of."""
    return {**figures_of(side.row["matrix"]), "preemptions": {"value": float(side.preemptions.sum())}}


def _sampled(side: Side, draws: Draws) -> dict[str, Floats]:
    """Each figure of one run in every draw; the window that goodput is over is the same in all."""
    found: dict[str, Floats] = {"preemptions": draws.sums(side.preemptions)}
    found["rejections"] = draws.sums((side.state == "rejected").astype(np.float64))
    if side.met is not None:
        met = draws.sums(side.met.astype(np.float64))
        found["attainment"] = met / draws.sums(np.ones(len(side.met)))
        found["goodput"] = met / max(side.row["matrix"]["slo"].get("window_ns") or 0, 1) * 1e9
    for part in ("ttft", "tpot"):
        if _any(side, f"{part}_ns"):
            drawn = draws.percentiles(side.values[f"{part}_ns"], _PERCENTS)
            found |= {f"{part}_p{percent:g}": each for percent, each in zip(_PERCENTS, drawn, strict=True)}
    return found


def _any(side: Side, column: str) -> bool:
    return not bool(np.isnan(side.values[column]).all())


def _gaps(pair: Pair, draws: Draws) -> Interval:
    base, level = (block_maxima(side.values["max_gap_ns"], draws.block) for side in (pair.base, pair.other))
    return paired_interval(base, level, "ratio")


def _unsure(base: float, level: float, name: str) -> Interval:
    """A change without an interval; none at all is a finding all the same."""
    found = paired_interval(np.array([base]), np.array([level]), MEASURES[name].scale)
    return replace(found, n=2, why="no difference") if base == level else replace(found, why=_ONE_NUMBER)


def _with_both(pair: Pair, name: str) -> int:
    column = {"longest_gap": "max_gap_ns"}.get(name, f"{name.split('_')[0]}_ns")
    if column not in pair.base.values:
        return len(pair.request)
    return int((~np.isnan(pair.base.values[column]) & ~np.isnan(pair.other.values[column])).sum())

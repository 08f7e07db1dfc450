"""Whether predictions put configurations into the order that was observed: what tuning needs, more than milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracekit.metrics.verdict import Ranked

__all__ = ["OBJECTIVES", "agreement", "kendall_tau", "objectives_of", "regret_of", "why_unranked"]

OBJECTIVES = ("ttft_mean", "ttft_p99", "tpot_mean", "e2e_mean", "e2e_p99", "makespan")
"""What configurations are ranked by; less is better."""


def kendall_tau(one: Sequence[float], other: Sequence[float]) -> float:
    """Kendall's tau-b, -1 to 1: pairs in the same order less pairs in the opposite one, ties taken out. NaN: only ties."""
    first, second = np.asarray(one, np.float64), np.asarray(other, np.float64)
    left, right = np.triu_indices(len(first), 1)
    a, b = np.sign(first[left] - first[right]), np.sign(second[left] - second[right])
    scale = float(np.sqrt((a != 0).sum() * float((b != 0).sum())))
    return float((a * b).sum()) / scale if scale else float("nan")


def regret_of(predicted: Sequence[float], observed: Sequence[float]) -> float:
    """What the configuration predicted to be best costs over the one that is: a share of the latter's figure, 0 or more.
    Of several predicted alike, the worst."""
    guess, truth = np.asarray(predicted, np.float64), np.asarray(observed, np.float64)
    return float(truth[guess == guess.min()].max() / truth.min() - 1)


def objectives_of(
    comparison: Mapping[str, dict[str, Any] | None], makespans: tuple[float | None, float | None]
) -> dict[str, Any]:
    """(predicted, observed) of each objective that both sides tell."""
    found: dict[str, Any] = {}
    for name in OBJECTIVES:
        metric, _, figure = name.partition("_")
        if name == "makespan":
            if None not in makespans:
                found[name] = makespans
        elif (each := comparison[metric]) is not None:
            found[name] = (each["predicted_ns"][figure], each["observed_ns"][figure])
    return found


def why_unranked(configs: Sequence[Mapping[str, Any]]) -> str | None:
    """Why ``agreement`` has nothing to say of rows of ``name`` and ``objectives``; ``None``: it has, or there are none."""
    told = [each["objectives"] for each in configs]
    if not configs or agreement(told):
        return None
    silent = [str(each["name"]) for each, own in zip(configs, told, strict=True) if not own]
    if silent:
        return f"rank agreement: not told, nothing was observed under {', '.join(silent)}"
    if not set.intersection(*map(set, told)):
        return "rank agreement: not told, no latency was observed under all configurations"
    return f"rank agreement: not told, all {len(configs)} configurations come out alike; expected sets that differ"


def agreement(configs: Sequence[Mapping[str, Any]]) -> dict[str, Ranked]:
    """By objective, over the configurations' ``objectives_of``: those that all of them tell."""
    found = {}
    for name in OBJECTIVES:
        if len(configs) > 1 and all(name in each for each in configs):
            predicted, observed = [each[name][0] for each in configs], [each[name][1] for each in configs]
            tau = kendall_tau(predicted, observed)
            if not np.isnan(tau):
                found[name] = Ranked(configs=len(configs), tau=tau, regret=regret_of(predicted, observed))
    return found

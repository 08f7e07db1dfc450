"""Who was served when, from the event tables: weighted tokens by tenant and iteration, and the widest gap of two tenants."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt

from replay_engine.types import Phase

__all__ = ["backlogged", "served", "widest_gap"]

Table = npt.NDArray[np.void]
Floats = npt.NDArray[np.float64]
WAITING = [int(p) for p in (Phase.queued, Phase.preempted, Phase.swapped, Phase.paused)]


def served(spans: Table, prompt: npt.NDArray[np.int64], tenant: npt.NDArray[np.int32], weights: tuple[float, float]) -> Floats:
    """Per tenant and iteration (rows, columns): ``weights[0]`` a prompt token (at admission), ``weights[1]`` an output token."""
    spans = spans[np.lexsort((spans["start_ns"], spans["request"]))]
    length = int(spans["end_iteration"].max()) + 3
    change = np.zeros((int(tenant.max()) + 1, length))
    who = tenant[spans["request"]]
    decode = spans["phase"] == Phase.decode
    np.add.at(change, (who[decode], spans["start_iteration"][decode]), weights[1])
    np.add.at(change, (who[decode], spans["end_iteration"][decode] + 1), -weights[1])
    rate: Floats = np.cumsum(change, axis=1)
    followed = np.append(spans["request"][1:] == spans["request"][:-1], False)
    next_phase = np.append(spans["phase"][1:], -1)
    token = (spans["phase"] == Phase.prefill) & (~followed | (next_phase == Phase.decode))
    np.add.at(rate, (who[token], spans["end_iteration"][token]), weights[1])
    first = spans["phase"] == Phase.queued
    np.add.at(rate, (who[first], spans["end_iteration"][first] + 1), weights[0] * prompt[spans["request"][first]])
    return rate


def backlogged(spans: Table, iterations: Table, tenant: npt.NDArray[np.int32], length: int) -> npt.NDArray[np.bool_]:
    """Per tenant and iteration: somebody of it waited after the decision (synchronous scheduling)."""
    waits = spans[np.isin(spans["phase"], WAITING)]
    at = np.minimum(np.searchsorted(iterations["start_ns"], waits["start_ns"]), len(iterations) - 1)
    begin = np.where(waits["start_iteration"] < 0, iterations["iteration"][at], waits["start_iteration"])
    end = np.maximum(waits["end_iteration"] + 1, begin)
    change = np.zeros((int(tenant.max()) + 1, length + 1), np.int64)
    np.add.at(change, (tenant[waits["request"]], begin), 1)
    np.add.at(change, (tenant[waits["request"]], end), -1)
    found: npt.NDArray[np.bool_] = np.cumsum(change, axis=1)[:, :length] > 0
    return found


def widest_gap(rate: Floats, waits: npt.NDArray[np.bool_]) -> float:
    """The largest difference of service of two tenants over any interval in which both always have somebody waiting."""
    total = np.cumsum(rate, axis=1)
    widest = 0.0
    for first, second in combinations(range(len(total)), 2):
        both = np.flatnonzero(waits[first] & waits[second])
        if not both.size:
            continue
        ahead = total[first] - total[second]
        starts = np.concatenate(([0], np.flatnonzero(np.diff(both) != 1) + 1))
        high, low = np.maximum.reduceat(ahead[both], starts), np.minimum.reduceat(ahead[both], starts)
        widest = max(widest, float((high - low).max()))
    return widest

"""Fits of millions of iterations: the knee is looked for in a part of them, the coefficients then follow from all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay_engine.calibration.fit import fit_device, hinged, predicted_device
from replay_engine.calibration.nonnegative import huber_bound, reweighted
from replay_engine.calibration.samples import Samples
from replay_engine.profile import Latency

__all__ = ["MOST", "fit_many", "thinned"]

MOST = 20_000
"""Rows that the knee is looked for in."""
_WIDTH = 0.03
"""How far around the knee of the part, as a share of it, that of the whole is looked for."""


def thinned(samples: Samples, most: int = MOST, seed: int = 0) -> Samples:
    """At most ``most`` rows, half of them with prefill where there are as many; drawn, always the same."""
    if len(samples) <= most:
        return samples
    draw, rows = np.random.default_rng(seed), np.zeros(len(samples), np.bool_)
    with_prefill, without = np.flatnonzero(samples.tokens > 0), np.flatnonzero(samples.tokens <= 0)
    fewer, more = sorted((with_prefill, without), key=len)
    first = min(len(fewer), most // 2)
    for group, count in ((fewer, first), (more, most - first)):
        rows[draw.choice(group, size=count, replace=False)] = True
    return samples.part(rows)


def fit_many(samples: Samples) -> Latency:
    """The device's coefficients from any number of rows. ``ConfigError``: too few."""
    found = fit_device(thinned(samples))
    if len(samples) <= MOST or not found.b_ns:
        return found
    more = [samples.padded] * (found.p_ns > 0) + [samples.above] * (found.s_ns > 0)
    columns = np.stack((np.ones(len(samples)), samples.tokens, samples.qk, samples.seqs, samples.kv, *more), axis=1)
    columns /= samples.device_ns[:, None]
    bound = huber_bound(predicted_device(found, samples) / samples.device_ns, samples.weight)
    knee = (found.floor_ns - found.a_ns) / found.b_ns
    low, middle, high = (knee * (1 + share) for share in (-_WIDTH, 0.0, _WIDTH))
    tried = {at: _at(samples, columns, at, found, bound) for at in (low, middle, high)}
    left, least, right = (tried[at][0] for at in (low, middle, high))
    if left - 2 * least + right > 0:
        between = middle + 0.5 * (left - right) / (left - 2 * least + right) * (high - middle)
        between = min(max(between, low), high)
        tried[between] = _at(samples, columns, between, found, bound)
    return min(tried.values(), key=lambda each: each[0])[1]


def _at(samples: Samples, columns: npt.NDArray[np.float64], knee: float, near: Latency, bound: float) -> tuple[float, Latency]:
    """One step of reweighting from ``near``, with the hinge at ``knee``; ``columns`` are shares of the times, tokens second."""
    before = columns[:, 1].copy()
    columns[:, 1] = np.maximum(samples.tokens - knee, 0) / samples.device_ns
    more = {name: value for name, value in (("p_ns", near.p_ns), ("s_ns", near.s_ns)) if value > 0}
    start = np.array([near.floor_ns, near.b_ns, near.c_ns, near.d_ns, near.e_ns, *more.values()])
    found, loss = reweighted(columns, start, samples.weight, bound)
    columns[:, 1] = before
    latency = hinged(found, knee, more)
    return (float("inf"), near) if latency is None else (loss, latency)

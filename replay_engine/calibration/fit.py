"""Fits of the simulator's form: ``device = max(floor, a + b*tokens) + c*qk + d*seqs + e*kv + p*padded + s*above`` and
``host = h0 + h1*running + h2*changes``.

With ``floor >= a`` the first part is ``floor + b * max(0, tokens - knee)``: for a given knee everything is linear, so knees are
tried and the rest is a non-negative least squares of relative errors (``nonnegative.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from replay_engine.calibration.nonnegative import huber_bound, robust
from replay_engine.calibration.samples import Samples
from replay_engine.config import ConfigError
from replay_engine.profile import Latency

__all__ = ["Held", "ShapeError", "fit_device", "fit_host", "fit_latency", "held_out", "hinged", "predicted_device", "skew_shows"]

Column = npt.NDArray[np.float64]
FEWEST = 6
"""Iterations that a fit needs: one more than it has coefficients."""
FEWEST_SKEWED, SKEW_BLOCKS, LEAST_SKEW = 40, 10, 0.002
"""Iterations that tell what the longest context costs, the blocks in which they are left out, and its least share of the time."""
_KNEES, _ZOOMS = 16, 6
_EVERY = 4
"""Each fourth shape is held out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeError:
    """A shape that the fit has not seen: measured and predicted device time (ns, medians), and the error's share."""

    shape: str
    measured_ns: float
    predicted_ns: float

    @property
    def error(self) -> float:
        return self.predicted_ns / self.measured_ns - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Errors on shapes that a fit of the others has not seen; ``median`` and ``p90`` are of their absolute shares."""

    shapes: tuple[ShapeError, ...]

    @property
    def median(self) -> float:
        return float(np.median([abs(each.error) for each in self.shapes]))

    @property
    def p90(self) -> float:
        return float(np.quantile([abs(each.error) for each in self.shapes], 0.9))


def predicted_device(latency: Latency, samples: Samples, *, padded: bool = False) -> Column:
    """What the simulator would say, ns; ``padded``: with the rows of the buckets."""
    tokens = samples.tokens
    seqs = samples.seqs + samples.padded if padded else samples.seqs
    base = np.maximum(latency.floor_ns, latency.a_ns + latency.b_ns * tokens)
    found: Column = base + latency.c_ns * samples.qk + latency.d_ns * seqs + latency.e_ns * samples.kv
    return found + latency.p_ns * samples.padded + latency.s_ns * samples.above


def fit_device(samples: Samples, *, padded: bool = False) -> Latency:
    """The device's coefficients; that of padding where the padding varies, unless the rows count as decodes (``padded``); that of
    the longest context where it is told and shows (``skew_shows``). ``ConfigError``: too few iterations to tell them."""
    if len(samples) < FEWEST:
        raise ConfigError(f"calibration: {len(samples)} iterations cannot tell the coefficients; expected {FEWEST} or more")
    found = _fitted(samples, padded=padded, skewed=len(samples) >= FEWEST_SKEWED and bool(samples.above.any()))
    return found if not found.s_ns or skew_shows(samples, found) else _fitted(samples, padded=padded, skewed=False)


def _fitted(samples: Samples, *, padded: bool, skewed: bool) -> Latency:
    seqs = samples.seqs + samples.padded if padded else samples.seqs
    target, weight = samples.device_ns, samples.weight
    columns = [np.ones(len(samples)), samples.tokens, samples.qk, seqs, samples.kv]
    more = {}
    if not padded and len(np.unique(samples.padded[samples.tokens <= 0])) > 1:
        more["p_ns"] = samples.padded
    if skewed:
        more["s_ns"] = samples.above
    columns += more.values()

    def at(knee: float) -> tuple[float, Latency]:
        columns[1] = np.maximum(samples.tokens - knee, 0)
        found, loss = robust(np.stack(columns, axis=1), target, weight)
        latency = hinged(found, knee, more)
        return (float("inf"), Latency()) if latency is None else (loss, latency)

    return _best_knee(at, float(samples.tokens.max()))


def hinged(found: Column, knee: float, more: Iterable[str]) -> Latency | None:
    """The coefficients of a fit with the hinge at ``knee``: floor, b, c, d, e, then those named by ``more``. ``None``: ``a``
    would be negative, no cost model of ours."""
    floor, b, c, d, e, *others = found.tolist()
    if floor < b * knee:
        return None
    latency = Latency(floor_ns=floor, a_ns=floor - b * knee, b_ns=b, c_ns=c, d_ns=d, e_ns=e)
    return replace(latency, **dict(zip(more, others, strict=True)))


def skew_shows(samples: Samples, found: Latency) -> bool:
    """Whether the cost of the longest context is told from noise: more than three of its standard errors, which come from leaving
    out a block of consecutive iterations each time (neighbours err together), and some share of the time. A coefficient that is
    held to be 0 or more would else always come out a little above 0 when there is none."""
    share = found.s_ns * samples.above / samples.device_ns
    if float((share * samples.weight).sum() / samples.weight.sum()) < LEAST_SKEW:
        return False
    knee = (found.floor_ns - found.a_ns) / found.b_ns if found.b_ns else 0.0
    rows = (np.ones(len(samples)), np.maximum(samples.tokens - knee, 0), samples.qk, samples.seqs, samples.kv, samples.padded,
            samples.above)  # fmt: skip
    matrix = np.stack(rows, axis=1) / samples.device_ns[:, None]
    matrix /= np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    off = predicted_device(found, samples) / samples.device_ns - 1
    root = np.sqrt(samples.weight * np.minimum(1.0, huber_bound(off + 1, samples.weight) / np.maximum(np.abs(off), 1e-12)))
    matrix *= root[:, None]
    block = np.arange(len(samples)) * SKEW_BLOCKS // len(samples)
    left = np.array([np.linalg.lstsq(matrix[block != k], root[block != k], rcond=None)[0][-1] for k in range(SKEW_BLOCKS)])
    error = float(np.sqrt((SKEW_BLOCKS - 1) / SKEW_BLOCKS * ((left - left.mean()) ** 2).sum()))
    return float(left.mean()) > 3 * error


def _best_knee(at: Callable[[float], tuple[float, Latency]], most: float) -> Latency:
    """The knee of the least loss: tried from 0 to ``most``, then closer and closer around the best."""
    if most < 2:
        return at(0.0)[1]
    knees = np.concatenate(([0.0], np.geomspace(1.0, most, _KNEES)))
    best: tuple[float, Latency] = (float("inf"), Latency())
    for _ in range(1 + _ZOOMS):
        tried = [at(float(knee)) for knee in knees]
        found = min(range(len(tried)), key=lambda i: tried[i][0])
        if tried[found][0] < best[0]:
            best = tried[found]
        low, high = knees[max(found - 1, 0)], knees[min(found + 1, len(knees) - 1)]
        knees = np.linspace(low, high, 6)
    return best[1]


def fit_host(samples: Samples) -> Latency:
    """Only the host's coefficients, from the rows whose host time is known; all 0 where there are too few."""
    known = samples.part(samples.host_ns > 0)
    if len(known) < FEWEST:
        return Latency()
    columns = np.stack((np.ones(len(known)), known.running, known.changes), axis=1)
    h0, h1, h2 = robust(columns, known.host_ns, known.weight)[0].tolist()
    return Latency(h0_ns=h0, h1_ns=h1, h2_ns=h2)


def fit_latency(samples: Samples) -> Latency:
    """All coefficients."""
    host = fit_host(samples)
    return replace(fit_device(samples), h0_ns=host.h0_ns, h1_ns=host.h1_ns, h2_ns=host.h2_ns)


def held_out(samples: Samples) -> Held | None:
    """The error of a fit on shapes it has not seen: each fourth one is left out, in the order of their device time.

    ``None``: too few iterations are left to fit.
    """
    names = sorted(set(samples.shape.tolist()), key=lambda name: float(np.median(samples.device_ns[samples.shape == name])))
    out = set(names[_EVERY // 2 :: _EVERY])
    unseen = np.isin(samples.shape, sorted(out)) if out else np.zeros(len(samples), np.bool_)
    if not out or int((~unseen).sum()) < FEWEST:
        return None
    latency = fit_device(samples.part(~unseen))
    errors = []
    for name in names:
        if name in out:
            rows = samples.part(samples.shape == name)
            predicted = float(np.median(predicted_device(latency, rows)))
            errors.append(ShapeError(shape=name, measured_ns=float(np.median(rows.device_ns)), predicted_ns=predicted))
    return Held(shapes=tuple(errors))

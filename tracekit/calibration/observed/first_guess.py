"""A first guess of the coefficients from the observations alone, without a replay.

Between its first and its last token a request lives through one iteration a token, and who else was being served meanwhile is
known from the others' observed times: their tokens per second add up to what those iterations had to do. So the time between
the two is linear in the coefficients, one equation a request. Tokens are taken to come evenly between a request's first and last,
which is what makes it a guess; of requests that a fit may not look at nothing is known here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay_engine.calibration.nonnegative import robust
from tracekit.calibration.observed.observations import Observations
from tracekit.calibration.observed.terms import INGRESS_NS, KNEE, LEAST, Vector

__all__ = ["between", "first_guess"]

Column = npt.NDArray[np.float64]
FEWEST = 8
FALLBACK = np.array((10e6, KNEE, 50e3, 1.0, 30e3, 50.0, INGRESS_NS, LEAST, LEAST))
"""Where the trace does not tell TTFT and E2E apart: an 8B model on a card of the last years."""
SHARE = 0.03
"""A term that the equations make out to be 0 is taken to cause this share of the time: it has to be somewhere to be moved."""


def first_guess(seen: Observations, arrival: npt.NDArray[np.int64], prompt: Column, output: Column) -> Vector:
    """Terms as ``terms.NAMES``, from the requests that ``seen`` lets a fit look at."""
    served = seen.used & ~np.isnan(seen.ttft) & ~np.isnan(seen.e2e) & (seen.e2e > seen.ttft) & (output > 1)
    if int(served.sum()) < FEWEST:
        return FALLBACK.copy()
    first = arrival + seen.ttft
    last = arrival + seen.e2e
    begin = np.where(np.isnan(seen.queue), first - np.minimum(seen.ttft, prompt * FALLBACK[2]), arrival + seen.queue)
    begin = np.minimum(begin, first - 1.0)
    known = seen.used & ~np.isnan(first) & ~np.isnan(last)
    rate = np.where(known & (last > first), (output - 1) / np.maximum(last - first, 1.0), 0.0)
    filling = np.where(known, prompt / np.maximum(first - begin, 1.0), 0.0)
    tokens = between(begin, first, filling, first[served], last[served])
    seqs = between(first, last, rate, first[served], last[served])
    context = prompt + output / 2
    kv = between(first, last, rate * context, first[served], last[served])
    columns = np.stack((output[served] - 1, tokens, seqs, kv), axis=1)
    target = (last - first)[served]
    found, _ = robust(columns, target, np.ones(len(target)))
    return _filled(found, columns, target, _prefill_rate(seen, prompt))


def _filled(found: Column, columns: Column, target: Column, alone: float) -> Vector:
    mean = columns.mean(axis=0)
    least = SHARE * target.mean() / np.maximum(mean, 1e-9)
    floor, b, d, e = np.maximum(found, least)
    b = alone if not np.isfinite(b) or mean[1] <= 0 or found[1] <= 0 else float(b)
    return np.array((floor, KNEE, b, b * 5e-5, d, e, INGRESS_NS, LEAST, LEAST), np.float64)


def _prefill_rate(seen: Observations, prompt: Column) -> float:
    """ns a prompt token: what requests with the least else to wait for needed."""
    spent = np.where(np.isnan(seen.prefill), seen.ttft, seen.prefill)
    chosen = seen.used & ~np.isnan(spent) & (prompt > KNEE)
    return float(np.quantile(spent[chosen] / prompt[chosen], 0.2)) if chosen.any() else float(FALLBACK[2])


def between(begin: Column, end: Column, rate: Column, low: Column, high: Column) -> Column:
    """The integral from ``low`` to ``high`` of the sum of ``rate`` (a ns) over all that are under way."""
    use = (rate > 0) & ~np.isnan(begin) & ~np.isnan(end)
    moments = np.concatenate((begin[use], end[use]))
    change = np.concatenate((rate[use], -rate[use]))
    order = np.argsort(moments, kind="stable")
    moments, level = moments[order], np.cumsum(change[order])
    if not len(moments):
        return np.zeros(len(low))
    area = np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(moments))))
    return np.interp(high, moments, area) - np.interp(low, moments, area)

"""How predicted latencies move with the coefficients while the schedule stays as it is: from one replay.

Between two moments lie whole iterations, and what each takes is linear in the coefficients. What a request's own time hangs on is
its arrival if it was scheduled at the first chance, and else whoever left last before it got its place, whose time hangs on
somebody else's again. That the schedule itself would change is what ``search.py`` finds out by replaying.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.calibration.observed.replays import Replayed
from tracekit.calibration.observed.terms import NAMES, Vector, delivered_of

__all__ = ["sensitivities"]

Matrix = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def sensitivities(run: Replayed, vector: Vector, counting: str, *, asynchronous: bool) -> dict[str, Matrix]:
    """By group of latencies: ns per unit of the logarithm of each term, one row a request; 0 where a request never got there."""
    sums = np.concatenate((np.zeros((1, len(NAMES))), np.cumsum(_by_iteration(run, vector, asynchronous=asynchronous), axis=0)))
    began = run.began(counting)
    moments = {"queued": run.queued, "scheduled": began, "first": run.first, "last": run.last}
    at = {name: sums[np.searchsorted(run.end, moment, side="right")] for name, moment in moments.items()}
    prefill = np.where((run.first >= 0)[:, None], at["first"] - at["scheduled"], 0.0)
    decode = np.where((run.last >= 0)[:, None], at["last"] - at["first"], 0.0)
    ttft = _waits(run, began, at, sums, prefill + decode) + prefill
    e2e = ttft + decode
    if counting != "engine":
        there = delivered_of(vector)
        for each in (ttft, prefill, e2e):
            each[:, NAMES.index("ingress")] = there.before
        for each in (decode, e2e):
            each[:, NAMES.index("egress")] = there.after
    return {"ttft": ttft, "prefill": prefill, "tpot": decode / np.maximum(run.output - 1, 1)[:, None], "e2e": e2e}


def _by_iteration(run: Replayed, vector: Vector, *, asynchronous: bool) -> Matrix:
    floor, knee, b, c, d, e = (float(x) for x in vector[:6])
    over = run.tokens > knee
    skew = float(vector[NAMES.index("skew")])
    computed = ((run.tokens > 0) | (run.seqs > 0)).astype(np.float64)
    columns = np.stack(
        (floor * computed, -b * knee * over, b * np.where(over, run.tokens - knee, 0.0), c * run.qk, d * run.seqs, e * run.kv,
         np.zeros(len(run.tokens)), np.zeros(len(run.tokens)), skew * run.above), axis=1,
    )  # fmt: skip
    if asynchronous:
        columns *= (run.device >= run.host)[:, None]
    return columns


def _waits(run: Replayed, began: Ints, at: dict[str, Matrix], sums: Matrix, service: Matrix) -> Matrix:
    """How the moment at which each request is scheduled moves."""
    moved = np.zeros_like(service)
    order = np.argsort(began, kind="stable")
    leaving = np.argsort(run.last, kind="stable")
    leaving = leaving[run.last[leaving] >= 0]
    left = run.last[leaving]
    before = np.searchsorted(left, began, side="right") - 1
    at_left = sums[np.searchsorted(run.end, left, side="right")]
    waited = began > run.queued
    since = at["scheduled"] - at["queued"]
    for request in order.tolist():
        if not waited[request] or began[request] < 0:
            continue
        place = before[request]
        if place < 0 or left[place] <= run.queued[request]:
            moved[request] = since[request]
            continue
        who = leaving[place]
        moved[request] = moved[who] + service[who] + at["scheduled"][request] - at_left[place]
    return moved

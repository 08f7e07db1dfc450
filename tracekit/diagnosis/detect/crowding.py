"""So many decode together that each token comes too late: a batch larger than the time per token that was promised allows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.claim import Claim, change, percent, scaled, seconds
from tracekit.diagnosis.finding import Change, Measure
from tracekit.diagnosis.iteration_cost import CostForm
from tracekit.diagnosis.signals import evidence, fact
from tracekit.diagnosis.view import View

__all__ = ["crowded"]

Floats = npt.NDArray[np.float64]
LEAST_PART = 0.1
"""Of the excess after the first token: what decoding alone, without others' prompts, must take of it."""
CROWD = 1.3
"""How many times as long as one sequence's an iteration of the batch must be for the batch to be the reason."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """What a token takes: ``fixed_ns`` of an iteration, ``each_ns`` for everybody who decodes in it (with the KV of the run's
    requests), of all of it the share ``prompts`` for others' prompts; ``running`` when most tokens were made; ``limit_ns``.
    ``skew_ns`` is waited for the longest context where several decode, however many."""

    fixed_ns: float
    each_ns: float
    prompts: float
    running: int
    limit_ns: float
    skew_ns: float = 0.0

    def token_ns(self, running: float) -> float:
        return (self.fixed_ns + self.skew_ns * (running > 1) + running * self.each_ns) / (1 - self.prompts)

    @property
    def most(self) -> int:
        """As many may decode together; 0: even one is too slow."""
        several = math.floor((self.limit_ns * (1 - self.prompts) - self.fixed_ns - self.skew_ns) / self.each_ns)
        return several if several > 1 else int(self.token_ns(1) <= self.limit_ns)


def crowded(view: View) -> Claim | None:
    """A limit on the time per token is missed by decoding itself, because of how many decode together."""
    asked: tuple[Measure, ...] = tuple(each for each in ("tpot", "gap") if each in view.yardstick.asked)
    if not asked:
        return None
    late = view.later["decode"] > 0 if asked[0] == "tpot" else view.later_excess > 0
    if not late.any() or _by_itself(view, asked[0]) < LEAST_PART:
        return None
    steps = _steps(view, asked[0], late)
    if steps is None or not 1 <= steps.most < steps.running or steps.token_ns(steps.running) < CROWD * steps.token_ns(1):
        return None
    return Claim(
        id="BATCH_TOO_LARGE",
        what=f"up to {steps.running} decode together, and a token then takes {seconds(steps.token_ns(steps.running))};"
        f" {seconds(steps.limit_ns)} are allowed, which leaves room for {steps.most}",
        later={"decode": 1.0, "interference": late.astype(np.float64)},
        evidence=(
            fact("decoding together", float(steps.running), "sequences", float(steps.most), note="where most tokens are made"),
            fact("time per token", steps.token_ns(steps.running) / 1e9, "s", steps.limit_ns / 1e9),
            fact("time per token alone", steps.token_ns(1) / 1e9, "s"),
            fact("for others' prompts", steps.prompts, "of decoding time"),
            evidence(view, "running max", note=f"of {view.data.policy.scheduler.max_num_seqs} seats"),
        ),
        is_not=(f"CHUNK_TOO_LARGE: others' prompts take {percent(steps.prompts)} of the time between tokens",),
        changes=_fewer(view, steps),
        tempting=(scaled(view, "max_num_seqs", 2, "more would run at a time"),),
        because="the profile's cost of a sequence, and how many decoded in every iteration",
        measure=asked[0],
        iterations=np.asarray(view.data.iterations["decode_seqs"] > steps.most),
    )


def _by_itself(view: View, measure: Measure) -> float:
    """How much of the excess after the first token is left without others' prompts; of single gaps, of the time in iterations
    that take longer than a gap may."""
    if measure == "tpot":
        return float(view.later["decode"].sum() / max(float(view.later_excess.sum()), 1.0))
    rows, limit = view.data.iterations, view.yardstick.limits["gap"]
    time = rows["decode_seqs"].astype(np.float64) * rows["duration_ns"]
    allowed = float(np.median(limit[np.isfinite(limit)]))
    long, still = (each > allowed for each in (rows["duration_ns"], rows["duration_ns"] - view.parts.interference))
    return float(time[still].sum() / max(float(time[long].sum()), 1.0))


def _steps(view: View, measure: Measure, late: npt.NDArray[np.bool_]) -> _Steps | None:
    rows, latency = view.data.iterations, view.data.profile.latency
    decodes = rows["decode_seqs"].astype(np.float64)
    limits = view.yardstick.limits[measure][view.data.outcomes["request"]][late]
    if measure == "tpot":
        limits = limits / np.maximum(view.data.outcomes["output_tokens"][late] - 1, 1)
    limits = limits[np.isfinite(limits)]
    if not len(limits) or not decodes.any():
        return None
    spent, others = (float((decodes * each).sum()) for each in (rows["duration_ns"], view.parts.interference))
    order = np.argsort(decodes, kind="stable")
    made = np.cumsum(decodes[order])
    busy = np.flatnonzero(made >= 0.9 * made[-1])[0]
    context = float(rows["decode_kv_tokens"].sum()) / float(decodes.sum())
    fixed = max(latency.floor_ns, latency.a_ns) + (0.0 if view.data.engine_of(0).async_scheduling else latency.h0_ns)
    each = latency.d_ns + latency.e_ns * context
    if each <= 0 or others >= spent:
        return None
    running = int(decodes[order[busy]])
    crowd, skew = decodes >= running / 2, CostForm(latency, asynchronous=False).skew_ns(rows)
    waited = float(np.average(skew[crowd], weights=decodes[crowd]))
    return _Steps(fixed, each, others / spent, running, float(np.median(limits)), waited)


def _fewer(view: View, steps: _Steps) -> tuple[Change, ...]:
    """Fewer at a time where they can be served so; else more engines: fewer seats then only move the wait to the queue."""
    scheduler, capacity, rules = view.data.policy.scheduler, view.capacity, view.data.policy.rules
    seats = change(
        "max_num_seqs",
        scheduler.max_num_seqs,
        steps.most,
        f"a token then takes at most {seconds(steps.token_ns(steps.most))}",
        price="who comes when all seats are taken waits for one: the time to the first token grows at peaks",
        tolerated=0.5,
    )
    if capacity is None or rules.pd.prefill:
        return (seats,)
    served = capacity.served(min(steps.most, *capacity.at_a_time().values()))
    if capacity.rate is None or capacity.rate < 0.95 * served:
        return (seats,)
    need = max(math.ceil(capacity.engines * capacity.rate / (0.85 * served)), capacity.engines + 1)
    router = ("fleet.router=least_tokens",) if rules.fleet.replicas == 1 else ()
    replicas = change(
        "fleet.replicas",
        capacity.engines,
        need,
        f"{steps.most} at a time serve {served:.3g} requests/s an engine, {capacity.rate * capacity.engines:.3g} come",
        sets=(f"fleet.replicas={need}", *router),
        price="more devices",
        outside=True,
    )
    return (replicas, seats)

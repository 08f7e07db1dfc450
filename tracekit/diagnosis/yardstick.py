"""What every request is held to, so that time in excess has one meaning before and after a change.

A part of the SLO where it has one; else a stated multiple of what the request would take alone on the idle engine, by the
profile. The limits are those of the run that is diagnosed, whatever a change does to the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.finding import Measure
from tracekit.diagnosis.run_data import RunData
from tracekit.metrics.slo import UNLIMITED

if TYPE_CHECKING:
    from replay_engine.config import SchedulerConfig
    from replay_engine.profile import Latency

__all__ = ["GRACE_NS", "MEASURES", "SLACK", "Yardstick", "alone_ns", "times_ns"]

Floats = npt.NDArray[np.float64]
MEASURES: tuple[Measure, ...] = ("ttft", "gap", "tpot", "e2e")
SLACK = 3.0
"""How many times as long as alone a request may take where no SLO says more."""
GRACE_NS = 50_000_000
"""What it may take besides: below, nobody notices."""
_PROMPT_CHUNK = 2048
"""Prompt tokens of an iteration that a stream may have to sit out, where no SLO says more."""
_PARTS: dict[Measure, tuple[str, ...]] = {"ttft": ("ttft",), "gap": ("stall", "itl"), "tpot": ("tpot",), "e2e": ("e2e",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """``limits``: ns per measure and request index, infinite where a request has none; ``basis`` says where they come from, and
    ``asked`` which of them an SLO asks for."""

    limits: Mapping[Measure, Floats]
    basis: str
    asked: tuple[Measure, ...] = ()

    @classmethod
    def of(cls, data: RunData) -> Yardstick:
        limits, said, asked = {}, [], []
        first, later, gap = alone_ns(data)
        idle: dict[Measure, Floats] = {"ttft": first, "gap": gap, "tpot": later}
        for measure in MEASURES:
            part = next((part for part in _PARTS[measure] if part in data.slo_parts), None)
            if part is not None:
                limits[measure] = _asked(data, part)
                said.append(part)
                asked.append(measure)
            elif measure == "e2e":
                limits[measure] = limits["ttft"] + limits["tpot"]
            else:
                limits[measure] = SLACK * idle[measure] + GRACE_NS
        alone = f"{SLACK:g} times what a request takes alone on the idle engine, and {GRACE_NS // 1_000_000} ms"
        basis = f"no SLO: {alone}"
        if said:
            basis = f"the SLO ({', '.join(said)})" + (f"; elsewhere {alone}" if len(said) < len(MEASURES) else "")
        return cls(limits=limits, basis=basis, asked=tuple(asked))

    def excess(self, outcomes: npt.NDArray[np.void], measure: Measure) -> Floats:
        """Time beyond the limit per request index, ns; NaN for a request that has no such time, or did not get so far."""
        limit = self.limits[measure]
        found = np.full(len(limit), np.nan)
        request = outcomes["request"]
        found[request] = np.maximum(times_ns(outcomes, measure) - limit[request], 0.0)
        return found


def times_ns(outcomes: npt.NDArray[np.void], measure: Measure) -> Floats:
    """The time that a measure is about, per outcome row; NaN where there is none."""
    if measure == "tpot":
        gaps: Floats = outcomes["tpot_ns"] * np.maximum(outcomes["output_tokens"] - 1, 0)
        return np.where(outcomes["output_tokens"] > 1, gaps, np.nan)
    column = outcomes[{"ttft": "ttft_ns", "gap": "max_gap_ns", "e2e": "e2e_ns"}[measure]]
    return np.where(column >= 0, column.astype(np.float64), np.nan)


def _asked(data: RunData, part: str) -> Floats:
    asked = data.limits_ns(part, np.arange(data.source.total))
    limit = np.where(asked == UNLIMITED, np.inf, asked.astype(np.float64))
    if part == "tpot":
        limit = limit * np.maximum(data.source.output_tokens - 1, 1)
    return limit


def alone_ns(data: RunData) -> tuple[Floats, Floats, Floats]:
    """Per request index, alone on the idle engine: arrival to first token, first to last token, and an iteration that computes
    2,048 tokens of somebody's prompt (or the token budget, where that is less) beside it. ns; no prefix hits."""
    policy = data.policy
    engines = [policy.engines[pool] for pool in ("prefill", "decode")] if policy.engines else [policy.scheduler] * 2
    latency = data.profile.latency
    prompt, answer = (column.astype(np.float64) for column in (data.source.prompt_tokens, data.source.output_tokens))
    chunk = engines[0].token_budget  # a cap per request does not bind who is alone
    whole, rest = np.divmod(prompt, chunk)
    first = whole * _iteration(latency, engines[0], np.float64(chunk)) + latency.c_ns * prompt * prompt / 2
    first += np.where(rest > 0, _iteration(latency, engines[0], rest), 0.0)
    tokens = np.maximum(answer - 1, 0)
    context = latency.e_ns * (prompt + answer / 2)
    one = _iteration(latency, engines[1], np.float64(0)) + latency.d_ns + context
    beside = _iteration(latency, engines[1], np.float64(min(engines[1].token_budget, _PROMPT_CHUNK))) + latency.d_ns + context
    return first, tokens * one, beside


def _iteration(latency: Latency, config: SchedulerConfig, tokens: Floats | np.float64) -> Floats:
    device = np.maximum(latency.floor_ns, latency.a_ns + latency.b_ns * tokens)
    host = latency.h0_ns + latency.h1_ns
    found: Floats = np.maximum(device, host) if config.async_scheduling else device + host
    return found

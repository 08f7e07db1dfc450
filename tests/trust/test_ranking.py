"""Rank agreement and the loads that latencies imply, against their definitions."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.metrics.verdict import Errors, Ranked, judge_errors
from tracekit.trust import kendall_tau, regret_of
from tracekit.trust.accuracy import Latencies, over_time

VALUES = st.lists(st.integers(0, 6), min_size=2, max_size=9)


@given(first=VALUES, data=st.data())
def test_tau_is_what_its_definition_counts(first: list[int], data: st.DataObject) -> None:
    second = data.draw(st.lists(st.integers(0, 6), min_size=len(first), max_size=len(first)))
    alike = apart = ties_a = ties_b = pairs = 0
    for i, j in combinations(range(len(first)), 2):
        a, b = first[i] - first[j], second[i] - second[j]
        pairs, ties_a, ties_b = pairs + 1, ties_a + (a == 0), ties_b + (b == 0)
        alike, apart = alike + (a * b > 0), apart + (a * b < 0)
    scale = math.sqrt((pairs - ties_a) * (pairs - ties_b))
    found = kendall_tau(first, second)
    assert math.isnan(found) if scale == 0 else found == pytest.approx((alike - apart) / scale)
    assert regret_of([v + 1 for v in second], [v + 1 for v in second]) == 0


def test_regret_is_what_the_choice_costs() -> None:
    assert regret_of([3, 1, 2], [10, 12, 30]) == pytest.approx(0.2)
    assert regret_of([1, 1, 2], [10, 12, 30]) == pytest.approx(0.2), "of several predicted alike the worst"


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_loads_over_time_are_the_sums_over_requests(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n = 12
    queue, prefill, decode = draw.uniform(0, 5e9, n), draw.uniform(1e6, 1e9, n), draw.uniform(0, 9e9, n) * (draw.random(n) < 0.8)
    ttft = queue + prefill
    one = Latencies(
        arrival=draw.uniform(0, 2e10, n), prompt=draw.uniform(1, 900, n), output=draw.uniform(1, 99, n),
        queue=queue, ttft=ttft, tpot=decode / 10, e2e=ttft + decode,
    )  # fmt: skip
    found = over_time(one, one)
    assert found is not None
    at = np.linspace(one.arrival.min(), (one.arrival + one.e2e).max(), len(found["seconds"]))
    for name in ("running", "waiting", "kv_tokens"):
        true = []
        for now in at:
            total = 0.0
            for i in range(n):
                start, first, end = (one.arrival[i] + part[i] for part in (one.queue, one.ttft, one.e2e))
                grown = one.output[i] * min(max((now - first) / (end - first), 0), 1) if end > first else 0.0
                within = {
                    "running": start <= now < end,
                    "waiting": one.arrival[i] <= now < start,
                    "kv_tokens": start <= now < end,
                }
                total += within[name] * (one.prompt[i] + grown if name == "kv_tokens" else 1)
            true.append(total)
        assert found[name]["predicted"] == pytest.approx(np.round(true, 1), abs=0.2)


def errors(mean: float, n: int = 100) -> Errors:
    return Errors(n=n, mean=mean, p50=mean, p90=mean)


@pytest.mark.parametrize(
    ("found", "ranked", "serves", "words"),
    [
        ({}, None, None, "unknown: the trace has no observed latencies"),
        ({"e2e": errors(0.5, n=5)}, None, None, "unknown: fewer than 30 requests"),
        ({"tpot": errors(0.01), "e2e": errors(-0.02), "ttft": errors(0.09)}, None, True, "good for milliseconds"),
        ({"tpot": errors(0.01), "ttft": errors(0.3)}, None, None, "not for milliseconds (TTFT mean +30%)"),
        ({"tpot": errors(0.3), "ttft": errors(0.0)}, None, False, "does not serve: TPOT off by +30%"),
        ({"tpot": errors(0.1)}, (0.9, 0.01), True, "good for ranking, not for milliseconds (TPOT mean +10%"),
        ({"tpot": errors(0.1)}, (0.4, 0.01), False, "neither for ranking nor for milliseconds"),
        ({"tpot": errors(0.1)}, (0.9, 0.2), False, "neither for ranking nor for milliseconds"),
        ({}, (0.9, 0.01), True, "rank agreement over 6 configurations: tau 0.90, regret 1.0%; for milliseconds: "),
    ],
)
def test_one_rule_gives_the_words(
    found: dict[str, Errors], ranked: tuple[float, float] | None, serves: bool | None, words: str
) -> None:
    verdict = judge_errors(found, None if ranked is None else Ranked(configs=6, tau=ranked[0], regret=ranked[1]))
    assert verdict.serves is serves
    assert verdict.words.startswith(words)

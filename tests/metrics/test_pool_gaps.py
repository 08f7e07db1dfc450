"""Gaps between tokens of separate pools: with the time to the first token they make up the whole, wherever that came from."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from replay_engine.pd_rules import Pd
from replay_engine.rules import Rules
from tests.engine.traffic import Row, RowSource
from tests.fleet.pools import play
from tests.fleet.test_pd_replay import FLAT, both, link
from tracekit.metrics.fleet import fleet_gaps


@pytest.mark.parametrize("first", ["decode", "prefill"])
def test_gaps_and_first_token_sum_to_e2e(first: Literal["decode", "prefill"]) -> None:
    rules = Rules(pd=Pd(prefill=1, decode=2, first_token_from=first), kv_link=link(concurrent=1))
    pools = play(RowSource([Row(3_000_000, 20 + i, 1 + i % 7) for i in range(40)]), both(), rules, FLAT)
    outcomes = pools.outcomes
    counted = np.ones(len(outcomes), bool)
    found = fleet_gaps(pools.table("iterations"), pools.table("spans"), outcomes, counted, first_elsewhere=first == "prefill")
    total = np.bincount(found.single_request, weights=found.single_ns.astype(float), minlength=40)
    count = np.bincount(found.single_request, minlength=40)
    for request, begin, end in found.runs.tolist():
        total[request] += found.step_ns[begin:end].sum()
        count[request] += end - begin
    assert (count == outcomes["output_tokens"] - 1).all()
    assert (total == outcomes["e2e_ns"] - outcomes["ttft_ns"]).all()

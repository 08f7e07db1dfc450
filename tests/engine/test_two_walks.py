"""The scheduler that costs O(changes) decides exactly what the plain per-sequence walk decides."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings

from replay_engine.parity import replay_case
from tests.oracle.cases import BIASES, Case, cases, random_case
from tests.oracle.compare import difference, oracle_records, pools_for
from tests.oracle.vectors import case_names, read_case

__all__: list[str] = []

SEEDS_PER_BIAS = 40


def check(case: Case) -> bool:
    """Compare all pools that can run the case. False: the plain walk never ends, nothing was compared."""
    expected = oracle_records(case)
    if expected is None:
        return False
    for pool in pools_for(case[0]):
        found = difference(case, replay_case, pool, expected)
        assert found is None, f"pool {pool}, {found}"
    return True


@pytest.mark.parametrize("bias", BIASES)
def test_drawn_cases(bias: str) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=cases(bias))
    def run(case: Case) -> None:
        assume(check(case))

    run()


@pytest.mark.parametrize("bias", BIASES)
def test_seeded_cases(bias: str) -> None:
    compared = sum(check(random_case(seed, bias)) for seed in range(SEEDS_PER_BIAS))
    assert compared > SEEDS_PER_BIAS // 2


@pytest.mark.parametrize("name", [name for name in case_names() if name[:3] in ("v08", "v15", "v16", "v20", "v21")])
def test_vectors_with_block_ids_and_deltas(name: str) -> None:
    knobs, requests, _ = read_case(name)
    assert check((knobs, requests))

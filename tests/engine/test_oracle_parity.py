"""The oracle is trusted because it reproduces every record that vLLM's own scheduler wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replay_engine import parity
from tests.oracle.plain_run import run_case
from tests.oracle.vectors import case_names, read_case

__all__: list[str] = []
VECTORS = str(Path(__file__).parents[1] / "data" / "vllm_parity")


def test_all_vectors_are_there() -> None:
    assert len(case_names()) == 21


@pytest.mark.parametrize("name", case_names())
def test_oracle_reproduces_vector(name: str) -> None:
    knobs, requests, expected = read_case(name)
    got = 0
    for record, wanted in zip(run_case(knobs, requests), expected, strict=True):
        # Compared as text, so that the order of keys counts: it is the order of scheduling.
        assert json.dumps(record) == json.dumps(wanted), f"{name}: step {wanted['step']}"
        got += 1
    assert got == len(expected)


def test_a_pool_that_does_not_exist_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert parity.main([VECTORS, "nonsense"]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("pool", ["auto", "identified", "traced"])
def test_our_scheduler_reproduces_every_record(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parity.main([VECTORS, pool]) == 0
    assert "10155/10155 records identical in 21 cases" in capsys.readouterr().out

"""The oracle is trusted because it reproduces every record that vLLM's own scheduler wrote."""

from __future__ import annotations

import json

import pytest

from tests.oracle.plain_run import run_case
from tests.oracle.vectors import case_names, read_case

__all__: list[str] = []


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

"""The grammar of exact batches: shapes by value, and every way to get it wrong named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay_engine.calibration.cases import default_cases, parse_case, parse_cases
from replay_engine.config import ConfigError


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("decode=32*1@8192", ((1, 8192),) * 32),
        ("prefill=2048", ((2048, 2048),)),
        ("prefill=2*7", ((7, 7), (7, 7))),
        ("chunk=2048@8192c", ((2048, 10240),)),
        ("chunk=2048@8192", ((2048, 8192),)),
        ("mix=512,2*1@100,16@64c", ((512, 512), (1, 100), (1, 100), (16, 80))),
        ("decode=1@1c", ((1, 2),)),
    ],
)
def test_shapes(text: str, shapes: tuple[tuple[int, int], ...]) -> None:
    assert parse_case(text).shapes == shapes


def test_what_a_case_counts() -> None:
    case = parse_case("mix=10@30c,1,3*1@100")
    assert case.decodes == [100, 100, 100]
    assert case.entries == [(10, 40), (1, 1)]
    assert case.tokens == 11
    assert case.qk == 10 * 30 + 50


@pytest.mark.parametrize(
    "text",
    ["", "decode", "decode=", "decode=x", "decode=8", "decode=2*8@16", "prefill=8@16c", "chunk=8", "chunk=1@8192c", "prefill=0",
     "decode=0*1@8", "chunk=9@8", "mix=8,", "flood=8", "decode=1@8cc", "decode=-1@8", "prefill=9999999", "prefill=\u0661"],
)  # fmt: skip
def test_what_cannot_be_a_batch_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="expected") as caught:
        parse_case(text)
    assert "\n" not in str(caught.value)


def test_several_in_one_text_and_the_same_shapes_once() -> None:
    cases = parse_cases(["decode=2*1@8 prefill=4", "mix=1@8,1@8 chunk=4@4c"])
    assert [case.name for case in cases] == ["decode=2*1@8", "prefill=4", "chunk=4@4c"]
    with pytest.raises(ConfigError, match="none given"):
        parse_cases([" "])


@given(st.integers(64, 40000), st.integers(1, 512), st.integers(32, 16384))
def test_default_batches_stay_within_bounds(longest: int, seats: int, budget: int) -> None:
    cases = default_cases(longest=longest, seats=seats, budget=budget)
    assert len(cases) >= 12
    for case in cases:
        assert max(kv for _, kv in case.shapes) <= longest
        assert len(case.decodes) <= seats
        assert case.tokens <= 2 * budget
    assert any(case.tokens and case.decodes for case in cases)
    assert any(case.decodes and not case.tokens for case in cases)

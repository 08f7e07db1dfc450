"""Runs of block ids: lossless, and the shared part of each prompt as a plain count finds it."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.traces.prefix_runs import arrange_runs, cut_runs

PROMPTS = st.lists(st.lists(st.integers(0, 25), unique=True, max_size=10), min_size=1, max_size=8)


def arranged(prompts: list[list[int]], order: list[int] | None = None, scale: int = 1):  # type: ignore[no-untyped-def]
    ids = np.array([value * scale for prompt in prompts for value in prompt], np.uint64)
    runs = cut_runs(ids, np.array([len(prompt) for prompt in prompts], np.int64), 0)
    return arrange_runs(runs, None if order is None else np.array(order), len(prompts))


@settings(max_examples=300, deadline=None)
@given(PROMPTS)
def test_runs_hold_the_ids_and_what_is_shared(prompts: list[list[int]]) -> None:
    runs = arranged(prompts)
    back: list[list[int]] = [[] for _ in prompts]
    for row, pos, first, length in zip(runs.req_idx, runs.pos, runs.first, runs.length, strict=True):
        assert len(back[row]) == pos
        back[row] += range(first, first + length)
    assert back == prompts
    seen = Counter(value for prompt in prompts for value in prompt)
    for prompt, shared in zip(prompts, runs.shared.tolist(), strict=True):
        alone = [value for value in prompt if seen[value] < 2]
        assert shared == (prompt.index(alone[0]) if alone else len(prompt))


@settings(max_examples=100, deadline=None)
@given(PROMPTS, st.randoms())
def test_big_ids_and_another_order_keep_identity(prompts: list[list[int]], random) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(prompts)))
    random.shuffle(order)
    runs = arranged(prompts, order, scale=2**58)
    back: list[list[int]] = [[] for _ in prompts]
    for row, first, length in zip(runs.req_idx, runs.first, runs.length, strict=True):
        back[row] += range(first, first + length)
    rename: dict[int, int] = {}
    for new, old in enumerate(order):
        assert len(back[new]) == len(prompts[old])
        for a, b in zip(prompts[old], back[new], strict=True):
            assert rename.setdefault(a, b) == b
    assert len(set(rename.values())) == len(rename)

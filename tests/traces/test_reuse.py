"""The reuse-distance curve against a plain LRU cache, block by block."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.traces.load import read_trace
from tracekit.traces.prefix_runs import cut_runs
from tracekit.traces.reuse import ReuseCurve, reuse_curve


def curve_of(prompts: list[list[int]], tokens: list[int], block: int) -> ReuseCurve:
    flat = np.array([i for prompt in prompts for i in prompt], np.int64)
    runs = cut_runs(flat, np.array([len(prompt) for prompt in prompts], np.int64), 0)
    return reuse_curve(runs, np.array(tokens, np.int64), block)


def plain(prompts: list[list[int]], tokens: list[int], block: int, size: int) -> list[int]:
    """Tokens each request finds in an LRU cache of ``size`` blocks."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = []
    for prompt, length in zip(prompts, tokens, strict=True):
        leading = 0
        while leading < len(prompt) and prompt[leading] in cache:
            leading += 1
        hits.append(min(leading * block, length))
        for each in reversed(prompt):
            cache.pop(each, None)
            cache[each] = None
        while len(cache) > size:
            cache.popitem(last=False)
    return hits


@st.composite
def chained(draw: st.DrawFn) -> list[list[int]]:
    """Prompts whose ids are chained: a child of a random earlier prompt's prefix, with new ids after it."""
    prompts: list[list[int]] = [[]]
    fresh = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 30))):
        parent = prompts[draw(st.integers(0, len(prompts) - 1))]
        kept = parent[: draw(st.integers(0, len(parent)))]
        new = draw(st.integers(0, 4))
        prompts.append(kept + list(range(fresh, fresh + new)))
        fresh += new + draw(st.integers(0, 1))
    return [prompt for prompt in prompts if prompt] or [[0]]


@settings(max_examples=150, deadline=None)
@given(prompts=chained(), size=st.integers(0, 40))
def test_every_size_as_a_plain_cache(prompts: list[list[int]], size: int) -> None:
    tokens = [16 * len(prompt) - 3 for prompt in prompts]
    curve = curve_of(prompts, tokens, 16)
    assert curve.hit_tokens(size).tolist() == plain(prompts, tokens, 16, size)
    assert curve.hit_tokens(None).tolist() == plain(prompts, tokens, 16, 10**9)
    assert curve.references == sum(map(len, prompts))
    assert curve.distinct == len({i for prompt in prompts for i in prompt})
    assert curve.share(curve.blocks_for(1.0)) == curve.share(None)
    if curve.blocks_for(1.0):
        assert curve.share(curve.blocks_for(1.0) - 1) < curve.share(None)


def test_what_follows_a_miss_is_no_hit() -> None:
    curve = curve_of([[0, 1, 2], [7, 1, 2], [0, 1, 9]], [48, 48, 48], 16)
    assert curve.hit_tokens(None).tolist() == [0, 0, 32]


def test_an_id_twice_in_a_prompt_counts_where_it_stands_first() -> None:
    curve = curve_of([[0, 1, 0], [0, 1]], [48, 32], 16)
    assert curve.hit_tokens(None).tolist() == [0, 32]


def test_mooncake(shared: Callable[[str], Path]) -> None:
    trace = read_trace(shared("mooncake_conversation_trace.jsonl.gz"))
    assert trace.runs is not None
    columns = tuple(trace.runs[name].to_numpy().astype(np.int64) for name in ("req_idx", "pos_start", "first_id", "len"))
    began = time.process_time()
    curve = reuse_curve(columns, trace.arrivals["input_tokens"].to_numpy().astype(np.int64), 512)
    points = curve.points()
    assert time.process_time() - began < 5
    assert curve.references == 288_500
    assert curve.reseen / curve.references == pytest.approx(0.366, abs=0.0005)
    assert curve.share(None) == pytest.approx(0.374, abs=0.0005)
    assert curve.share(None, last_half=True) == pytest.approx(0.398, abs=0.0005)
    shares = [share for _, share, _ in points]
    assert shares == sorted(shares)
    assert points[-1][1] == curve.share(None)

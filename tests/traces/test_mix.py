"""Another mix of classes and tenants: how many of each, when they come, what their copies share, and what must hold of any."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.errors import UsageError
from tracekit.traces.load import read_trace
from tracekit.traces.mix import check_mix, mix_line, mixed, parse_mix, shares_of
from tracekit.traces.slicing import Slice
from tracekit.traces.source import TraceSource

CLASSES = "abc"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> TraceSource:
    """180 requests, a third of each class, half of each tenant: sessions of two turns in class a, single ones else; a system
    prompt of two blocks that all have, two of the session's own, and one of the request's."""
    rng, rows, at = np.random.default_rng(3), [], 0.0
    for i in range(180):
        at += float(rng.exponential(0.5))
        own = i // 6 if i % 3 == 0 else 1000 + i  # every second request of class a is the next turn
        rows.append({"arrival_s": round(at, 6), "input_tokens": 70 + i, "output_tokens": 4 + i % 3, "class": CLASSES[i % 3],
                     "tenant": "xy"[i // 90], "block_tokens": 16, "hash_ids": [0, 1, 10**4 + own, 2 * 10**4 + own, 10**6 + i],
                     **({"session_id": f"s{own}", "turn": i // 3 % 2, "obs_e2e_s": 0.2} if i % 3 == 0 else {})})  # fmt: skip
    path = tmp_path_factory.mktemp("mix") / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return TraceSource.from_loaded(read_trace(path), Slice(rate_scale=2.0))


def names(source: TraceSource) -> list[str]:
    assert source.class_ is not None
    return [source.class_names[code] for code in source.class_]


def blocks(source: TraceSource, at: int) -> list[int]:
    assert source.run_offsets is not None
    low, high = source.run_offsets[at], source.run_offsets[at + 1]
    return [int(first) + i for first, length in zip(source.run_first[low:high], source.run_len[low:high], strict=True)
            for i in range(int(length))]  # fmt: skip


def test_twice_of_one_half_of_another_and_the_third_as_it_was(source: TraceSource) -> None:
    found = mixed(source, "a:2,b:0.5", seed=7)
    assert {name: names(found).count(name) for name in CLASSES} == {"a": 120, "b": 30, "c": 60}
    kept = [(int(r), int(t)) for r, t, name in zip(source.req_idx, source.start_ns, names(source), strict=True) if name != "b"]
    there = list(zip(found.req_idx.tolist(), found.start_ns.tolist(), strict=True))
    assert set(kept) <= set(there)  # who is not fewer comes when it came
    starts = sorted(t for r, t in kept if r % 6 == 0)
    extra = sorted(set(there) - set(kept))
    again = sorted(t for r, t in extra if r % 6 == 0)
    halfway = [(a + b) // 2 for a, b in zip(starts, starts[1:], strict=False)]
    assert len(again) == 30 and all(min(abs(t - half) for half in halfway) <= 1 for t in again[:-1])
    assert mix_line(source, found, "a:2,b:0.5") == (
        "mix: a 33.3 % -> 57.1 %, b 33.3 % -> 14.3 % of the requests, 1.17 times as many in all"
    )
    assert shares_of(found, {"x": 1.0, "y": 1.0}) == pytest.approx([0.5, 0.5], abs=0.06)


def test_a_copy_shares_what_many_share_and_has_the_rest_for_itself(source: TraceSource) -> None:
    found = mixed(source, "b:2,a:2")
    for row in (1, 3, 6, 9):  # of class b; two turns of a session of class a
        mine = [at for at in range(found.total) if found.req_idx[at] == row]
        one, other = (blocks(found, at) for at in mine)
        assert one[:2] == other[:2] and not set(one[2:]) & set(other[2:]) and len(one) == len(other) == 5
    assert found.parent is not None
    for at in np.flatnonzero(found.parent >= 0).tolist():  # a turn holds what its own session's first turn holds
        assert blocks(found, at)[:4] == blocks(found, int(found.parent[at]))[:4]


@given(st.tuples(*(st.sampled_from([0.0, 0.3, 0.5, 1.0, 1.5, 2.0, 3.7]) for _ in CLASSES)), st.integers(0, 9))
def test_any_mix(source: TraceSource, factors: tuple[float, ...], seed: int) -> None:
    text = ",".join(f"{name}:{factor}" for name, factor in zip(CLASSES, factors, strict=True))
    if not any(factors):
        with pytest.raises(UsageError, match="leaves no request"):
            mixed(source, text, seed)
        return
    found = mixed(source, text, seed)
    sizes = {"a": (30, 2), "b": (60, 1), "c": (60, 1)}
    for name, factor in zip(CLASSES, factors, strict=True):
        starts, turns = sizes[name]
        whole = int(factor)
        assert names(found).count(name) == turns * (whole * starts + round((factor - whole) * starts))
    assert (np.diff(found.start_ns) >= 0).all() and found.start_ns[-1] <= source.start_ns[-1]
    assert found.parent is not None and (found.parent < np.arange(found.total)).all()
    child = np.flatnonzero(found.parent >= 0)
    assert (found.req_idx[child] == found.req_idx[found.parent[child]] + 3).all()
    assert (found.start_ns[child] == found.start_ns[found.parent[child]]).all()
    assert all(len(getattr(found, each)) == found.total for each in ("prompt_tokens", "counted", "recorded_ns", "tenant"))
    if factors == (1.0, 1.0, 1.0):
        assert (found.req_idx == source.req_idx).all() and (found.arrival_ns == source.arrival_ns).all()


@pytest.mark.parametrize(
    ("text", "says"),
    [("a", "cannot be read"), ("a:x", "cannot be read"), ("a:-1", "from 0 to 100"), ("a:1e9", "from 0 to 100"),
     ("a:nan", "cannot be read"), (":2", "cannot be read"), ("", "cannot be read"), ("a:1,a:2", "named twice")],
)  # fmt: skip
def test_a_mix_that_cannot_be_read_says_why(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_mix(text)


def test_a_name_that_nobody_has_is_named(source: TraceSource) -> None:
    check_mix("a:2,x:0.5", [source])
    with pytest.raises(UsageError, match="z is no class and no tenant of these requests; expected one of a, b, c, x, y"):
        check_mix("z:2", [source])


def test_a_name_may_have_a_colon() -> None:
    assert parse_mix("team:blue:1.5") == {"team:blue": 1.5}

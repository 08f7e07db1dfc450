"""What a gate rests on, by value: draws of traffic, noise of iterations, limits and how they are judged."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay_engine.noise import IterationNoise, stated_error
from replay_engine.profile import Latency, load_profile
from replay_engine.simulator import SimExecutor
from tracekit.gate.judging import Judged, judge_absolute, judge_change, judge_finding
from tracekit.gate.limits import parse_gate, parse_gates
from tracekit.gate.metrics import Figure
from tracekit.gate.resampling import redrawn, stretches_of
from tracekit.traces.load import read_trace
from tracekit.traces.session_tree import roots_of
from tracekit.traces.slicing import Slice
from tracekit.traces.source import TraceSource

SECOND = 1_000_000_000


def session_rows(sessions: int) -> list[dict[str, object]]:
    """Sessions of three turns, one every second, that share a system prompt and grow by two blocks a turn."""
    rows: list[dict[str, object]] = []
    for session in range(sessions):
        for turn in range(3):
            own = 1000 + 100 * session
            rows.append({
                "request_id": f"{session}-{turn}", "session_id": f"s{session}", "turn": turn,
                "tenant": "a" if session % 2 else "b", "arrival_ns": session * SECOND + turn * 100_000_000,
                "input_tokens": 64 + 32 * (turn + 1),
                "output_tokens": 8 + session, "block_tokens": 16, "prefix_runs": [[0, 0, 4], [4, own, 2 * (turn + 1)]],
                "parent_request_id": f"{session}-{turn - 1}" if turn else None,
            })  # fmt: skip
    return rows


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> TraceSource:
    path = tmp_path_factory.mktemp("sessions") / "sessions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in session_rows(40)))
    return TraceSource.from_loaded(read_trace([str(path)]), Slice(window_ns=(10 * SECOND, 40 * SECOND), lead_in_ns=5 * SECOND))


def test_the_fixture_has_what_is_to_be_drawn(source: TraceSource) -> None:
    assert source.parent is not None
    assert source.run_offsets is not None
    assert (int(source.counted.sum()), source.total) == (90, 105)
    cut = stretches_of(source)
    assert cut is not None
    assert (cut[1], cut[2]) == (5 * SECOND, 30 * SECOND // 7)


@given(seed=st.integers(0, 2**32))
def test_a_draw_is_traffic_like_the_slice(source: TraceSource, seed: int) -> None:
    found = redrawn(source, seed)
    assert source.parent is not None and found.parent is not None
    lead = int((~source.counted).sum())
    assert (~found.counted).sum() == lead
    assert np.array_equal(found.arrival_ns[:lead], source.arrival_ns[:lead])
    assert (np.diff(found.start_ns) >= 0).all(), "requests come in the order of their roots' arrivals"
    assert found.start_ns.max() < source.window_ns + 5 * SECOND
    # sessions whole: each tree has three turns with the tenant, lengths and distances of the session it was
    root = roots_of(found.parent)[0]
    assert (np.bincount(root)[np.unique(root)] == 3).all()
    assert (found.parent < np.arange(found.total)).all()
    assert len(np.unique(found.output_tokens[lead:])) <= 30
    for name in ("tenant", "output_tokens"):
        values = getattr(found, name)
        assert (values == values[root]).all()
    assert found.request_id is not None and source.request_id is not None
    same = [source.request_id.index(name) for name in found.request_id]
    for name in ("prompt_tokens", "output_tokens", "think_ns", "counted", "req_idx"):
        assert np.array_equal(getattr(found, name), getattr(source, name)[same]), name


def prefix_ids(source: TraceSource) -> list[tuple[int, ...]]:
    """Each request's block ids, in order."""
    assert source.run_offsets is not None
    found = []
    for low, high in zip(source.run_offsets, source.run_offsets[1:], strict=False):
        runs = zip(source.run_pos[low:high].tolist(), source.run_first[low:high].tolist(), source.run_len[low:high].tolist(),
                   strict=True)  # fmt: skip
        blocks = [(at + i, first + i) for at, first, length in runs for i in range(length)]
        assert [at for at, _ in blocks] == list(range(len(blocks)))
        found.append(tuple(block for _, block in blocks))
    return found


@given(seed=st.integers(0, 2**32))
def test_a_copy_shares_what_its_stretch_shared_and_not_with_its_twin(source: TraceSource, seed: int) -> None:
    found = redrawn(source, seed)
    ids = prefix_ids(found)
    assert found.parent is not None and found.request_id is not None
    assert len({each[:4] for each in ids}) == 1, "the system prompt is everybody's"
    root = roots_of(found.parent)[0]
    owners: dict[int, set[int]] = {}
    for at, blocks in enumerate(ids):
        assert len(blocks) == found.prompt_tokens[at] // 16
        for block in blocks[4:]:
            owners.setdefault(block, set()).add(int(root[at]))
        parent = found.parent[at]
        if parent >= 0:
            assert blocks[: len(ids[parent])] == ids[parent], "a turn begins with the turn before it"
    assert all(len(each) == 1 for each in owners.values()), "two copies of a session share its private blocks"


def test_draws_differ_and_are_the_same_again(source: TraceSource) -> None:
    draws = [redrawn(source, seed).request_id for seed in range(8)]
    assert len({tuple(each or ()) for each in draws}) == 8
    assert draws[3] == redrawn(source, 3).request_id


def test_too_few_starts_are_not_cut(source: TraceSource) -> None:
    few = copy.copy(source)
    few.counted = source.counted & (np.arange(source.total) < 30)
    assert stretches_of(few) is None
    assert redrawn(few, 1).request_id == few.request_id


def durations(sigma: float, seed: int = 1, replica: int = 0) -> np.ndarray:
    latency = Latency(floor_ns=1e6, b_ns=1e3, e_ns=10.0, h0_ns=1e5)
    executor = IterationNoise(prefill=2 * sigma, decode=sigma, seed=seed).executor(latency, asynchronous=False, replica=replica)
    shapes = [(0, 0, 8, 1000, 8, 0), (512, 512 * 256, 8, 1000, 9, 1)] * 5000
    plain = SimExecutor(latency, asynchronous=False)
    return np.array([executor.predict(*shape)[0] / plain.predict(*shape)[0] for shape in shapes])


def test_noise_has_the_size_that_is_stated() -> None:
    sigma_prefill, sigma_decode, said = stated_error(load_profile("h100"))
    assert said == "the profile's prefill_error_mape, decode_error_mape"
    ratio = durations(sigma_decode)
    assert ratio.mean() == pytest.approx(1, abs=0.002)
    assert np.abs(ratio[::2] - 1).mean() == pytest.approx(0.022, rel=0.05), "the profile's own decode error"
    assert np.abs(ratio[1::2] - 1).mean() == pytest.approx(2 * 0.022, rel=0.05)
    assert sigma_prefill > sigma_decode
    assert np.corrcoef(ratio[:-2:2], ratio[2::2])[0, 1] == pytest.approx(0, abs=0.05)


def test_noise_is_drawn_by_seed_and_replica() -> None:
    assert np.array_equal(durations(0.03), durations(0.03))
    assert not np.array_equal(durations(0.03), durations(0.03, seed=2))
    assert not np.array_equal(durations(0.03), durations(0.03, replica=1))
    assert (durations(0.0) == 1).all()


def figures(*values: float | None, n: int | None = 5000) -> list[Figure]:
    return [Figure(value=value, n=n, reason=None if value is not None else "not there") for value in values]


def change(limit: str, base: list[float], here: list[float], n: int = 5000) -> Judged:
    pairs = list(zip(figures(*base, n=n), figures(*here, n=n), strict=True))
    return judge_change(parse_gate(limit), Figure(value=here[0], n=n), Figure(value=base[0], n=n), pairs)


@pytest.mark.parametrize(
    ("limit", "here", "status"),
    [
        ("tpot_p99<=+5%", [100.0, 100.0, 100.0], "passed"),
        ("tpot_p99<=+5%", [104.0, 103.9, 104.1], "passed"),
        ("tpot_p99<=+5%", [110.0, 111.0, 109.0], "failed"),
        ("tpot_p99<=+5%", [110.0, 95.0, 115.0], "inconclusive"),
        ("tpot_p99<=+5%", [102.0, 120.0, 84.0], "inconclusive"),
        ("tpot_p99<=-5%", [100.0, 100.0, 100.0], "inconclusive"),
        ("tpot_p99<=-5%", [90.0, 90.5, 89.5], "passed"),
        ("tpot_p99>=-5%", [90.0, 90.5, 89.5], "failed"),
        ("throughput>=-2%", [120.0, 121.0, 119.0], "passed"),
        ("tpot_p99<=+20ns", [110.0, 111.0, 109.0], "passed"),
        ("tpot_p99<=+5ns", [110.0, 111.0, 109.0], "failed"),
    ],
)
def test_a_change_is_judged_by_its_interval(limit: str, here: list[float], status: str) -> None:
    assert change(limit, [100.0, 100.0, 100.0], here).status == status


def test_a_change_from_nothing_is_judged_as_a_difference() -> None:
    assert change("preemptions<=+10%", [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]).status == "passed"
    assert change("preemptions<=+10%", [0.0, 0.0, 0.0], [50.0, 52.0, 48.0]).status == "failed"


@pytest.mark.parametrize(
    ("limit", "value", "noisy", "status"),
    [
        ("ttft_p99<=2s", 1.9e9, [1.9e9, 1.91e9, 1.89e9], "passed"),
        ("ttft_p99<=2s", 2.1e9, [2.1e9, 2.11e9, 2.09e9], "failed"),
        ("ttft_p99<=2s", 2.1e9, [2.1e9, 2.5e9, 1.7e9], "inconclusive"),
        ("ttft_p99<=2s", 2.1e9, [], "failed"),
        ("ttft_p99<2s", 2.0e9, [], "failed"),
        ("attainment>=0.95", 0.96, [0.96, 0.96, 0.96], "passed"),
        ("attainment>=95%", 0.9, [0.9, 0.91, 0.89], "failed"),
        ("good_request_fraction>=0.95", None, [0.9], "failed"),
    ],
)
def test_an_absolute_limit_is_of_the_traffic_as_it_is(limit: str, value: float | None, noisy: list[float], status: str) -> None:
    like = figures(0.0, 1e12)
    found = judge_absolute(parse_gate(limit), figures(value)[0], figures(*noisy), like)
    assert found.status == status


@given(base=st.floats(1.0, 1e12), factor=st.floats(1.06, 100.0), spread=st.floats(0.0, 0.001))
def test_a_clear_regression_is_always_red_and_its_mirror_never(base: float, factor: float, spread: float) -> None:
    wobble = [1 - spread, 1.0, 1 + spread]
    before, after = [base] * 3, [base * factor * each for each in wobble]
    assert change("e2e_p50<=+5%", before, after).status == "failed"
    assert change("e2e_p50<=+5%", after, before).status == "passed"


def test_a_finding_counts_where_the_traffic_has_it() -> None:
    gate = parse_gate("no:overload")
    assert judge_finding(gate, ["OVERLOAD"], [["OVERLOAD"], [], ["OVERLOAD"]], {"OVERLOAD": 0.7}).status == "failed"
    assert judge_finding(gate, ["OVERLOAD"], [[], [], ["OVERLOAD"]], {"OVERLOAD": 0.7}).status == "inconclusive"
    assert judge_finding(gate, ["BURST"], [["OVERLOAD"]] * 3, {"BURST": 0.7}).status == "passed"


def test_what_a_baseline_implies_can_be_said_otherwise() -> None:
    texts = ["tokens<=+20%", "tpot_p50<=+5%"]
    assert [gate.text for gate in parse_gates(texts, baseline=True)] == [*texts, "requests<=+1%"]
    assert parse_gates(["tokens>=5"], baseline=False)[0].two_sided is False


def test_the_shipped_files_say_what_they_are(tmp_path: Path) -> None:
    """A profile that states no error is held to an assumed one, and says so."""
    from dataclasses import replace

    bare = replace(load_profile("h100"), fit={})
    sigma, _, said = stated_error(bare)
    assert said == "the profile states no error: 5% assumed"
    assert sigma == pytest.approx(0.05 * np.sqrt(np.pi / 2))
    fitted = replace(bare, fit={"median_error": 0.1, "held_out_median_error": 0.02})
    assert stated_error(fitted)[0] == pytest.approx(0.02 / 0.67449, rel=1e-4)

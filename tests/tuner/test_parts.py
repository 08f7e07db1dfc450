"""The parts of a study by value: what is next, what is kept, what is bisected, which windows, which interval."""

from __future__ import annotations

import json
import math
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState, create_trial

from replay_engine.policy import build_policy
from replay_engine.profile import load_profile
from tracekit.cli.main import main
from tracekit.errors import UsageError
from tracekit.metrics import SloTable, parse_slo
from tracekit.store import Store
from tracekit.traces.slicing import WHOLE
from tracekit.traces.source import TraceSource
from tuner import cells, surrogate
from tuner.cells import CellFile
from tuner.journal import Journal
from tuner.objective import ATTAINED, attainment, bisect_rate, fewest, goodput, parse_objectives, parts_met, value_of
from tuner.proposing import FULL, PARTS, PointSampler, distributions_of, estimated_value, first_moves
from tuner.space import BUDGET, CHUNK, SEQS, Knob, Space
from tuner.surrogate import Product, Surrogate, encode, expected_improvement
from tuner.windows import StudyWindow, WindowSources, split_windows

optuna.logging.set_verbosity(optuna.logging.WARNING)
PLANE = Space(knobs=(Knob(name="a", levels=tuple(range(20))), Knob(name="b", levels=tuple(range(20)))))


def hill(point: dict[str, Any]) -> float:
    """A ridge with a cliff, best at (14, 6)."""
    a, b = point["a"] / 19, point["b"] / 19
    return 10 * math.exp(-3 * ((a - 14 / 19) ** 2 + (b - 6 / 19) ** 2)) * (0.5 if a > 0.8 else 1.0)


def trials_to(share: float, seed: int, propose: Any) -> int:
    """How many trials until ``share`` of the best."""
    trials: list[Any] = []
    for number in range(400):
        point = propose(trials, np.random.default_rng([seed, number]))
        value = hill(point)
        trials.append(create_trial(params=point, distributions=distributions_of(PLANE), value=value))
        trials[-1].number = number
        if value >= share * 10:
            return number + 1
    raise AssertionError("never")


def test_the_search_needs_less_than_half_of_what_random_search_needs() -> None:
    points = list(PLANE.points())

    def random(trials: list[Any], rng: np.random.Generator) -> dict[str, Any]:
        tried = [t.params for t in trials]
        free = [p for p in points if p not in tried]
        return free[int(rng.integers(len(free)))]

    ours = statistics.median(trials_to(0.98, seed, PointSampler(PLANE, seed).propose) for seed in range(7))
    other = statistics.median(trials_to(0.98, seed, random) for seed in range(7))
    assert ours <= other / 2, (ours, other)


def test_no_point_is_proposed_twice_and_then_there_is_none() -> None:
    small = Space(knobs=(Knob(name="a", levels=(1, 2, 3)), Knob(name="b", levels=("x", "y"), ordered=False)))
    sampler, trials = PointSampler(small, 3), []
    for number in range(6):
        point = sampler.propose(trials, np.random.default_rng(number))
        state = TrialState.COMPLETE if number % 2 else TrialState.RUNNING
        trials.append(create_trial(params=point, distributions=distributions_of(small), state=state,
                                   value=float(number) if number % 2 else None))  # fmt: skip
        trials[-1].number = number
    assert len({tuple(t.params.items()) for t in trials}) == 6
    with pytest.raises(LookupError, match="was tried"):
        sampler.propose(trials, np.random.default_rng(9))


def test_a_proposal_depends_on_the_trials_alone() -> None:
    """Not on what was proposed before in this process: a search that was killed goes on as it would have."""
    sampler, trials = PointSampler(PLANE, 5), list[Any]()
    for number in range(25):
        point = sampler.propose(trials, np.random.default_rng([5, number]))
        assert PointSampler(PLANE, 5).propose(trials, np.random.default_rng([5, number])) == point
        parts = {PARTS: {ATTAINED: hill(point) / 10, "tpot": 1 - point["a"] / 19, "ttft": point["b"] / 19}}
        trials.append(create_trial(params=point, distributions=distributions_of(PLANE), value=hill(point), user_attrs=parts))
        trials[-1].number = number


def test_the_first_moves_lower_what_shares_an_iteration() -> None:
    budgets, seqs, caps = (256, 512, 1024, 2048, 8192), (64, 256, 1024), (128, 256, 512, 1024, 0)
    space = Space(knobs=(Knob(name=BUDGET, levels=budgets), Knob(name=SEQS, levels=seqs), Knob(name=CHUNK, levels=caps)))
    moves = first_moves(space, {BUDGET: 8192, SEQS: 1024, CHUNK: 0})
    assert [tuple(point.values()) for point in moves] == [(512, 256, 0), (512, 256, 256)]
    assert [tuple(p.values()) for p in first_moves(space, {BUDGET: 512, SEQS: 64, CHUNK: 0})] == [(512, 64, 256)]
    assert first_moves(PLANE, {"a": 3, "b": 3}) == []


MOVES = Space(knobs=(
    Knob(name=BUDGET, levels=(256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)),
    Knob(name=SEQS, levels=(64, 256, 1024)), Knob(name=CHUNK, levels=(64, 128, 256, 512, 1024, 0)),
))  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(part=st.sampled_from(["tpot", "itl", "stall", "e2e"]), gaps=st.floats(0, 1), first=st.floats(0, 1),
       number=st.integers(0, 9), limited=st.booleans())  # fmt: skip
def test_the_next_moves_go_where_the_first_one_points(part: str, gaps: float, first: float, number: int, limited: bool) -> None:
    """Lower, where with a lower budget it is still gaps between tokens that miss their limit more often than first tokens."""
    def trial(number: int, point: dict[str, Any], parts: dict[str, float]) -> Any:
        found = create_trial(params=point, distributions=distributions_of(MOVES), value=1.0, user_attrs={PARTS: parts})
        found.number = number
        return found

    current = {BUDGET: 8192, SEQS: 1024, CHUNK: 0}
    shares = {ATTAINED: 0.1, "not_finished": 1.0, part: gaps, **({"ttft": first} if limited else {})}
    trials = [trial(0, current, {**shares, part: 0.0}), trial(1 + number, {BUDGET: 512, SEQS: 256, CHUNK: 0}, shares)]
    found = []
    for at in range(3):
        point = PointSampler(MOVES, 3).propose(trials, np.random.default_rng(at))
        found.append((point[BUDGET], point[CHUNK]))
        trials.append(trial(20 + at, point, shares))
    further = part != "e2e" and gaps < (first if limited else 1.0)
    assert (found[:2] == [(384, 64), (384, 128)]) if further else (found[0] == (512, 128)), found


def test_a_first_move_that_nobody_has_told_of_points_nowhere() -> None:
    """It is under way, or came to what was known: the next one goes where it goes without it."""
    current = {BUDGET: 8192, SEQS: 1024, CHUNK: 0}
    moves = first_moves(MOVES, current)
    running = create_trial(state=TrialState.RUNNING, params=moves[0], distributions=distributions_of(MOVES))
    assert first_moves(MOVES, current, [running]) == moves == first_moves(MOVES, current, [])


def test_what_is_proved_to_come_to_the_same_is_not_proposed() -> None:
    first = create_trial(params={"a": 0, "b": 0}, distributions=distributions_of(PLANE), value=1.0)
    sampler = PointSampler(PLANE, 1, known=lambda trials, point: point["a"] != 7)
    trials = [first]
    for number in range(1, 21):
        point = sampler.propose(trials, np.random.default_rng(number))
        assert point["a"] == 7
        trials.append(create_trial(params=point, distributions=distributions_of(PLANE), value=hill(point)))
        trials[-1].number = number
    with pytest.raises(LookupError):
        sampler.propose(trials, np.random.default_rng(99))


def test_the_same_seed_and_trials_propose_the_same_point() -> None:
    trials = []
    for number, (a, b) in enumerate([(0, 0), (19, 19), (10, 5), (5, 15), (3, 3), (12, 12), (15, 6)]):
        params = {"a": a, "b": b}
        trials.append(create_trial(params=params, distributions=distributions_of(PLANE), value=hill(params)))
        trials[-1].number = number
    one, two = (PointSampler(PLANE, 1).propose(trials, np.random.default_rng(4)) for _ in range(2))
    assert one == two


def test_a_pruned_trial_counts_as_what_it_would_have_come_to() -> None:
    pruned = create_trial(state=TrialState.PRUNED, params={"a": 1, "b": 1}, distributions=distributions_of(PLANE),
                          user_attrs={FULL: 3.5}, intermediate_values={0: 3.0})  # fmt: skip
    assert estimated_value(pruned) == 3.5
    assert estimated_value(create_trial(value=2.0)) == 2.0
    assert estimated_value(create_trial(state=TrialState.FAIL)) is None


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(3, 25))
def test_the_process_goes_through_what_it_has_seen(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    cells = rng.choice(400, n, replace=False)
    points = [{"a": int(c) // 20, "b": int(c) % 20} for c in cells]
    x = encode(PLANE, points)
    y = np.array([hill(p) for p in points])
    mean, spread = Surrogate.fit(x, y, rng).predict(x)
    assert np.abs(mean - y).max() <= 0.35 * max(y.std(), 1e-9) + 1e-6
    far = Surrogate.fit(x, y, rng).predict(encode(PLANE, list(PLANE.points())))
    assert (far[1] > 0).all() and (spread <= far[1].max() + 1e-9).all()


def early_and_steady(point: dict[str, Any]) -> list[float]:
    """Attainment, then its two parts: one rises with ``a``, the other falls with it, both are best at some ``b``."""
    early = 1 / (1 + math.exp(-(point["a"] - 7) * 1.1))
    steady = math.exp(-(((point["b"] - 13) / 9) ** 2)) / (1 + math.exp((point["a"] - 12) * 1.1))
    return [early * steady, early, steady]


def test_parts_of_the_slo_are_learnt_one_by_one() -> None:
    """Told by which part requests are missed, a search needs fewer trials than one that knows their product only."""
    best = max(early_and_steady(point)[0] for point in PLANE.points())

    def needed(seed: int, told: bool) -> int:
        sampler, trials = PointSampler(PLANE, seed), []
        for number in range(400):
            point = sampler.propose(trials, np.random.default_rng([seed, number]))
            parts = early_and_steady(point)
            told_of = {PARTS: dict(zip((ATTAINED, "tpot", "ttft"), parts, strict=True))} if told else {}
            trials.append(create_trial(params=point, distributions=distributions_of(PLANE), value=10 * parts[0],
                                       user_attrs=told_of))  # fmt: skip
            trials[-1].number = number
            if parts[0] >= 0.99 * best:
                return number + 1
        raise AssertionError("never")

    told, untold = (statistics.median(needed(seed, each) for seed in range(7)) for each in (True, False))
    assert told < untold, (told, untold)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(3, 20), level=st.booleans())
def test_a_product_goes_through_what_it_has_seen_and_is_less_sure_elsewhere(seed: int, n: int, level: bool) -> None:
    rng = np.random.default_rng(seed)
    points = [{"a": int(c) // 20, "b": int(c) % 20} for c in rng.choice(400, n, replace=False)]
    parts = np.array([early_and_steady(point) for point in points])
    if level:
        parts[:, 2], parts[:, 0] = 0.5, parts[:, 1] * 0.5  # a part that is the same everywhere
    x = encode(PLANE, points)
    model = Product(x, parts[:, 1:], parts[:, 0], rng)
    mean, spread = model.predict(x)
    assert np.abs(mean - parts[:, 0]).max() <= 0.1
    everywhere = encode(PLANE, list(PLANE.points()))
    far = model.predict(everywhere)
    assert (far[1] > 0).all() and spread.max() <= far[1].max() + 1e-9
    model.expect(everywhere[:3])
    assert (model.predict(everywhere[:3])[1] <= far[1][:3] + 1e-6).all(), "what is being tried is no news"


def test_parts_by_value() -> None:
    one = {"met": 40, "n": 50, "missed": {"ttft": 10, "tpot": 0, "not_finished": 2}}
    two = {"met": 30, "n": 50, "missed": {"ttft": 0, "tpot": 20, "not_finished": 0}}
    assert parts_met([one, two]) == pytest.approx({ATTAINED: 0.7, "not_finished": 0.98, "tpot": 0.8, "ttft": 0.9})
    assert parts_met([{"met": 0, "n": 0, "missed": {}}]) == {ATTAINED: 0.0}


def test_a_cap_stands_where_it_takes_effect() -> None:
    """No cap, and any cap that the budget is below, are the budget; the more may be computed at once, the larger."""
    budgets = Knob(name=BUDGET, levels=(256, 1024, 4096, 16384))
    space = Space(knobs=(budgets, Knob(name=CHUNK, levels=(64, 256, 1024, 4096, 0))))
    seen = {}
    for point in ({BUDGET: budget, CHUNK: cap} for budget in budgets.levels for cap in (64, 256, 1024, 4096, 0)):
        seen.setdefault(min(point[CHUNK] or 10**9, point[BUDGET]), set()).add(float(encode(space, [point])[0, 1]))
    assert all(len(places) == 1 for places in seen.values())
    assert [min(seen[largest]) for largest in sorted(seen)] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    alone = Space(knobs=(Knob(name=CHUNK, levels=(64, 256, 0)),))
    assert encode(alone, [{CHUNK: 64}, {CHUNK: 256}, {CHUNK: 0}])[:, 0].tolist() == [0, 0.5, 1]


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 40), st.integers(1, 4), st.integers(0, 10**6))
def test_a_process_is_the_textbooks(n: int, d: int, seed: int) -> None:
    """Mean, spread and likelihood against the formulas written out with a dense inverse, points of many pieces too."""
    rng = np.random.default_rng(seed)
    x, y, points = rng.random((n, d)), rng.normal(size=n), rng.random((400, d))
    parameters = np.append(rng.normal(math.log(0.5), 0.5, d), math.log(1e-3))

    def kernel(a: Any, b: Any) -> Any:
        far = np.sqrt((((a[:, None] - b[None]) / np.exp(parameters[:-1])) ** 2).sum(-1))
        return (1 + math.sqrt(5) * far + 5 * far**2 / 3) * np.exp(-math.sqrt(5) * far)

    matrix = kernel(x, x) + 1.00001e-3 * np.eye(n)
    z, cross, inverse = (y - y.mean()) / y.std(), kernel(points, x), np.linalg.inv(matrix)
    mean, spread = Surrogate.given(x, y, parameters).predict(points)
    assert mean == pytest.approx(y.mean() + y.std() * cross @ inverse @ z, abs=1e-6)
    variance = 1 - np.einsum("ij,jk,ik->i", cross, inverse, cross)
    assert (spread / y.std()) ** 2 == pytest.approx(np.maximum(variance, 1e-12), abs=1e-6)
    below = np.tril_indices(n)
    squares = (x.T[:, below[0]] - x.T[:, below[1]]) ** 2
    (found,) = surrogate._likelihoods(squares, below, z, parameters[None])
    prior = (((parameters[:-1] - math.log(0.5)) / 1.2) ** 2).sum() + ((math.log(1e-3) - math.log(1e-5)) / 1.5) ** 2
    assert found == pytest.approx(-0.5 * z @ inverse @ z - 0.5 * np.linalg.slogdet(matrix)[1] - 0.5 * prior, abs=1e-5)


def test_expected_improvement_by_value() -> None:
    """At a standard deviation of 1: phi(0) where the mean is the best; the gap itself where it is far above."""
    found = expected_improvement(np.array([1.0, 31.0, -30.0]), np.array([1.0, 1.0, 1.0]), 1.0)
    assert found == pytest.approx([1 / math.sqrt(2 * math.pi), 30.0, 0.0], abs=1e-6)


@given(knee=st.floats(0.05, 40), steps=st.integers(1, 8))
def test_bisection_encloses_the_knee(knee: float, steps: int) -> None:
    low, high = bisect_rate(lambda rate: rate <= knee, steps=steps)
    assert low <= knee < high
    assert high / low <= 2 ** (1 / 2**steps) * (1 + 1e-9)


def test_bisection_says_where_there_is_no_knee() -> None:
    assert bisect_rate(lambda _: True) == (64.0, math.inf)
    assert bisect_rate(lambda _: False)[0] == 0.0


@given(needed=st.integers(1, 200), start=st.integers(1, 64))
def test_the_fewest_replicas_are_found(needed: int, start: int) -> None:
    asked: list[int] = []

    def holds(n: int) -> bool:
        asked.append(n)
        return n >= needed

    assert fewest(holds, start=start) == needed
    assert len(asked) == len(set(asked))


def result(met: int, n: int = 100, window_s: float = 10.0, tokens: int = 1000) -> dict[str, Any]:
    return {"met": met, "n": n, "window_s": window_s, "met_tokens": tokens, "iterations": 1}


def test_objectives_by_value() -> None:
    results = [result(50), result(100, window_s=20.0, tokens=3000)]
    assert goodput(results) == pytest.approx(150 / 30)
    assert attainment(results) == 0.75
    assert value_of("cost", results, price=3.0, cards=2) == pytest.approx(3.0 * 2 * (30 / 3600) / 4000 * 1e6)
    assert value_of("cost", [result(0, tokens=0)], price=3.0) == math.inf
    assert [o.name for o in parse_objectives("capacity, cost", 2.0)] == ["capacity", "cost"]
    for text, price in (("speed", None), ("cost", None), ("", None), ("goodput,goodput", None)):
        with pytest.raises(UsageError, match="expected"):
            parse_objectives(text, price)


@given(kept=st.lists(st.integers(0, 99), unique=True, max_size=20), cut=st.integers(0, 30))
def test_a_torn_line_costs_no_other_result(kept: list[int], cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("cells") / "cells.jsonl"
    writer = CellFile(path)
    for key in kept:
        writer.put(str(key), {"met": key})
    whole = path.read_bytes() if kept else b""
    path.write_bytes(whole + json.dumps({"key": "torn", "result": {"met": 1}}).encode()[:cut])  # killed while writing
    reader = CellFile(path)
    assert all(reader.get(str(key)) == {"met": key} for key in kept)
    assert reader.get("torn") is None
    CellFile(path).put("after", {"met": -1})
    assert CellFile(path).get("after") == reader.get("after") == {"met": -1}
    assert all(CellFile(path).get(str(key)) == {"met": key} for key in kept)


@given(kept=st.integers(0, 6), long=st.booleans(), cut=st.integers(1, 40))
def test_a_line_cut_short_costs_no_other_line_of_the_study(
    kept: int, long: bool, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "study.journal"
    lines = [{"op": number, "text": "x" * (70_000 if long else 3)} for number in range(kept + 1)]
    Journal(str(path)).append_logs(lines)
    path.write_bytes(path.read_bytes()[:-cut] if cut < 20 or not long else path.read_bytes()[: -30_000 * (cut % 3) or None])
    whole = path.read_bytes().count(b"\n")
    found = Journal(str(path))
    assert list(found.read_logs(0)) == lines[:whole]
    other = Journal(str(path))  # another process that has it open
    found.append_logs([{"op": -1}])
    other.append_logs([{"op": -2}])
    assert list(found.read_logs(0)) == list(other.read_logs(0)) == [*lines[:whole], {"op": -1}, {"op": -2}]


def window(at: int) -> StudyWindow:
    return StudyWindow(trace=1, name="t", digest="d", begin_ns=at * 10, end_ns=at * 10 + 5, lead_in_ns=2, requests=9, part={})


@given(n=st.integers(0, 20), held=st.integers(0, 20), split=st.sampled_from(["alternate", "past"]))
def test_windows_are_split_into_two_sides_without_one_left_over(n: int, held: int, split: str) -> None:
    windows = [window(at) for at in range(n)]
    search, proof = split_windows(windows, held, split)
    assert sorted([*search, *proof], key=lambda w: w.begin_ns) == windows
    assert search == sorted(search, key=lambda w: w.begin_ns) and len(proof) == (min(held, n - 1) if n > 1 else 0)
    if split == "past" and search and proof:
        assert search[-1].end_ns < proof[0].begin_ns
    if split == "alternate" and n == 2 * held:
        assert [w.begin_ns // 10 % 2 for w in proof] == [1] * held


def test_a_window_keeps_its_key_wherever_its_trace_lies() -> None:
    one = window(3)
    moved = StudyWindow(**{**one.to_dict(), "trace": 7, "name": "other", "requests": 1})
    assert one.key() == moved.key() != window(4).key()
    assert StudyWindow.from_dict(json.loads(json.dumps(one.to_dict()))) == one


class Counting:
    """A database that counts how often it is opened."""

    def __init__(self, store: Store) -> None:
        self.store, self.opened = store, 0

    def read(self) -> AbstractContextManager[Any]:
        self.opened += 1
        return self.store.read()


def test_the_rows_of_a_window_are_read_once_and_serve_every_scale(tmp_path: Path) -> None:
    trace, store = tmp_path / "t.jsonl", Store(tmp_path / "t.duckdb")
    assert main(["synth", str(trace), "--requests", "60", "--arrival", "poisson:rate=8", "--input", "600", "--output", "20"]) == 0
    assert main(["load", str(trace), "--db", str(store.path)]) == 0
    counting = Counting(store)
    sources = WindowSources(counting)
    whole = {name: value for name, value in asdict(WHOLE).items() if name not in ("window_ns", "lead_in_ns", "rate_scale")}
    for scales in ({}, {"isl_scale": 2.0}, {"osl_scale": 0.5}, {"burst_scale": 1.5}, {"isl_scale": 0.5, "burst_scale": 0.0}):
        window = StudyWindow(trace=1, name="t", digest="", begin_ns=10**9, end_ns=4 * 10**9, lead_in_ns=10**8, requests=1,
                             part={**whole, **scales})  # fmt: skip
        for rate in (0.5, 1.0, 3.0):
            with store.read() as con:
                own = TraceSource.from_database(con, 1, window.slice_at(rate))
            kept = sources.get(window, rate)
            for name in ("arrival_ns", "start_ns", "prompt_tokens", "output_tokens", "counted", "req_idx"):
                np.testing.assert_array_equal(getattr(kept, name), getattr(own, name), err_msg=f"{scales} {rate} {name}")
            assert (kept.window_ns, kept.gap_cv, kept.rate_scale) == (own.window_ns, own.gap_cv, own.rate_scale)
    assert counting.opened == 1
    sources.get(replace(window, begin_ns=0), 1.0)
    assert counting.opened == 2


def test_windows_that_belong_together_are_read_in_one_go_and_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, store = tmp_path / "t.jsonl", Store(tmp_path / "t.duckdb")
    assert main(["synth", str(trace), "--requests", "60", "--arrival", "poisson:rate=8", "--input", "600", "--output", "20"]) == 0
    assert main(["load", str(trace), "--db", str(store.path)]) == 0
    whole = {name: value for name, value in asdict(WHOLE).items() if name not in ("window_ns", "lead_in_ns", "rate_scale")}
    first = StudyWindow(trace=1, name="t", digest="", begin_ns=10**9, end_ns=2 * 10**9, lead_in_ns=10**8, requests=1, part=whole)
    windows = [replace(first, begin_ns=at * 10**9, end_ns=(at + 1) * 10**9) for at in range(1, 5)]
    counting, stretch = Counting(store), replace(windows[0], end_ns=4 * 10**9)
    together = WindowSources(counting, [*windows, replace(first, trace=99)])  # of a trace that is not there: not asked for
    for window in (stretch, *reversed(windows)):
        kept, own = together.get(window, 2.0), WindowSources(store).get(window, 2.0)
        for name in ("arrival_ns", "start_ns", "prompt_tokens", "output_tokens", "counted", "req_idx"):
            np.testing.assert_array_equal(getattr(kept, name), getattr(own, name), err_msg=name)
    assert counting.opened == 1
    monkeypatch.setattr("tuner.windows.MOST_KEPT", 0)  # no room: each is read when it is asked for, and none for nothing
    read: list[int] = []
    rows_of = TraceSource.rows_of
    monkeypatch.setattr(TraceSource, "rows_of", staticmethod(lambda *args: (read.append(1), rows_of(*args))[1]))
    tight = WindowSources(store, windows)
    for at, window in enumerate(windows):
        tight.get(window, 2.0)
        assert len(read) == at + 2  # the first one also found that there is no room


def test_a_key_says_what_decides_a_replay_whatever_was_asked_for_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "MOST_TEXTS", 5)
    profile = load_profile("h100")
    policy, slos = build_policy(profile), [SloTable(default=parse_slo(f"ttft={ms}ms")) for ms in range(1, 9)]
    found: dict[str, tuple[int, int]] = {}
    for _ in range(2):
        for at in range(8):
            for ms, slo in enumerate(slos):  # windows are made anew each time, where others have lain before
                key = cells.Cell(window=window(at), policy=policy, profile=profile, slo=slo).key()
                assert found.setdefault(key, (at, ms)) == (at, ms)
    assert len(found) == 64
    keys = {pair: key for key, pair in found.items()}

    def asked(at: int) -> bool:
        pair = at % 8, at // 8 % 8
        return cells.Cell(window=window(pair[0]), policy=policy, profile=profile, slo=slos[pair[1]]).key() == keys[pair]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads that forget what others keep
    try:
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(asked, range(512)))
    finally:
        sys.setswitchinterval(before)

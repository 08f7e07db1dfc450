"""The proof on an engine: the best configurations and the current policy computed by a tiny model on this CPU."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replay_engine.profile import Latency, Profile
from tests.tuner.test_watched import Followed
from tracekit.cli.main import main
from tracekit.errors import UsageError
from tracekit.jobs import cancel
from tracekit.store import Store
from tracekit.store.files import read_json
from tracekit.trust import kendall_tau
from tuner import tune
from tuner.engine_pace import Pace, measure_pace
from tuner.plan import PLAN, TunePlan
from tuner.verify import load_engine
from tuner.windows import WindowSources

torch = pytest.importorskip("torch", reason="the engine needs torch: the extra engine")

TRACE = ["--requests", "100", "--arrival", "poisson:rate=14", "--input", "lognormal:median=120,sigma=0.5", "--output",
         "lognormal:median=8,sigma=0.3", "--seed", "4"]  # fmt: skip
SETS = ["num_gpu_blocks=600", "max_model_len=2048", "max_num_seqs=1", "max_num_batched_tokens=512"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trace, a space of some configurations, and planted costs under which its SLO is missed by some."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("verify")
    assert main(["synth", str(folder / "small.jsonl"), *TRACE]) == 0
    (folder / "space.toml").write_text("[space]\nmax_num_seqs = [1, 2, 8, 16]\nmax_num_batched_tokens = [64, 512]\n")
    costs = Latency(floor_ns=4e6, a_ns=4e6, b_ns=1.2e5, d_ns=3e5, h0_ns=1e6)
    (folder / "cpu.toml").write_text(Profile(name="cpu", latency=costs, synthetic=True).to_toml())
    return folder


def options(place: Path) -> dict[str, Any]:
    return {"slo": "ttft=100ms,tpot=20ms", "profile": str(place / "cpu.toml"), "sets": SETS, "space": str(place / "space.toml"),
            "windows": 2, "holdout": 2, "trials": 6, "workers": 1, "verify": "torch", "top": 2, "model": "tiny"}  # fmt: skip


@pytest.fixture(scope="module")
def told() -> Followed:
    return Followed()


@pytest.fixture(scope="module")
def document(place: Path, told: Followed) -> dict[str, Any]:
    report = tune(str(place / "small.jsonl"), db=str(place / "a.duckdb"), progress=told, **options(place))
    verified = report.document["verification"]
    assert f"On a real engine ({verified['engine']}): rank agreement " in report.text
    assert sum("verify: " in line for line in report.lines) == len(verified["candidates"])
    return report.document


def test_the_current_policy_and_the_best_are_computed(document: dict[str, Any]) -> None:
    found = document["verification"]
    assert "tiny" in found["engine"] and not found["same_model"] and found["windows"] == "held"
    first, *others = found["candidates"]
    assert first["current"] and first["point"] == document["current"] and not any(row["current"] for row in others)
    assert 1 <= len(others) <= 2 and found["n"] == 1 + len(others)
    points = [json.dumps(row["point"], sort_keys=True) for row in found["candidates"]]
    assert len(set(points)) == len(points)
    if document["changes"]:
        assert others[0]["point"] == document["winner"]["point"]
    assert all(0 <= row[side]["attainment"] <= 1 for row in found["candidates"] for side in ("simulated", "engine"))


def test_agreement_and_gain_follow_from_the_figures(document: dict[str, Any]) -> None:
    """By value, whatever this machine's speed made of them."""
    found = document["verification"]
    simulated, engine = ([row[side]["value"] for row in found["candidates"]] for side in ("simulated", "engine"))
    tau = kendall_tau(simulated, engine)
    assert found["tau"] == (None if tau != tau else tau)
    gain, predicted = found["gain"], found["predicted"]
    assert gain["n"] == predicted["n"] == len(document["windows"]["held"]) == 2
    requests = sum(window["requests"] for window in document["windows"]["held"])
    assert gain["requests"] == predicted["requests"] == requests
    assert gain["level_attainment"] == pytest.approx(found["candidates"][1]["engine"]["attainment"])
    assert predicted["level_attainment"] == pytest.approx(found["candidates"][1]["simulated"]["attainment"])
    assert found["confirmed"] == (gain["level"] > gain["base"])


def test_how_far_the_engine_is_is_told_in_requests(document: dict[str, Any], told: Followed) -> None:
    """Of all configurations together; each window's end is told."""
    (rows,) = (rows for unit, _, rows in told.stages if unit == "requests")
    n, held = document["verification"]["n"], document["windows"]["held"]
    assert {total for _, total, _ in rows} == {rows[-1][0]} and rows[-1][0] % n == 0
    assert rows[-1][0] >= n * sum(window["requests"] for window in held)  # lead-ins are replayed too
    assert [done for done, _, _ in rows] == sorted(done for done, _, _ in rows)
    notes = list(dict.fromkeys(note for _, _, note in rows))
    assert notes == [f"verify: {at + 1} of {n} on {document['verification']['engine']}" for at in range(n)]
    ends = [max(done for done, _, note in rows if note == each) for each in notes]
    assert ends == [rows[-1][0] // n * (at + 1) for at in range(n)]


def test_an_engine_at_work_can_be_stopped(document: dict[str, Any], place: Path) -> None:
    db = place / "a.duckdb"

    def stops(done: int, total: int, note: str) -> None:
        if note.startswith("verify: 1 of"):
            cancel(Store(db).folder, "last")

    with pytest.raises(KeyboardInterrupt):
        tune(str(place / "small.jsonl"), db=str(db), progress=stops, **options(place))


def test_a_dry_run_measures_the_engine_and_says_how_sure_it_is(document: dict[str, Any], place: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """The longest window is measured to its end; the other has as many requests, but for a few."""
    monkeypatch.setattr("tuner.engine_pace.MEASURED_S", math.inf)
    found = tune(str(place / "small.jsonl"), db=str(place / "a.duckdb"), dry_run=True, **options(place))
    said = found.document
    low, high = said["engine_minutes"]
    measured = said["engine_measured"]
    assert said["engine_replays"] == 3 * 2 and 0 <= low <= high
    assert measured["requests"] == measured["of"] >= max(window["requests"] for window in document["windows"]["held"])
    assert 0.8 * 3 * measured["seconds"] / 60 - 0.01 <= low and high <= 2.2 * 3 * measured["seconds"] / 60 + 0.01
    assert found.lines[-1].startswith("verify: measured for 10 s at most on torch, tiny")
    assert "\nthen 6 replays on a real engine, about " in found.text
    assert f"(measured: {measured['of']} of a window's {measured['of']} requests ended in " in found.text


def test_a_long_window_is_left_when_it_has_been_measured_for_long_enough(place: Path) -> None:
    """By a clock that goes 3 s each time it is looked at: at the fourth look at the latest the replay is left."""
    now = [0.0]

    def clock() -> float:
        now[0] += 3.0
        return now[0]

    tune(str(place / "small.jsonl"), db=str(place / "a.duckdb"), dry_run=True, **options(place))
    (folder,) = (Store(place / "a.duckdb").folder / "tune").iterdir()
    plan = TunePlan.from_dict(read_json(folder / PLAN) or {})
    engine = load_engine("tiny", 0)
    looked: list[int] = []

    class Slow:
        """Looked at after every iteration."""

        def build(self, *given: Any) -> Any:
            built = engine.torch.build(*given)
            built.executor._flushed_ns = -(10**18)
            finish = built.executor.finish

            def each(iteration: Any) -> Any:
                built.executor._flushed_ns = -(10**18)
                looked.append(1)
                return finish(iteration)

            built.executor.finish = each
            return built

    cell = replace(plan.cell(plan.policy, plan.trace.held[0]), profile=engine.profile)
    slow: Any = Slow()
    found = measure_pace(cell, WindowSources(Store(place / "a.duckdb")), slow, clock=clock)
    assert 0 <= found.requests < found.total and found.work[0] > 0 and 1 <= len(looked) < found.total
    whole = measure_pace(cell, WindowSources(Store(place / "a.duckdb")), engine.torch, clock=lambda: 0.0)
    assert whole.requests == whole.total == found.total and whole.work[0] > found.work[0] and whole.work[1] > found.work[1]


@pytest.mark.parametrize(
    ("work", "windows", "configurations", "expected"),
    [
        ((1000, 100), [(1000, 100)], 1, (5.0, 5.0)),  # all of it was measured: 60 s to begin, four minutes at work
        ((1000, 100), [(2000, 300), (1000, 100)], 2, (2 * (2 + 3 * 4.0), 2 * (2 + 4 * 4.0))),
        ((250, 50), [(1000, 100)], 1, (1 + 2 * 4.0, 1 + 4 * 4.0)),  # outputs are farther than prompts
        ((250, 0), [(1000, 100)], 3, (3 * (1 + 4 * 4.0),) * 2),  # nothing was decoded yet
        ((0, 0), [(1000, 100)], 3, (0.0, 0.0)),
    ],
)
def test_the_rest_is_told_by_prompts_and_by_outputs(work: tuple[int, int], windows: list[tuple[int, int]], configurations: int,
                                                    expected: tuple[float, float]) -> None:  # fmt: skip
    pace = Pace(start_s=60.0, busy_s=240.0, work=work, requests=1, total=4)
    assert pace.minutes(windows, configurations) == pytest.approx(expected)
    assert pace.to_dict() == {"seconds": 300.0, "requests": 1, "of": 4}


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"verify": "vllm"}, "--verify vllm: expected torch"),
        ({"verify": "torch", "top": 0}, "--top 0: expected at least 1"),
        ({"model": "tiny"}, "expected --verify torch with it"),
    ],
)
def test_what_cannot_be_verified_is_said_before_the_search(wrong: dict[str, Any], expected: str, place: Path) -> None:
    with pytest.raises(UsageError, match=expected):
        tune(str(place / "small.jsonl"), slo="ttft=1s", db=str(place / "c.duckdb"), **wrong)
    assert not (place / "c.duckdb").exists()

"""The proof on an engine: the best configurations and the current policy computed by a tiny model on this CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from replay_engine.profile import Latency, Profile
from tracekit.cli.main import main
from tracekit.errors import UsageError
from tracekit.trust import kendall_tau
from tuner import tune

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


@pytest.fixture(scope="module")
def document(place: Path) -> dict[str, Any]:
    report = tune(
        str(place / "small.jsonl"), slo="ttft=100ms,tpot=20ms", profile=str(place / "cpu.toml"), sets=SETS,
        space=str(place / "space.toml"), windows=2, holdout=2, trials=6, workers=1, verify="torch", top=2, model="tiny",
        db=str(place / "a.duckdb"),
    )  # fmt: skip
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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"verify": "vllm"}, "--verify vllm: expected torch"),
        ({"verify": "torch", "top": 0}, "--top 0: expected at least 1"),
        ({"model": "tiny"}, "expected --verify torch with it"),
    ],
)
def test_what_cannot_be_verified_is_said_before_the_search(options: dict[str, Any], expected: str, place: Path) -> None:
    with pytest.raises(UsageError, match=expected):
        tune(str(place / "small.jsonl"), slo="ttft=1s", db=str(place / "c.duckdb"), **options)
    assert not (place / "c.duckdb").exists()

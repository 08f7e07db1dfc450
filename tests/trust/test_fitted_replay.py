"""A replay with a fitted profile: under the settings it was fitted under, and counted at the client where it was fitted so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import tracekit
from replay_engine.profile import Latency, Profile, load_profile
from replay_engine.rules import Rules
from replay_engine.types import Phase, RequestBatch
from tracekit.calibration.observed.settings import known_settings
from tracekit.cli.main import main
from tracekit.delivery import Delivery, DeliverySource, delivery_of
from tracekit.explain import explain
from tracekit.fitted_settings import fitted_note, fitted_sets
from tracekit.policy_source import policy_from
from tracekit.profile_diff import diff_profiles
from tracekit.store import Store

__all__: list[str] = []
LATENCY = Latency(floor_ns=9e6, a_ns=2.7e6, b_ns=35e3, c_ns=2.0, d_ns=40e3, e_ns=70.0, h0_ns=1e6)
SETTINGS = {"max_num_seqs": 6, "num_gpu_blocks": 900, "max_num_batched_tokens": 512, "max_model_len": 4096,
            "engine_version": "0.20.0", "scheduler_reserve_full_isl": False}  # fmt: skip
KNOWN = {"max_num_seqs": "by replay", "num_gpu_blocks": "given", "engine_version": "assumed"}
PLAIN = Profile(name="seen", latency=LATENCY, synthetic=True, fit={"settings": SETTINGS, "known": KNOWN})
BY, BACK = 12_345_678, 7_654_321
AWAY = replace(PLAIN, fit=PLAIN.fit | {"counting": "arrival", "ingress_ns": BY + 0.2, "egress_ns": float(BACK)})


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Thirty requests, one session of three turns among them."""
    draw = np.random.default_rng(3)
    rows = [
        {"timestamp": 0.04 * k, "input_length": int(draw.integers(30, 900)), "output_length": int(draw.integers(1, 60))}
        for k in range(30)
    ]
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def replayed(tmp_path: Path, trace: Path, profile: Profile, **options: Any) -> tuple[Any, list[str]]:
    file = tmp_path / f"{profile.name}.toml"
    file.write_text(profile.to_toml(), encoding="utf-8")
    said: list[str] = []
    report = tracekit.replay(str(trace), profile=str(file), db=str(tmp_path / "db.duckdb"), say=said.append, **options)
    return report, said


def test_a_replay_takes_the_settings_of_its_profile(tmp_path: Path, trace: Path) -> None:
    policy = policy_from(PLAIN, None)
    assert {knob: getattr(policy.scheduler, knob) for knob in SETTINGS} == SETTINGS
    assert not policy.estimated
    report, said = replayed(tmp_path, trace, PLAIN)
    told = [line for line in said if "was fitted under" in line]
    assert len(told) == 1
    assert "max_num_seqs=6 (found by replay), num_gpu_blocks=900, max_num_batched_tokens=512" in told[0]
    assert "engine_version=0.20.0 (assumed)" in told[0]
    assert report.iterations["running"].max() == 6
    more, said = replayed(tmp_path, trace, PLAIN, sets=("max_num_seqs=9", "scheduler.max_num_batched_tokens=768"))
    assert more.iterations["running"].max() == 9
    assert any("overruled: max_num_seqs, max_num_batched_tokens" in line for line in said)


def test_a_policy_says_it_all(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[scheduler]\nnum_gpu_blocks = 500\n", encoding="utf-8")
    policy = policy_from(PLAIN, str(file))
    assert policy.scheduler.num_gpu_blocks == 500
    assert policy.scheduler.max_num_seqs != 6
    assert not any("fitted under" in note for note in policy.notes)
    assert known_settings(None, (), PLAIN).policy.scheduler.max_num_seqs != 6, "a prior's settings are not the trace's"


def test_profiles_without_settings_and_of_other_versions_are_read(tmp_path: Path) -> None:
    assert fitted_note(load_profile("h100")) is None
    old = replace(PLAIN, fit={"settings": {"max_num_seqs": 6, "knob_of_tomorrow": 1}})
    assert fitted_sets(old) == ("max_num_seqs=6",)
    assert "max_num_seqs=6: what profile seen was fitted under" in (fitted_note(old) or "")
    assert fitted_sets(replace(PLAIN, fit={"settings": 3})) == ()
    differs = {each.what: (each.one, each.other) for each in diff_profiles(old, PLAIN).facts}
    assert differs["fit.settings.num_gpu_blocks"] == (None, 900)
    assert "fit.settings.max_num_seqs" not in differs
    assert delivery_of(replace(PLAIN, fit={"ingress_ns": "soon", "egress_ns": True}), Rules()) == Delivery()


@pytest.mark.parametrize("replicas", [1, 2])
def test_latencies_are_counted_at_the_client(tmp_path: Path, trace: Path, replicas: int) -> None:
    own, _ = replayed(tmp_path, trace, PLAIN, replicas=replicas)
    away, said = replayed(tmp_path, trace, AWAY, replicas=replicas)
    assert sum("12.346 ms before the engine" in line and "7.654 ms after" in line for line in said) == 1
    one, other = (report.outcomes.sort("request") for report in (own, away))
    assert (other["arrival_ns"] == one["arrival_ns"]).all()
    assert ((other["ttft_ns"] - one["ttft_ns"]) == BY).all()
    assert ((other["e2e_ns"] - one["e2e_ns"]) == BY + BACK).all()
    assert (other["queue_ns"] == one["queue_ns"]).all()
    assert ((other["last_token_ns"] - one["last_token_ns"]) == BY).all()
    several = one["output_tokens"] > 1
    added = (other["tpot_ns"] - one["tpot_ns"]).filter(several) * (one["output_tokens"] - 1).filter(several)
    assert added.to_numpy() == pytest.approx(BACK)
    spans = away.table("spans")
    for phase, length in ((Phase.ingress, BY), (Phase.egress, BACK)):
        rows = spans.filter(spans["phase"].cast(pl.String) == phase.name)
        assert len(rows) == 30
        assert ((rows["end_ns"] - rows["start_ns"]) == length).all()
    with Store(away.db).read() as con:
        stories = [explain(con, away.run, request) for request in (0, 13, 29)]
    assert all(story["check"]["holds"] for story in stories), [story["check"] for story in stories]


def test_whoever_counts_at_the_engine_adds_nothing(tmp_path: Path, trace: Path) -> None:
    engine = replace(AWAY, fit=AWAY.fit | {"counting": "engine"})
    assert not delivery_of(engine, Rules())
    own, _ = replayed(tmp_path, trace, PLAIN, events="outcomes")
    same, said = replayed(tmp_path, trace, engine, events="outcomes")
    assert not any("before the engine" in line for line in said)
    assert same.outcomes.equals(own.outcomes)


def test_a_manifest_brings_the_way_there_and_back(tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = replayed(tmp_path, trace, AWAY)
    manifest = tmp_path / "db.duckdb.d" / "runs" / str(first.run) / "manifest.json"
    assert main(["replay", "--from", str(manifest), "--db", str(tmp_path / "db.duckdb"), "--no-diagnose"]) == 0
    assert "reproduced: the same bytes" in capsys.readouterr().err


def test_who_waits_for_an_answer_waits_for_all_of_it() -> None:
    batch = RequestBatch(
        index=np.arange(3), arrival_ns=np.array([5, 100, -1]), prompt_tokens=np.full(3, 9), output_tokens=np.full(3, 2),
        priority=np.zeros(3, np.int64), max_tokens=np.full(3, -1), cancel_ns=np.array([50, 60, -1]), parent=np.array([-1, 0, 1]),
        think_ns=np.array([0, 1000, 2000]),
    )  # fmt: skip

    class Three:
        total = 3

        def batches(self) -> Any:
            yield batch

    moved = next(iter(DeliverySource(Three(), Delivery(ingress_ns=7, egress_ns=3)).batches()))
    assert moved.arrival_ns.tolist() == [12, 107, -1]
    assert moved.think_ns is not None and moved.think_ns.tolist() == [0, 1010, 2010]
    assert moved.cancel_ns is not None and moved.cancel_ns.tolist() == [57, 60, -1], "a turn's counts from its release"
    assert batch.arrival_ns.tolist() == [5, 100, -1]

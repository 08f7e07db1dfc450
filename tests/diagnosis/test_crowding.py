"""A batch so large that decoding itself misses the time per token: named where it is so, and only there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.diagnosis.loads import setup_of_recipe
from tracekit.diagnosis import RunData
from tracekit.diagnosis.capacity import capacity_of
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.finding import Diagnosis, confirmed
from tracekit.diagnosis.proof import prove
from tracekit.diagnosis.text import render_diagnosis

COST = {"c0": 0.007, "c1": 1 / 32000, "c2": 0.0001, "c3": 1e-8, "c4": 0}
ENGINE = {"cost": COST, "budget": 2048, "seats": 256, "kv_tokens": 2000000, "step": "mixed", "admit": "chunk"}


def told(folder: Path, load: dict[str, Any], slo: str, **engine: Any) -> tuple[RunData, Diagnosis]:
    recipe = {"seed": 5, "engine": {**ENGINE, **engine}, "load": [{"cls": "c", "isl": "u(80,120)", **load}]}
    data = RunData.replayed(setup_of_recipe(recipe, folder, slo=slo))
    return data, diagnose(data)


BATCH = {"n": 400, "arrive": "at(0)", "osl": "u(180,220)"}
STEADY = {"n": 1500, "arrive": "poisson(25)", "osl": "u(180,220)"}


def test_a_batch_of_jobs_runs_with_fewer_seats(tmp_path: Path) -> None:
    """256 together take 7 + 256 x 0.1 ms and their KV a token; 20 ms are asked for."""
    data, found = told(tmp_path, BATCH, "tpot=20ms")
    first = found.findings[0]
    assert first.id == "BATCH_TOO_LARGE" and first.share > 0.9 and first.measure == "tpot"
    shown = {each.metric: each for each in first.evidence}
    assert shown["decoding together"].value == 256
    slow = float(np.nanquantile(data.outcomes["tpot_ns"], 0.5)) / 1e9
    assert shown["time per token"].value == pytest.approx(slow, rel=0.1) and shown["time per token"].threshold == 0.02
    assert shown["time per token alone"].value == pytest.approx(0.0071 / 0.92, rel=0.05)
    change = first.changes[0]
    assert (change.knob, change.old) == ("max_num_seqs", "256") and 105 <= int(change.new) <= 128
    proved = prove(data, found, workers=1)
    proof = confirmed(proved.findings[0])
    assert proof is not None and proof.change == change
    after = {name: value for name, _, _, value in proof.figures}
    assert after["tpot p50"] is not None and after["tpot p50"] < 20e6
    assert proof.worse == () and next(b for name, _, _, b in proof.figures if name == "ttft p50") > 2e9  # type: ignore[operator]
    assert "so many decode together" in render_diagnosis(data, proved, replayed=True)


def with_skew(folder: Path, s_ns: float) -> RunData:
    """64 decode together with contexts of very different lengths; their KV costs nothing, and prompts hardly anything."""
    recipe = {"seed": 5, "engine": {**ENGINE, "cost": {**COST, "c1": 1e-6, "c3": 0}, "seats": 64},
              "load": [{"cls": "c", "isl": "u(80,8000)", **BATCH}]}  # fmt: skip
    setup = setup_of_recipe(recipe, folder, slo="tpot=14ms")
    return RunData.replayed(replace(setup, profile=replace(setup.profile, latency=replace(setup.profile.latency, s_ns=s_ns))))


def test_the_longest_context_is_part_of_what_a_token_takes(tmp_path: Path) -> None:
    """7 + 64 x 0.1 ms a token, and 1,000 ns for each token of the longest context above the mean: about 4 ms more. What a replay
    without other prompts shows is what is said, and so many fewer are allowed."""
    data = with_skew(tmp_path, 1000.0)
    rows = data.iterations
    crowd = (rows["decode_seqs"] > 32) & (rows["prefill_tokens"] == 0)
    alone = rows["duration_ns"][crowd].astype(np.float64)
    above = (rows["decode_longest_tokens"] - rows["decode_kv_tokens"] / np.maximum(rows["decode_seqs"], 1))[crowd]
    assert 2000 < above.mean() < 5000
    (found,) = [each for each in diagnose(data).findings if each.id == "BATCH_TOO_LARGE"]
    shown = {each.metric: each for each in found.evidence}
    prompts = shown["for others' prompts"].value
    assert shown["time per token"].value is not None and prompts is not None
    assert shown["time per token"].value * (1 - prompts) == pytest.approx(alone.mean() / 1e9, rel=0.08)
    assert shown["time per token alone"].value == pytest.approx(0.0071 / (1 - prompts), rel=0.02)
    room = (14e6 * (1 - prompts) - 7e6 - 1000 * above.mean()) / 1e5
    assert shown["decoding together"].threshold == pytest.approx(max(room, 1), abs=4)


def test_the_longest_context_is_part_of_what_an_engine_can_serve(tmp_path: Path) -> None:
    one, other = (with_skew(tmp_path, s) for s in (0.0, 1000.0))
    without, found = capacity_of(one), capacity_of(other)
    assert without is not None and found is not None
    rows = other.iterations
    several = np.asarray(rows["decode_seqs"] > 1)
    above = (rows["decode_longest_tokens"] - rows["decode_kv_tokens"] / np.maximum(rows["decode_seqs"], 1))[several]
    assert found.fixed_s - without.fixed_s == pytest.approx(1000 * above.mean() / 1e9, rel=1e-6)
    assert found.own_s == without.own_s and found.served(64) < 0.9 * without.served(64)


def test_steady_traffic_takes_another_engine(tmp_path: Path) -> None:
    """So many are in flight because so many come: fewer seats would only move the wait, and that is what a replay says."""
    data, found = told(tmp_path, STEADY, "ttft=1s,tpot=12ms")
    assert found.findings[0].id == "BATCH_TOO_LARGE"
    assert [each.knob for each in found.findings[0].changes] == ["fleet.replicas", "max_num_seqs"]
    proved = prove(data, found, workers=1).findings[0]
    proof = confirmed(proved)
    assert proof is not None and proof.change.sets[0].startswith("fleet.replicas=")
    fewer = replace(found.findings[0], changes=found.findings[0].changes[1:])
    assert confirmed(prove(data, replace(found, findings=(fewer,)), workers=1).findings[0]) is None


def test_it_is_held_against_single_gaps_too(tmp_path: Path) -> None:
    _, found = told(tmp_path, BATCH, "itl=20ms")
    assert "BATCH_TOO_LARGE" in [each.id for each in found.findings]


@pytest.mark.parametrize(
    ("load", "slo", "engine"),
    [
        (STEADY, "ttft=1s,tpot=60ms", {}),
        (BATCH, "tpot=50ms", {}),
        ({**BATCH, "n": 60}, "tpot=20ms", {}),
        (BATCH, "ttft=60s", {}),
        # tokens are late because of prompts beside them, with hardly anybody decoding
        ({"n": 150, "arrive": "poisson(2)", "isl": "u(14000,16000)", "osl": "u(40,60)"}, "ttft=30s,tpot=30ms", {"budget": 16384}),
        # one alone misses it: no number of seats helps
        ({"n": 60, "arrive": "poisson(1)", "osl": "u(20,40)"}, "tpot=6ms", {}),
    ],
)
def test_elsewhere_nobody_speaks_of_it(load: dict[str, Any], slo: str, engine: dict[str, Any], tmp_path: Path) -> None:
    data, found = told(tmp_path, load, slo, **engine)
    assert "BATCH_TOO_LARGE" not in [each.id for each in found.findings]
    late = np.nansum(data.outcomes["tpot_ns"] > 1e6 * float(slo.rpartition("tpot=")[2][:-2])) if "tpot" in slo else 0
    assert bool(found.findings) <= bool(late)

"""A run whose engine nobody has calibrated is weighed by its own iterations, and a change is held against the same model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from replay_engine.profile import Latency
from tracekit.columns import Columns, as_rows
from tracekit.diagnosis import RunData, load_run_data
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.finding import Change, Finding, Where
from tracekit.diagnosis.own_costs import is_own, with_own_costs
from tracekit.diagnosis.proof import prove
from tracekit.replay import replay
from tracekit.store import Store

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "demo_trace.jsonl.gz"
SEATS = ("max_num_seqs=8",)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """Eight seats are too few for this trace."""
    db = str(tmp_path_factory.mktemp("crowded") / "t.duckdb")
    replay(str(EXAMPLE), limit=250, db=db, engine="sim", diagnose=False, sets=SEATS, slo="ttft=1s,tpot=100ms")
    return load_run_data(Store(db), "last")


def uncalibrated(data: RunData, iterations: Columns | None = None) -> RunData:
    """The same run, of an engine that nobody has calibrated; with other ``iterations``."""
    tables = data.tables if iterations is None else {**data.tables, "iterations": as_rows(iterations)}
    profile = replace(data.profile, synthetic=True, latency=Latency())
    return replace(data, setup=replace(data.setup, profile=profile), tables=tables, measured=True)


def slower(data: RunData, times: float) -> RunData:
    """The same requests, each of which took ``times`` as long, as a busy machine would have it."""
    rows = data.outcomes.copy()
    for name in ("queue_ns", "ttft_ns", "tpot_ns", "e2e_ns"):
        rows[name] = np.where(rows[name] > 0, rows[name] * times, rows[name])
    return replace(data, tables={**data.tables, "outcomes": rows})


def test_its_own_iterations_say_what_iterations_cost(crowded: RunData) -> None:
    found = with_own_costs(uncalibrated(crowded))
    assert is_own(found) and not is_own(crowded)
    true = RunData.replayed(crowded.setup).outcomes["e2e_ns"].mean()
    fitted = RunData.replayed(found.setup).outcomes["e2e_ns"].mean()
    assert fitted == pytest.approx(true, rel=0.02)


def test_it_is_diagnosed_as_if_it_were_calibrated(crowded: RunData) -> None:
    known, own = diagnose(crowded), diagnose(with_own_costs(uncalibrated(crowded)))
    assert known.findings and [each.id for each in own.findings] == [each.id for each in known.findings]
    assert own.findings[0].changes[0].sets == known.findings[0].changes[0].sets
    assert any("tracekit calibrate" in each for each in own.warnings)
    assert not any("tracekit calibrate" in each for each in known.warnings)


def test_a_profile_that_has_costs_is_kept(crowded: RunData) -> None:
    assert with_own_costs(crowded) is crowded


def test_too_few_iterations_tell_nothing(crowded: RunData) -> None:
    few = uncalibrated(crowded, Columns.of(np.asarray(crowded.iterations[:20])))
    assert with_own_costs(few) is few


def test_iterations_of_a_machine_that_did_something_else_tell_nothing(crowded: RunData) -> None:
    rows = np.asarray(crowded.iterations[np.arange(len(crowded.iterations))]).copy()
    spread = np.exp(np.random.default_rng(5).normal(0, 2, len(rows)))
    rows["device_ns"] = rows["device_ns"] * spread
    noisy = uncalibrated(crowded, Columns.of(rows))
    assert with_own_costs(noisy) is noisy


def idle(data: RunData) -> Finding:
    """A finding whose change does nothing in this run: memory that nobody lacks."""
    blocks = 2 * data.policy.scheduler.num_gpu_blocks
    known = diagnose(data).findings[0]
    change = replace(known.changes[0], sets=(f"num_gpu_blocks={blocks}",))
    assert isinstance(change, Change) and isinstance(known.where, Where)
    return replace(known, changes=(change,), tempting=())


@pytest.mark.parametrize("times", [1.0, 1.4, 0.9])
def test_a_change_that_does_nothing_cures_nothing_however_slow_the_engine_was(crowded: RunData, times: float) -> None:
    """What the simulator is off by is no effect of a change."""
    real = replace(slower(crowded, times), measured=True)
    diagnosis = replace(diagnose(real), findings=(idle(real),))
    found = prove(real, diagnosis, workers=1, behind=False)
    (proof,) = found.findings[0].proofs
    assert proof.outcome != "confirmed" and proof.cured == pytest.approx(0, abs=1e-9)
    said = [each for each in (*found.warnings, *found.remarks) if "a real engine took this run" in each]
    assert len(said) == 1 and (said[0] in found.warnings) == (times == 1.4)


def test_what_cures_is_still_confirmed(crowded: RunData) -> None:
    real = replace(slower(crowded, 1.3), measured=True)
    found = prove(real, diagnose(real), workers=1, behind=False)
    assert any(proof.outcome == "confirmed" for proof in found.findings[0].proofs)


@pytest.mark.parametrize("runs", [0.5, 1.0])
def test_a_budget_for_no_change_proves_nothing(crowded: RunData, runs: float) -> None:
    """Half a run, or just the one that a change would be held against."""
    real = replace(crowded, measured=True)
    found = prove(real, diagnose(real), budget=int(runs * len(real.iterations)), workers=1, behind=False)
    proofs = [proof for finding in found.findings for proof in finding.proofs]
    assert proofs and {(proof.outcome, proof.iterations) for proof in proofs} == {("not replayed", 0)}

"""Effects that no finding has a name for: planted ones show with size and place, and where there is none nothing is said."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.profile import Latency
from replay_engine.types import Phase
from tests.diagnosis.test_cases import EXPECTED, diagnosis_of
from tracekit.diagnosis import RunData, load_run_data
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.finding import Diagnosis, Unnamed
from tracekit.diagnosis.text import render_diagnosis, three_lines
from tracekit.diagnosis.unnamed import stands_out
from tracekit.diagnosis.verdict import build_verdict
from tracekit.diagnosis.wording import headline
from tracekit.replay import replay
from tracekit.store import Store

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "demo_trace.jsonl.gz"
SECOND = 1_000_000_000
drawn = st.lists(st.tuples(st.integers(-20, 60), st.integers(1, 20)), min_size=1, max_size=14)


def replayed(folder: Path, **options: object) -> RunData:
    db = str(folder / "t.duckdb")
    replay(str(EXAMPLE), limit=200, db=db, engine="sim", diagnose=False, **options)  # type: ignore[arg-type]
    return load_run_data(Store(db), "last")


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return replayed(tmp_path_factory.mktemp("calm"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """One of two engines takes twice as long from 20 s to 35 s."""
    return replayed(tmp_path_factory.mktemp("slow"), replicas=2, slow=("replica1@20s:2x:15s",), slo="ttft=500ms,tpot=50ms")


def unnamed(found: Diagnosis) -> tuple[Unnamed, ...]:
    assert found.expected is not None
    return found.expected.unnamed


@settings(max_examples=200, deadline=None)
@given(rows=drawn, least=st.sampled_from((0.1, 0.5, 1)))
def test_a_stretch_holds_most_of_what_is_above_the_bar(rows: list[tuple[int, int]], least: float) -> None:
    amount, of = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    found = stands_out(amount, of, least)
    above = amount > least * of
    if not above.any():
        assert found is None
        return
    bar = max(least, amount[above].sum() / of[above].sum() / 2)
    value = amount - bar * of
    best = max(value[low:high].sum() for low in range(len(rows)) for high in range(low + 1, len(rows) + 1))
    assert found is not None and value[found.low : found.high].sum() == pytest.approx(best, abs=1e-6)


def test_nothing_is_said_of_a_run_that_does_as_expected(calm: RunData) -> None:
    found = diagnose(calm)
    assert unnamed(found) == ()
    assert "no effect without a name" in render_diagnosis(calm, found, replayed=False)
    assert len(three_lines(found, "more")) == 3


@pytest.mark.parametrize("case", EXPECTED)
def test_what_a_finding_names_is_not_told_again(case: str) -> None:
    assert unnamed(diagnosis_of(case)) == ()


def test_a_slow_stretch_shows_with_its_size_and_place(slow: RunData) -> None:
    found = diagnose(slow)
    (effect,) = unnamed(found)
    rows, spans = slow.iterations, slow.spans
    theirs = rows[(rows["replica"] == 1) & (rows["start_ns"] >= 20 * SECOND) & (rows["start_ns"] < 35 * SECOND)]
    longest = int(theirs["duration_ns"].max())
    assert effect.kind == "slow iterations" and "replica 1" in effect.what and "2.00 times" in effect.what
    assert abs(effect.where.t0_ns - int(theirs["start_ns"][0])) <= longest
    assert abs(effect.where.t1_ns - int(theirs["start_ns"][-1] + theirs["duration_ns"][-1])) <= longest
    assert {replica for replica, _ in effect.where.iterations} == {1}
    lost = 0.0  # half of what requests lived through of those iterations
    begin, end = theirs["start_ns"], theirs["start_ns"] + theirs["duration_ns"]
    for span in spans[spans["replica"] == 1]:
        inside = np.minimum(end, span["end_ns"]) - np.maximum(begin, span["start_ns"])
        lost += float(np.maximum(inside, 0).sum()) / 2
    assert effect.over_ns == pytest.approx(lost, rel=0.02)
    assert effect.share == pytest.approx(lost / float(slow.outcomes["e2e_ns"].sum()), rel=0.02)
    assert set(effect.where.requests) <= set(spans["request"][spans["replica"] == 1].tolist())


def test_it_stands_in_the_verdict(slow: RunData) -> None:
    found = diagnose(slow)
    (effect,) = unnamed(found)
    assert found.findings == () and effect.share > 0.1
    assert headline(found) == f"nothing is wrong: 1 of 200 requests took longer than allowed; and yet {effect.what}"
    text = render_diagnosis(slow, found, replayed=False)
    assert f"NO NAME YET: {effect.what}" in text and "where the time should go" in text
    document = json.loads(json.dumps(build_verdict(slow, found, budget=None)))
    one = document["expected"]["unnamed"][0]
    assert one["over_s"] == pytest.approx(effect.over_ns / 1e9, rel=1e-5) and one["where"]["t0_s"] == pytest.approx(20, abs=0.1)
    kinds = {each["kind"]: each for each in document["expected"]["kinds"]}
    assert sum(each["actual_s"] for each in kinds.values()) == pytest.approx(slow.outcomes["e2e_ns"].sum() / 1e9, rel=1e-4)
    assert kinds["decode"]["actual_s"] > 1.1 * kinds["decode"]["expected_s"]
    named = replace(found, findings=diagnosis_of("D03").findings)
    lines = three_lines(named, "more")
    assert len(lines) == 4 and lines[0].startswith("verdict: QUEUE_SEATS") and effect.what in lines[2]


def test_nothing_is_longer_than_what_nobody_said(calm: RunData) -> None:
    """A real engine that nobody has calibrated has a profile without costs: no time is beside it, and no multiple of nothing."""
    profile = replace(calm.profile, synthetic=True, latency=Latency())
    found = diagnose(RunData(setup=replace(calm.setup, profile=profile), tables=calm.tables))
    assert found.expected is None and not found.findings
    assert any("tracekit calibrate" in each for each in found.warnings)


def test_a_profile_that_does_not_hold_shows_in_all_iterations(calm: RunData) -> None:
    quick = Latency(**{each.name: getattr(calm.profile.latency, each.name) / 1.6 for each in fields(Latency)})
    profile = replace(calm.profile, synthetic=True, latency=quick)
    effect = unnamed(diagnose(RunData(setup=replace(calm.setup, profile=profile), tables=calm.tables)))[0]
    assert effect.kind == "slow iterations" and effect.what.startswith("all iterations took 1.60 times")


def delayed(data: RunData, t0_s: int, t1_s: int, delay_ns: int) -> RunData:
    """Whoever came in a stretch of time had come that much earlier: what it did meanwhile is in no record."""
    outcomes = data.outcomes.copy()
    late = (outcomes["arrival_ns"] >= t0_s * SECOND) & (outcomes["arrival_ns"] < t1_s * SECOND)
    outcomes["arrival_ns"][late] -= delay_ns
    for name in ("ttft_ns", "e2e_ns", "queue_ns"):
        outcomes[name][late] += delay_ns
    return RunData(setup=data.setup, tables={**data.tables, "outcomes": outcomes})


@pytest.mark.parametrize(("t0", "t1", "delay"), [(10, 25, 400_000_000), (0, 10_000, 90_000_000)])
def test_a_hidden_delay_before_the_engine_shows(calm: RunData, t0: int, t1: int, delay: int) -> None:
    came = calm.outcomes["arrival_ns"]
    late = (came >= t0 * SECOND) & (came < t1 * SECOND)
    effect = unnamed(diagnose(delayed(calm, t0, t1, delay)))[0]
    assert effect.kind == "not_explained" and effect.over_ns == int(late.sum()) * delay
    assert (effect.where.t0_ns, effect.where.t1_ns) == (int(came[late].min()) - delay, int(came[late].max()) - delay)
    assert set(effect.where.requests) <= set(calm.outcomes["request"][late].tolist())


def test_a_wait_that_nothing_is_looked_for_in_is_told_as_one(tmp_path: Path) -> None:
    data = replayed(tmp_path, sets=("batching.mode=static", "batching.size=8"))
    found = diagnose(data)
    effect = unnamed(found)[0]
    waited = data.spans[data.spans["phase"] == int(Phase.queued)]
    assert effect.kind == "waiting" and "queue.batch_window" in effect.what
    assert effect.over_ns == pytest.approx(float((waited["end_ns"] - waited["start_ns"]).sum()), rel=0.2)
    assert "is not explained by anything that is looked for here" in headline(found)
    assert any(line.startswith("besides: requests that came from") for line in three_lines(found, "more"))

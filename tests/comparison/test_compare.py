"""``compare`` on recorded runs: values, verdicts, winners and losers by hand, and what is not comparable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracekit
from tracekit.cli.main import main
from tracekit.comparison import Comparison, NotComparableError
from tracekit.errors import UsageError
from tracekit.experiments.measures import MEASURES
from tracekit.replay import replay
from tracekit.store import Store, load_run, sql

ROOT = Path(__file__).resolve().parents[2]
DEMO = str(ROOT / "examples" / "demo_trace.jsonl.gz")
SLO = "ttft=500ms,tpot=50ms"


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Runs of one trace: 1 base, 2 the same again, 3 with few seats and a bounded queue, 4 half the trace, 5 another profile,
    6 another SLO, 7 without outcomes, 8 a window, 9 the window with few seats."""
    path = str(tmp_path_factory.mktemp("compare") / "a.duckdb")
    bounded = ["max_num_seqs=32", "front_door.max_queued_reqs=40"]
    options: list[dict[str, Any]] = [
        {"name": "base"}, {}, {"sets": bounded, "name": "few"}, {"limit": 1000}, {"profile": "a100"},
        {"slo": "ttft=1s"}, {"events": "none"}, {"window": "90s:200s"}, {"window": "90s:200s", "sets": ["max_num_seqs=8"]},
    ]  # fmt: skip
    for each in options:
        replay(DEMO if each.get("name") == "base" else "demo_trace", **{"slo": SLO, "events": "outcomes", "db": path, **each})
    return path


@pytest.fixture(scope="module")
def few(db: str) -> Comparison:
    return tracekit.compare("base", "few", db=db)


def outcomes(db: str, run: int) -> dict[int, tuple[Any, ...]]:
    rows = sql(
        Store(db), f"SELECT request, state::VARCHAR, ttft_ns, e2e_ns, slo_met, class, tpot_ns FROM outcomes WHERE run = {run}"
    )
    return {row[0]: row[1:] for row in rows.rows}


def test_figures_are_those_of_the_matrices(db: str, few: Comparison) -> None:
    matrices = [load_run(Store(db), run)["matrix"] for run in (1, 3)]
    found = {each["measure"]: each for each in few.document["figures"]}
    assert list(found) == list(MEASURES)
    paths = {
        "ttft_p99": ("latency", "ttft_ns", "p99"), "tpot_p50": ("latency", "tpot_ns", "p50"), "rejections": ("ends", "rejected"),
        "goodput": ("slo", "goodput_requests_per_s"), "attainment": ("slo", "attainment", "share"),
    }  # fmt: skip
    for name, path in paths.items():
        expected: list[Any] = matrices
        for part in path:
            expected = [each[part] for each in expected]
        assert [found[name]["interval"]["base"], found[name]["interval"]["level"]] == pytest.approx(expected), name
    assert found["tpot_p95"]["verdict"] == "better"
    assert found["kv_high_water"]["verdict"] == "cannot tell"
    assert "one number a run" in found["kv_high_water"]["interval"]["why"]


def test_who_won_and_who_lost_by_hand(db: str, few: Comparison) -> None:
    before, after = outcomes(db, 1), outcomes(db, 3)
    contest = few.document["contest"]
    assert contest["requests"] == len(before) == 2000
    for part, at in (("ttft", 1), ("e2e", 2)):
        pairs = [(before[r][at], after[r][at]) for r in before]
        both = np.array([pair for pair in pairs if None not in pair], dtype=float)
        alike = np.abs(both[:, 1] - both[:, 0]) <= 0.01 * both.max(1)
        row = contest["parts"][part]
        assert row["same"] == alike.sum()
        assert row["faster"] == (~alike & (both[:, 1] < both[:, 0])).sum()
        assert row["slower"] == (~alike & (both[:, 1] > both[:, 0])).sum()
        assert row["only_before"] == sum(a is not None and b is None for a, b in pairs)
        assert row["median_change_ns"] == pytest.approx(float(np.median(both[:, 1] - both[:, 0])))
    met = [(before[r][3], after[r][3]) for r in before]
    assert contest["slo"]["won"] == sum(b and not a for a, b in met)
    assert contest["slo"]["lost"] == sum(a and not b for a, b in met)
    assert sum(contest["slo"].values()) == 2000


def test_whoever_ended_otherwise_is_counted_not_dropped(db: str, few: Comparison) -> None:
    before, after = outcomes(db, 1), outcomes(db, 3)
    ends = {(each["before"], each["after"]): each["requests"] for each in few.document["contest"]["ends"]}
    assert sum(ends.values()) == 2000
    assert (
        ends["finished", "rejected"] == sum(b == ("finished") and after[r][0] == "rejected" for r, (b, *_) in before.items()) > 0
    )
    assert "finished -> rejected" in few.text


def test_the_worst_losers_and_best_winners_with_both_values(db: str, few: Comparison) -> None:
    before, after = outcomes(db, 1), outcomes(db, 3)
    change = {r: after[r][2] - before[r][2] for r in before if None not in (before[r][2], after[r][2])}
    losers = [each["request"] for each in few.document["contest"]["losers"]]
    assert [change[r] for r in losers] == sorted(change.values(), reverse=True)[:10]
    first = few.document["contest"]["losers"][0]
    assert first["e2e_ns"] == [before[losers[0]][2], after[losers[0]][2]]
    assert first["class"] == before[losers[0]][4]
    assert f"request {losers[0]} " in few.text
    groups = few.document["contest"]["by_class"]
    assert sum(group["requests"] for group in groups) == 2000
    assert [group["requests"] for group in groups] == sorted((g["requests"] for g in groups), reverse=True)


def test_knobs_that_differ_are_named(few: Comparison) -> None:
    knobs = {each["knob"]: (each["before"], each["after"]) for each in few.document["knobs"]}
    assert knobs["max_num_seqs"] == (1024, 32) and knobs["front_door.max_queued_reqs"] == (None, 40)
    assert "max_num_seqs 1024 -> 32" in few.text and "front_door.max_queued_reqs none -> 40" in few.text


def test_a_run_against_its_like_is_the_same(db: str) -> None:
    found = tracekit.compare(1, 2, db=db)
    assert {each["verdict"] for each in found.document["figures"]} == {"same"}
    assert found.conclusive and found.document["contest"]["parts"]["e2e"]["same"] == 2000
    assert found.document["contest"]["losers"] == [] and "knobs that differ: none" in found.text


def test_a_window_counts_what_its_matrix_counts(db: str) -> None:
    counted = load_run(Store(db), 8)["matrix"]["counted"]
    assert counted["lead_in_requests"] > 0
    found = tracekit.compare(8, 9, db=db)
    assert found.document["requests"] == counted["requests"]
    assert found.document["contest"]["requests"] == counted["requests"]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("4", "the parts of the trace differ: limit None and 1000"),
        ("5", "the profiles differ: name h100-llama-3.1-8b and a100-llama-3.1-8b"),
        ("7", "run 7 keeps no requests (--events none)"),
        ("8", "the parts of the trace differ: window_ns None and"),
    ],
)
def test_what_is_not_comparable_says_why(db: str, capfd: pytest.CaptureFixture[str], other: str, reason: str) -> None:
    with pytest.raises(NotComparableError):
        tracekit.compare("base", other, db=db)
    capfd.readouterr()
    assert main(["compare", "base", other, "--db", db]) == 4
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("tracekit: not comparable: ") and reason in err and len(err.splitlines()) == 1


def test_another_trace_and_engine_are_not_comparable(db: str, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    assert main(["synth", str(path), "--requests", "50", "--db", db]) == 0
    replay(str(path), db=db, events="outcomes", name="stranger")
    with pytest.raises(NotComparableError, match="the traces differ: demo_trace and other"):
        tracekit.compare("base", "stranger", db=db)
    replay("demo_trace", db=db, events="outcomes", name="old", sets=["engine_version=0.24.0"], limit=50)
    replay("demo_trace", db=db, events="outcomes", name="new", limit=50)
    with pytest.raises(NotComparableError, match=r"the engines differ: version vLLM 0\.33\.0 and vLLM 0\.24\.0"):
        tracekit.compare("new", "old", db=db)


def test_other_slos_leave_only_what_does_not_depend_on_them(db: str) -> None:
    found = tracekit.compare(1, 6, db=db)
    verdicts = {each["measure"]: each["verdict"] for each in found.document["figures"]}
    assert verdicts["goodput"] == verdicts["attainment"] == "cannot tell"
    assert verdicts["ttft_p99"] == "same" and found.document["leading"] == "ttft_p99"
    assert found.document["contest"]["slo"] is None and "SLOs differ" in found.text


def test_json_is_the_document_and_missing_runs_are_usage(db: str, capfd: pytest.CaptureFixture[str], few: Comparison) -> None:
    capfd.readouterr()
    code = main(["compare", "1", "3", "--db", db, "--json"])
    document = json.loads(capfd.readouterr().out)
    assert code == (0 if few.conclusive else 4)
    assert document["schema"] == "tracekit.comparison/1"
    assert document["verdict"] == few.document["verdict"] and document["conclusive"] == few.conclusive
    with pytest.raises(UsageError, match="no such run"):
        tracekit.compare(1, 99, db=db)

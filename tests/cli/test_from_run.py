"""``tracekit replay --from-run``: a recorded run once more, and what does not go beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracekit.errors import UsageError
from tracekit.orders import tune_words
from tracekit.replay import replay
from tracekit.store import Store, load_run

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "demo_trace.jsonl.gz"


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    db = str(tmp_path_factory.mktemp("again") / "t.duckdb")
    replay(
        str(EXAMPLE),
        limit=80,
        thin="1/2",
        seed=3,
        db=db,
        engine="sim",
        slo="ttft=500ms",
        sets=("max_num_seqs=4",),
        diagnose=False,
    )
    return db


def test_the_same_run_comes_out_again(db: str) -> None:
    again = replay(from_run="1", db=db, name="again", diagnose=False)
    first, second = load_run(Store(db), 1), load_run(Store(db), again.run)
    for what in ("policy", "slo", "slice", "setup", "seed", "requests", "iterations", "profile"):
        assert first[what] == second[what], what
    with Store(db).read() as con:
        rows = [
            con.execute("SELECT * EXCLUDE (run) FROM outcomes WHERE run = ? ORDER BY request", [run]).fetchall()
            for run in (1, again.run)
        ]
    assert rows[0] == rows[1]


def test_its_traffic_can_be_another_and_is_recorded_as_such(db: str) -> None:
    lines: list[str] = []
    moved = replay(from_run="1", db=db, rate_scale=2.0, burst_scale=0.0, diagnose=False, say=lines.append)
    assert {"traffic.rate_scale 1 -> 2", "traffic.burst_scale 1 -> 0"} <= set(lines)
    store = Store(db)
    first, second = load_run(store, 1), load_run(store, moved.run)
    assert second["slice"] == first["slice"] | {"rate_scale": 2.0, "burst_scale": 0.0}
    again = replay(from_run=str(moved.run), db=db, diagnose=False)
    with store.read() as con:
        known, once_more = (
            con.execute("SELECT request, arrival_ns, e2e_ns FROM outcomes WHERE run = ? ORDER BY request", [run]).fetchall()
            for run in (moved.run, again.run)
        )
    assert known == once_more
    gaps = np.diff([arrival for _, arrival, _ in known])
    assert gaps.max() - gaps.min() <= 2  # rounded for the bursts, and again for the rate
    with pytest.raises(UsageError, match="has --burst-scale 0, and a search takes the trace as it is"):
        tune_words(store, moved.run, trials=3)


def test_what_is_changed_is_said_and_nothing_else_changes(db: str) -> None:
    lines: list[str] = []
    report = replay(from_run="1", sets=("max_num_seqs=16",), db=db, say=lines.append, diagnose=False)
    assert any(line == "policy: max_num_seqs 4 -> 16" for line in lines), lines
    first, second = load_run(Store(db), 1), load_run(Store(db), report.run)
    assert (first["slice"], first["slo"]) == (second["slice"], second["slo"])
    assert second["policy"]["scheduler"]["max_num_seqs"] == 16


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"inputs": str(EXAMPLE)}, "expected no TRACE beside it"),
        ({"engine": "torch"}, "expected --engine sim"),
        ({"limit": 5}, "--limit beside --from-run: that is the run's own"),
        ({"slo": "ttft=1s"}, "--slo beside --from-run"),
        ({"trace_format": "mooncake"}, "--format beside --from-run"),
        ({"sets": ("traffic.rate_scale=2",)}, "expected --rate-scale or --burst-scale"),
        ({"sets": ("max_num_seqs=4",)}, "changes nothing of this run"),
        ({"from_run": "99"}, "99"),
        ({"from_run": None}, "no trace; expected TRACE..., --from-run RUN"),
    ],
)
def test_what_does_not_go_together_is_one_line(db: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        replay(**{"from_run": "1", "db": db, **given})
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)

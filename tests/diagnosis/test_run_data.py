"""What a diagnosis reads is the same whether the replay is in the store or was just made in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from replay_engine.tables import TABLES
from replay_engine.types import RequestState
from tracekit.diagnosis import RunData, load_run_data
from tracekit.diagnosis.stored import setup_of
from tracekit.errors import UsageError
from tracekit.metrics.slo import UNLIMITED
from tracekit.replay import replay
from tracekit.store import Store, load_run, sql

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "demo_trace.jsonl.gz"
SMALL = ("num_gpu_blocks=400", "max_num_batched_tokens=512", "max_num_seqs=16", "max_model_len=6000")
RUNS: dict[str, dict[str, object]] = {
    "one engine": {"sets": SMALL},
    "a window": {"sets": SMALL, "window": "20s:60s"},
    "thinned, faster": {"thin": "1/2", "rate_scale": 3.0, "seed": 4},
    "larger first": {"sets": (*SMALL, "policy=priority", "order.larger_first=true")},
    "a fleet": {"replicas": 3, "router": "least_tokens", "fail": ("replica1@20s:10s",)},
    "separate pools": {"pd": "1:2", "sets": ("kv_link.gb_per_s=2",)},
}


@pytest.mark.parametrize("which", RUNS)
def test_a_stored_run_can_be_replayed_again_exactly(tmp_path: Path, which: str) -> None:
    db = str(tmp_path / "t.duckdb")
    report = replay(str(EXAMPLE), slo="ttft=500ms,tpot=50ms", limit=150, db=db, engine="sim", **RUNS[which])  # type: ignore[arg-type]
    stored = load_run_data(Store(db), "last")
    again = RunData.replayed(stored.setup)
    assert (stored.run, stored.state, again.state) == (report.run, "finished", "finished")
    for table in TABLES:
        one, other = stored.tables[table], again.tables[table]
        assert len(one) == len(other), table
        for name in one.dtype.names or ():
            assert np.array_equal(one[name], other[name], equal_nan=one[name].dtype.kind == "f"), (table, name)
    assert len(again.iterations) and len(again.spans) and len(again.outcomes)
    assert np.array_equal(stored.counted, again.counted)
    assert stored.slo_parts == ("ttft", "tpot")
    assert stored.slo_result is not None and again.slo_result is not None
    assert np.array_equal(stored.slo_result.met, again.slo_result.met)
    met = sql(Store(db), "SELECT slo_met FROM outcomes ORDER BY request").rows
    assert [row[0] for row in met] == stored.slo_result.met.tolist()
    assert set(stored.limits_ns("ttft")) == {500_000_000}
    assert set(stored.limits_ns("e2e")) == {UNLIMITED}


def test_rows_stand_in_order(tmp_path: Path) -> None:
    db = str(tmp_path / "t.duckdb")
    replay(str(EXAMPLE), limit=120, db=db, engine="sim", replicas=2, sets=SMALL)
    data = load_run_data(Store(db), "last")
    assert data.replicas == (0, 1)
    for replica in data.replicas:
        own = data.iterations[data.iterations["replica"] == replica]
        assert np.all(np.diff(own["iteration"]) >= 1)  # a plan made in vain leaves a number out
        assert np.all(np.diff(own["start_ns"]) >= own["duration_ns"][:-1])
        assert data.engine_of(replica).num_gpu_blocks == 400
    assert np.all(np.diff(data.outcomes["request"]) == 1)
    spans = data.spans
    same = spans["request"][1:] == spans["request"][:-1]
    assert np.array_equal(spans["start_ns"][1:][same], spans["end_ns"][:-1][same])
    finished = data.outcomes["state"] == RequestState.finished
    assert np.all(data.outcomes["ttft_ns"][finished] > 0)
    assert data.slo_parts == () and data.slo_result is None


def test_what_cannot_be_diagnosed_is_said(tmp_path: Path) -> None:
    db = str(tmp_path / "t.duckdb")
    replay(str(EXAMPLE), limit=20, db=db, engine="sim", events="none")
    with pytest.raises(UsageError, match="keeps no requests"):
        load_run_data(Store(db), "last")
    row = load_run(Store(db), 1)
    with pytest.raises(UsageError, match="older version"):
        setup_of(Store(db), {**row, "setup": None})

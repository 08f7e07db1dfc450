"""What iterations' time went into: it sums to their durations, explains all of a simulated run, and SQL says the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from replay_engine.config import SchedulerConfig
from replay_engine.profile import Latency, load_profile
from tests.engine.policy_runs import knobs, tell
from tests.engine.traffic import Row, latencies, schedulers, traffic
from tracekit.calibration.recorded import calibrate_run
from tracekit.diagnosis import load_run_data
from tracekit.diagnosis.iteration_cost import CostForm
from tracekit.diagnosis.time_split import PARTS, TimeSplit, split_rows, time_split
from tracekit.replay import replay
from tracekit.store import Store, sql

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "demo_trace.jsonl.gz"
PLAIN: dict[str, object] = {"profile": "h100"}
SMALL = ("num_gpu_blocks=400", "max_num_batched_tokens=512", "max_num_seqs=16", "max_model_len=6000")


@settings(max_examples=100, deadline=None)
@given(rows=traffic(), config=schedulers(), latency=latencies)
def test_parts_sum_to_durations_and_leave_nothing(rows: list[Row], config: SchedulerConfig, latency: Latency) -> None:
    iterations = tell(rows, config, latency=latency).iterations
    parts = split_rows(iterations, CostForm(latency, config.async_scheduling))
    assert np.array_equal(parts.sum(axis=1), iterations["duration_ns"])
    assert parts[:, :-1].min(initial=0) >= 0
    assert np.abs(parts[:, -1]).max(initial=0) <= 3  # each term is rounded, and so was their sum


def test_by_value_what_binds() -> None:
    latency = Latency(floor_ns=1000.0, b_ns=100.0, c_ns=1.0, d_ns=10.0, e_ns=2.0, h0_ns=300.0)
    told = tell([Row(0, 40, 3), Row(0, 20, 1)], knobs(max_num_batched_tokens=60), latency=latency)
    parts = split_rows(told.iterations, CostForm(latency, asynchronous=False))
    # 60 prompt tokens: 6,000 ns of which 1,000 fit under the weights; 40 x 20 + 20 x 10 of attention; then decodes of 40 and 41
    assert parts.tolist() == [
        [1000, 5000, 1000, 0, 0, 300, 0],
        [1000, 0, 0, 2 * 41, 10, 300, 0],
        [1000, 0, 0, 2 * 42, 10, 300, 0],
    ]
    split = TimeSplit(told.iterations["start_ns"].astype(np.int64), parts)
    assert split.bound(0, 1) == ("compute", 6000 / 7300)
    assert split.bound(1)[0] == "memory"
    assert split.between(1)["host"] == 600
    assert split.bound(10**9) == ("idle", 0.0)
    assert sum(split.between().values()) == int(told.iterations["duration_ns"].sum())


@pytest.mark.parametrize("options", [PLAIN, {}, {"pd": "1:2", "sets": (*SMALL, "kv_link.gb_per_s=2")}, {"replicas": 2}])
def test_the_view_says_the_same(tmp_path: Path, options: dict[str, object]) -> None:
    db = str(tmp_path / "t.duckdb")
    more = load_profile("h100")
    more = replace(more, latency=replace(more.latency, p_ns=123_456.7, s_ns=321.5))
    (tmp_path / "more.toml").write_text(more.to_toml(), "utf-8")
    given = {"sets": SMALL, **({} if options == PLAIN else {"profile": tmp_path / "more.toml"}), **options}
    replay(str(EXAMPLE), limit=80, db=db, engine="sim", **given)  # type: ignore[arg-type]
    data = load_run_data(Store(db), "last")
    split = time_split(data)
    columns = ", ".join("exposed_host_ns" if name == "host" else f"{name}_ns" for name in PARTS)
    found = sql(Store(db), f"SELECT {columns} FROM iterations_split WHERE run = 1 ORDER BY replica, iteration").rows
    assert np.array_equal(np.array(found), split.parts)
    assert np.array_equal(split.parts.sum(axis=1), data.iterations["duration_ns"])
    longest = sql(Store(db), "SELECT count(decode_longest_tokens), max(decode_longest_tokens) FROM iterations").rows[0]
    if options == PLAIN:
        assert longest == (0, None)
        return
    assert longest[0] == len(found) and longest[1] > 1000
    if not options:  # all the device's time is accounted for, and a fit to the run finds what padding and the longest cost
        assert (np.abs(split.parts[:, -1]) <= 5).all()
        latency = calibrate_run("last", db=db).profile.latency
        assert latency.p_ns == pytest.approx(123_456.7, rel=0.01)
        assert latency.s_ns == pytest.approx(321.5, rel=0.01)
    if "replicas" in options:
        assert (np.abs(split.parts[:, -1]) <= 5).all()

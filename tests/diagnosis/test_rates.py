"""Figures that mislead: a mean that falls as load grows, percentiles of few, failures that look fast."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from replay_engine.profile import load_profile
from replay_engine.types import RequestState
from tests.diagnosis.loads import CHAT, setup_of_recipe
from tracekit.diagnosis import RunData
from tracekit.diagnosis.rates import Load, falls_with_load, loads_of
from tracekit.diagnosis.remarks import warnings_of
from tracekit.diagnosis.run import diagnose
from tracekit.diagnosis.view import View
from tracekit.replay import replay
from tracekit.store import Store, sql

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "demo_trace.jsonl.gz")
BATCHES = ("batching.mode=dynamic", "batching.size=4", "batching.window_s=20")
"""A batch is begun when it is full or its window is over: the more come, the sooner it is full."""


@pytest.mark.parametrize(("sets", "falls"), [(BATCHES, True), ((), False)])
def test_a_mean_that_falls_with_load_is_warned_of(sets: tuple[str, ...], falls: bool, tmp_path: Path) -> None:
    db = str(tmp_path / "t.duckdb")
    for rate in (0.01, 0.1):
        replay(EXAMPLE, limit=100, db=db, engine="sim", sets=(*sets, "enable_prefix_caching=false"), rate_scale=rate)
        if rate == 0.01:
            alone = diagnose("last", prove_iterations=None, db=db).document
            assert any("no run of this trace at another rate is recorded" in each for each in alone["remarks"])
    replay(EXAMPLE, limit=100, db=db, engine="sim", sets=("max_num_seqs=3",), rate_scale=1.0)  # another policy is no comparison
    loads = loads_of(Store(db), 1)
    assert [load.rate for load in loads] == [0.01, 0.1] == [load.rate for load in loads_of(Store(db), 2)]
    means = [row[0] for row in sql(Store(db), "SELECT avg(ttft_ns) FROM outcomes WHERE run < 3 GROUP BY run ORDER BY run").rows]
    assert [load.ttft_ns for load in loads] == pytest.approx([float(each or 0) for each in means])
    document = diagnose("1", prove_iterations=None, db=db).document
    said = [each for each in document["warnings"] if "the mean time to the first token falls" in each]
    assert bool(said) == falls == (loads[1].ttft_ns < loads[0].ttft_ns)
    assert all("from 0.01 to 0.1 times the trace's" in each for each in said)
    assert not any("falls with load" in each for each in document["remarks"])


def test_two_profiles_of_one_name_are_no_comparison(tmp_path: Path) -> None:
    """Calibrated profiles are called after what they were made from: only their numbers tell them apart."""
    db = str(tmp_path / "t.duckdb")
    fast = load_profile("h100")
    slow = replace(fast, latency=replace(fast.latency, h0_ns=3 * fast.latency.h0_ns))
    for rate, profile in ((0.1, slow), (1.0, fast)):
        path = tmp_path / "p.toml"
        path.write_text(profile.to_toml())
        replay(EXAMPLE, limit=50, db=db, profile=str(path), engine="sim", rate_scale=rate, diagnose=False)
    assert [load.rate for load in loads_of(Store(db), 1)] == [0.1]


def test_only_a_fall_is_a_warning() -> None:
    def at(*means: float) -> tuple[Load, ...]:
        return tuple(Load(k + 1.0, 100, mean, 2 * mean, mean / 2) for k, mean in enumerate(means))

    assert falls_with_load(at(1e9)) == falls_with_load(at(1e9, 1e9, 2e9)) == falls_with_load(at(1e9, 0.98e9)) == ()
    found, = falls_with_load(at(1e9, 0.9e9, 3e9, 1.5e9))  # fmt: skip
    assert "from 3 s to 1.5 s" in found.replace("3.00", "3").replace("1.50", "1.5") and "from 3 to 4 times" in found


def test_failures_that_look_fast_are_counted(tmp_path: Path) -> None:
    """A bound of the queue turns requests away at once: their rows must not be read as the fastest."""
    data = RunData.replayed(setup_of_recipe(CHAT, tmp_path, sets=("front_door.max_queued_reqs=3",)))
    turned = int((data.outcomes["state"] == int(RequestState.rejected)).sum())
    assert turned > 10
    said, = (each for each in warnings_of(View(data)) if "did not finish" in each)  # fmt: skip
    assert said.startswith(f"{turned} requests did not finish") and f"{turned} of them ended within" in said
    assert "in a mean over all rows they are the fastest" in said


def test_those_that_failed_slowly_are_not_called_fast(tmp_path: Path) -> None:
    data = RunData.replayed(setup_of_recipe(CHAT, tmp_path, sets=("front_door.timeout_s=6",)))
    lost = data.outcomes["state"] != int(RequestState.finished)
    assert lost.any()
    said, = (each for each in warnings_of(View(data)) if "did not finish" in each)  # fmt: skip
    assert said.startswith(f"{int(lost.sum())} requests did not finish") and "ended within" not in said


def test_percentiles_of_few_are_named(tmp_path: Path) -> None:
    data = RunData.replayed(setup_of_recipe(CHAT, tmp_path))
    said = warnings_of(View(data))
    assert "a 99th percentile of 360 requests rests on 3 of them" in said
    assert "class code: its 95th percentile of 60 requests rests on 3 of them" in said
    assert not any("class chat" in each for each in said)
    many = replace(data, tables={**data.tables, "outcomes": np.tile(data.outcomes, 10)})
    assert not any("percentile of" in each for each in warnings_of(View(many)))

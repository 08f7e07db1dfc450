"""Where time should go: queues counted by hand, an unhindered engine that does as expected, and a hindered one that shows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.diagnosis.test_run_data import SMALL
from tracekit.diagnosis import Blame, RunData, load_run_data
from tracekit.diagnosis.expectation import expect, shared_time, waits_in_line
from tracekit.replay import replay
from tracekit.store import Store

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "demo_trace.jsonl.gz"
jobs = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 80)), min_size=1, max_size=30)


@settings(max_examples=200, deadline=None)
@given(rows=jobs)
def test_a_line_is_served_one_after_the_other(rows: list[tuple[int, int]]) -> None:
    ready, work = np.array([at for at, _ in rows]), np.array([float(own) for _, own in rows])
    found = waits_in_line(ready, work)
    free = 0.0
    for k in np.argsort(ready, kind="stable"):
        begins = max(float(ready[k]), free)
        assert found[k] == begins - ready[k]
        free = begins + work[k]


@settings(max_examples=200, deadline=None)
@given(rows=jobs, alone=st.integers(1, 100), most=st.integers(0, 500))
def test_a_stretch_grows_by_the_work_that_comes_while_it_lasts(rows: list[tuple[int, int]], alone: int, most: int) -> None:
    ready, work = np.array([at for at, _ in rows]), np.array([float(own) for _, own in rows])
    begin = np.array([100.0])
    shared = shared_time(begin, np.array([float(alone)]), ready, work, np.array([float(most)]))[0]
    came = work[(ready > 100) & (ready <= 100 + alone + shared)].sum()
    assert 0 <= shared <= most
    assert shared == min(came, most)


def replayed(tmp_path: Path, **options: object) -> RunData:
    db = str(tmp_path / "t.duckdb")
    replay(str(EXAMPLE), limit=200, db=db, engine="sim", **options)  # type: ignore[arg-type]
    return load_run_data(Store(db), "last")


def test_an_unhindered_engine_does_as_expected(tmp_path: Path) -> None:
    data = replayed(tmp_path)
    found = expect(data)
    assert 0 < found.load < 0.7
    actual = float(data.outcomes["e2e_ns"].sum())
    expected = float((found.alone_first + found.wait + found.alone_later + found.shared).sum())
    assert expected == pytest.approx(actual, rel=0.15)
    beside = found.beside(Blame.of(data).within())
    assert beside["decode"][0] == pytest.approx(beside["decode"][1], rel=0.15)
    assert sum(told for _, told in beside.values()) == pytest.approx(actual)


def test_a_hindrance_shows_with_its_size_and_place(tmp_path: Path) -> None:
    plain = (*SMALL, "enable_prefix_caching=false")
    free = expect(replayed(tmp_path, sets=plain))
    data = replayed(tmp_path, sets=(*plain, "max_num_seqs=2"))
    found = expect(data)
    assert np.array_equal(free.wait, found.wait)  # arrivals and costs are the same
    waited = found.beside(Blame.of(data).within())
    name, (expected, actual) = next(iter(waited.items()))
    assert name == "waiting" and actual > 20 * max(expected, 1e9)
    worst = found.worst()
    assert worst is not None and 0 < worst.share <= 1
    over = np.nan_to_num(found.over_first)[worst.requests]
    assert over.mean() > np.nanmean(found.over_first)
    inside = data.outcomes["arrival_ns"][worst.requests]
    assert (inside >= worst.t0_ns).all() and (inside < worst.t1_ns).all()


def test_pools_and_clients_that_hold_back(tmp_path: Path) -> None:
    pools = replayed(tmp_path, pd="1:2", sets=(*SMALL, "kv_link.gb_per_s=0.05"))
    blame = Blame.of(pools).within()
    beside = expect(pools).beside(blame)
    assert beside["transfer"][0] == 0.0 and beside["transfer"][1] == float(blame.of("transfer").sum()) > 0
    held = replayed(tmp_path, sets=("client.max_in_flight=2",))
    blame = Blame.of(held).within()
    before, after = expect(held), expect(held, blame.of("dispatch"))
    assert after.beside(blame)["dispatch"][1] == float(blame.of("dispatch").sum()) > 0
    assert after.wait.sum() <= before.wait.sum()  # it came later, and more evenly

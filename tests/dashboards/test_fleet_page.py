"""The Fleet page by value: real runs of several engines, held against SQL and against a sweep written out plainly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboards.fleet_figures import heat_figure, imbalance_figure, link_figure, stages_figure
from dashboards.fleet_rows import heats_of, imbalance_of, link_of, stages_of, together_of
from dashboards.pages import fleet
from dashboards.palette import DARK, LIGHT
from dashboards.queries import RunBook
from dashboards.time_sums import between
from tracekit.cli.main import main
from tracekit.replay import replay
from tracekit.store import load_run, sql

SLO = "ttft=1s,stall=60ms"


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> RunBook:
    """Run 1: four replicas, one of them down for a while; run 2: one prefill and two decode engines with a slow link; run 3: one
    engine."""
    folder = tmp_path_factory.mktemp("fleet")
    trace = folder / "t.jsonl"
    assert main(["synth", str(trace), "--requests", "200", "--arrival", "gamma:rate=30,cv=2", "--input",
                 "lognormal:median=2500,sigma=0.8", "--output", "lognormal:median=60,sigma=0.5", "--seed", "2"]) == 0  # fmt: skip
    db = folder / "t.duckdb"
    common: dict[str, Any] = {"db": str(db), "slo": SLO, "engine": "sim", "diagnose": False}
    seats = ("max_num_seqs=8",)
    replay(str(trace), replicas=4, router="round_robin", fail=("replica1@2s:2s",), sets=seats, **common)
    replay(str(trace), pd="1:2", sets=(*seats, "kv_link.gb_per_s=5", "kv_link.concurrent=1"), **common)
    replay(str(trace), limit=30, **common)
    return RunBook(db)


def rows(book: RunBook, query: str) -> list[Any]:
    return list(sql(book.store, query).rows)


def test_the_part_of_intervals_in_each_bin() -> None:
    rng = np.random.default_rng(3)
    start = rng.integers(0, 1000, 200)
    stop = start + rng.integers(0, 300, 200)
    weight = rng.random(200)
    edges = np.linspace(-50, 1200, 33)
    plain = [
        sum(w * max(0.0, min(b, high) - max(a, low)) for a, b, w in zip(start, stop, weight, strict=True))
        for low, high in zip(edges[:-1], edges[1:], strict=True)
    ]
    np.testing.assert_allclose(between(edges, start, stop, weight), plain, atol=1e-8)


@pytest.mark.parametrize("run", ["1", "2"])
def test_heat_maps_hold_the_whole_run_and_share_a_scale(book: RunBook, run: str) -> None:
    heats = heats_of(book.data(run))
    assert [heat.what for heat in heats] == ["waiting", "running", "kv"]
    engines = ("replica 0", "replica 1", "replica 2", "replica 3") if run == "1" else ("P0", "D0", "D1")
    for heat in heats[:2]:
        assert heat.engines == engines and heat.most == np.nanmax(heat.values)
        query = (
            f"SELECT replica, sum({heat.what}::DOUBLE * duration_ns) / 1e9 FROM iterations WHERE run = {run} GROUP BY replica"
        )
        told = dict(rows(book, query))
        for replica in range(len(engines)):
            own = float((heat.values[replica] * np.diff(heat.edges_s)).sum())
            assert own == pytest.approx(told.get(replica, 0.0), rel=1e-6)
    kv = heats[2]
    assert kv.most == 1.0 and np.nanmax(kv.values) <= 1.0
    if run == "1":  # nothing runs while it is down, once the iteration under way has ended
        down = (kv.edges_s[:-1] > 2.6) & (kv.edges_s[1:] < 4.0)
        assert down.any() and np.isnan(kv.values[1][down]).all()


@pytest.mark.parametrize("run", ["1", "2"])
def test_queue_and_idle_at_once_against_a_plain_sweep(book: RunBook, run: str) -> None:
    data = book.data(run)
    (found,) = together_of(data)
    members = range(4) if run == "1" else range(1, 3)
    query = f"SELECT replica, start_ns, start_ns + duration_ns, waiting FROM iterations WHERE run = {run} ORDER BY start_ns"
    spans = rows(book, query)
    begin, end = min(row[1] for row in spans), max(row[2] for row in spans)
    down = {1: (2_000_000_000, 4_000_000_000)} if run == "1" else {}
    times = sorted(
        {begin, end, *(t for row in spans for t in row[1:3]), *(t for pair in down.values() for t in pair if begin < t < end)}
    )
    busy: dict[int, dict[int, int]] = {}
    for replica in members:
        covered: dict[int, int] = {}
        own = iter([row for row in spans if row[0] == replica])
        now = next(own, None)
        for t in times[:-1]:
            while now is not None and now[2] <= t:
                now = next(own, None)
            if now is not None and now[1] <= t:
                covered[t] = now[3]
        busy[replica] = covered
    both = lost = queue = 0
    for t, after in zip(times[:-1], times[1:], strict=True):
        queued = any(busy[replica].get(t, 0) > 0 for replica in members)
        idle = [r for r in members if t not in busy[r] and not (r in down and down[r][0] <= t < down[r][1])]
        queue += (after - t) * queued
        both += (after - t) * (queued and bool(idle))
        lost += (after - t) * len(idle) * queued
    assert (found.queue_s, found.both_s, found.lost_s) == pytest.approx((queue / 1e9, both / 1e9, lost / 1e9), abs=1e-9)
    assert found.span_s == pytest.approx((end - begin) / 1e9)
    if run == "1":
        assert found.both_s > 0


def test_imbalance_is_the_fullest_over_the_mean(book: RunBook) -> None:
    (found,) = imbalance_of(book.data("1"))
    assert found.engines == 4 and found.pool == "all replicas"
    told = load_run(book.store, 1)["matrix"]["fleet"]["imbalance_tokens"]
    assert found.whole == pytest.approx(told, rel=1e-9)
    known = found.ratio[~np.isnan(found.ratio)]
    assert (known >= 1).all() and (known <= 4).all()
    (decode,) = imbalance_of(book.data("2"))
    assert decode.pool == "decode" and decode.engines == 2


def test_the_stages_of_ttft_sum_to_it_and_are_the_matrix_s(book: RunBook) -> None:
    found = stages_of(book.data("2"))
    assert [each.group for each in found] == ["all", "slowest 10 %"] and [each.n for each in found] == [200, 20]
    for each in found:
        assert sum(value for _, value in each.seconds) == pytest.approx(each.ttft_s, rel=1e-9)
    shares = load_run(book.store, 2)["matrix"]["pools"]["stage_shares"]
    assert {name: value / found[0].ttft_s for name, value in found[0].seconds} == pytest.approx(shares)
    ((mean,),) = rows(
        book, "SELECT avg(ttft_ns) / 1e9 FROM (SELECT ttft_ns FROM outcomes WHERE run = 2 ORDER BY ttft_ns DESC LIMIT 20)"
    )
    assert found[1].ttft_s == pytest.approx(mean)
    assert stages_of(book.data("1")) == ()


def test_the_link_by_sql(book: RunBook) -> None:
    link = link_of(book.data("2"))
    assert link is not None
    sums = "count(*), sum(bytes) / 1e9, avg(start_ns - asked_ns) / 1e9, sum(end_ns - start_ns) / 1e9"
    query = f"SELECT {sums} FROM transfers WHERE run = 2"
    ((n, moved, wait, lasted),) = rows(book, query)
    assert (link.transfers, link.broken_off) == (n, 0)
    assert (link.moved_gb, link.wait_s) == pytest.approx((moved, wait))
    width = np.diff(link.edges_s)
    assert float((link.gb_per_s * width).sum()) == pytest.approx(moved, rel=1e-6)
    assert float((link.moving * width).sum()) == pytest.approx(lasted, rel=1e-6)
    assert link.effective_gb_per_s == pytest.approx(moved / lasted) and link.moving.max() <= 1.0 + 1e-9  # one at a time
    ((tokens, busy),) = rows(book, "SELECT sum(prefill_tokens), sum(duration_ns) FROM iterations WHERE run = 2 AND replica = 0")
    assert link.kb_per_token is not None
    assert link.break_even == pytest.approx(link.kb_per_token * 1e3 * float(tokens) / float(busy))
    assert link_of(book.data("1")) is None


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_of_each_run(book: RunBook, theme: str) -> None:
    for run, names in (("1", ("fl-waiting", "fl-running", "fl-kv", "fl-imbalance")), ("2", ("fl-stages", "fl-link"))):
        said, body = fleet.render(book, f"?run={run}", theme)
        text = json.dumps(body, default=lambda each: each.to_plotly_json())
        assert all(f'"{name}"' in text for name in names) and "NaN" not in text
    assert said == "1 prefill and 2 decode engines; routers least_tokens and least_tokens."
    assert fleet.render(book, "?run=3", theme) == (fleet.ONE, None)
    assert "no such run" in fleet.render(book, "?run=99", theme)[0]
    look = {"light": LIGHT, "dark": DARK}[theme]
    data, link = book.data("2"), link_of(book.data("2"))
    assert link is not None
    figures = [heat_figure(heats_of(data)[0], look), imbalance_figure(imbalance_of(data), look),
               stages_figure(stages_of(data), look), link_figure(link, look)]  # fmt: skip
    for figure in figures:
        assert len(json.dumps(figure)) < 100_000 and figure["layout"]["paper_bgcolor"] == look.paper


def test_a_run_without_iterations_says_so(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    assert main(["synth", str(trace), "--requests", "20", "--seed", "1"]) == 0
    replay(str(trace), replicas=2, router="round_robin", events="outcomes", db=str(tmp_path / "t.duckdb"), engine="sim")
    assert "kept no iterations" in fleet.render(RunBook(tmp_path / "t.duckdb"), "", "light")[0]

"""Somebody who has never seen the pages, led by what they say: from a slow run to the cause, the fix and the proof."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dashboards.words import seconds
from tests.dashboards.browser import serving
from tests.dashboards.tour import run_demo, walk
from tests.dashboards.watched import Watched
from tracekit.jobs import list_jobs
from tracekit.store import Store, sql

P99 = "SELECT quantile_cont(ttft_ns, 0.99) / 1e9 FROM outcomes WHERE run = {run} AND class = 'interactive'"
FLAG = "--long-prefill-token-threshold 4096"

pytestmark = pytest.mark.slow


def number(store: Store, query: str) -> float:
    ((value,),) = sql(store, query).rows
    return float(str(value))


def test_the_way_from_a_slow_run_to_the_proof(tmp_path: Path, browser: Any) -> None:
    db = tmp_path / "demo.duckdb"
    said = run_demo(db)
    assert FLAG in said[1] and "replayed   confirmed" in said[1]
    store, seen = Store(db), {}
    with serving(db) as url:
        context = browser.new_context(viewport={"width": 1180, "height": 900})
        watched = Watched(context.new_page(), url)
        for step in walk(watched.page, url):
            seen[step.name] = " ".join(watched.page.inner_text("main").split())
        assert watched.wrong == []
        context.close()
    before, after = (seconds(number(store, P99.format(run=run))) for run in (1, 2))
    missed = number(store, "SELECT avg((NOT slo_met)::INT) FROM outcomes WHERE run = 1")
    assert f"{missed:.1%} of its requests missed".replace("%", " %") in seen["runs"]
    cause = seen["verdict"]
    assert "HOL_LONG_PROMPT: " in cause and "of the waiting time of the slowest short requests" in cause
    assert f"What to change: {FLAG} · ✓ confirmed by replay, TTFT P99 {before} → {after}" in cause
    assert "What it costs: long prompts take" in cause
    assert "Where the time should go, and where it went" in cause
    assert re.search(r"selected requests waited .+ together, [\d.]+ % of it in this window", seen["timeline"])
    assert f"TTFT P99 {before} {after}" in seen["change"] and "of its excess is gone" in seen["change"]
    assert "long_prefill_token_threshold 0 4096" in seen["proof"]  # the only knob that differs
    assert re.search(r"Attainment [\d.]+ % [\d.]+ % \+[^▲▼]+▲ better", seen["proof"])
    assert [job.state for job in list_jobs(store.folder)][-1] == "finished"
    assert number(store, "SELECT count(*) FROM runs") == 2

"""The Tuner page in a real browser: brushed, opened at a trial, a trial replayed from the page, and looked at afterwards."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from benchmarks.dashboard_tuner import brush
from benchmarks.page_studies import made_study, many_rows
from dashboards.queries import RunBook
from dashboards.work import UNDER_WAY, start_job
from tests.dashboards.browser import serving
from tests.dashboards.watched import Watched
from tracekit import jobs
from tracekit.cli.main import main
from tracekit.jobs import Job
from tracekit.store import Store
from tracekit.studies import list_studies
from tuner import replay_trial

LINES = """() => [...document.querySelectorAll('#tn-ways .scatterlayer > .trace .lines path')].slice(1, 3)
    .map(path => (path.getAttribute('d').match(/M(?!0,0)/g) || []).length)"""
"""How many trials each of the two paths of chosen lines has."""
DOTS = """() => [...document.querySelectorAll('#tn-history path.dots:not(.faded)')]
    .map(path => (path.getAttribute('d').match(/M/g) || []).length).reduce((a, b) => a + b, 0)"""
"""How many points of the history stand out."""
SAID = "said => document.getElementById('tn-chosen')?.textContent === said"
READY = """() => { const figure = document.querySelector('#tn-ways .js-plotly-plot');
    return figure && figure._fullLayout && figure.dataset.heard === 'yes'; }"""


def test_brushes_add_up_stand_in_the_address_and_mark_the_other_figures(
    store: Store,
    watch: Callable[..., Watched],
) -> None:
    rows = many_rows(300)
    made_study(store, rows)
    budgets = [2048, 4096]
    seats = [128, 256]
    one = {r["number"] for r in rows if r["estimate"] is not None and r["point"]["max_num_batched_tokens"] in budgets}
    both = {r["number"] for r in rows if r["number"] in one and r["point"]["max_num_seqs"] in seats}
    known = sum(row["estimate"] is not None for row in rows)
    complete = sum(row["state"] == "complete" for row in rows)
    with serving(store.path) as url:
        page = watch(url).open("tuner").page
        page.wait_for_function(READY)
        page.locator("#tn-ways").scroll_into_view_if_needed()
        brush(page, 0, 0.2, 0.8, 4)
        page.wait_for_function("n => document.getElementById('tn-chosen').textContent.startsWith(n + ' of')", arg=str(len(one)))
        assert sum(page.evaluate(LINES)) == len(one)
        brush(page, 1, 0.4, 1.01, 4)
        said = f"{len(both)} of {known} trials are marked"
        page.wait_for_function(SAID, arg=said)
        assert re.search(r"br=0:0\.\d+-0\.\d+,1:0\.\d+-1$", page.url), page.url
        marked = "() => document.querySelector('#tn-history .js-plotly-plot').data.flatMap(t => t.selectedpoints || []).length"
        assert page.evaluate(marked) == len(both)
        assert page.evaluate(DOTS) == len(both)
        assert page.evaluate("() => dash_ag_grid.getApi('tn-grid').getDisplayedRowCount()") == len(both)
        page.reload()
        page.wait_for_function(SAID, arg=said)
        page.locator("#tn-clear").click()
        page.wait_for_function("() => document.getElementById('tn-chosen').textContent === ''")
        assert sum(page.evaluate(LINES)) == known and "br=" not in page.url
        for chart, series, wanted in (("tn-ways", "all trials", known * 4), ("tn-history", "complete", complete)):
            with page.expect_download() as got:  # what Plotly does not draw is saved all the same
                page.click(f"[data-chart={chart}][data-export=csv]")
            rows = list(csv.reader(Path(got.value.path()).read_text(encoding="utf-8").splitlines()))
            assert sum(row[0] == series and "" not in row[1:3] for row in rows) == wanted


def held_amid(store: Store, words: list[str], least: int, wanted: int) -> tuple[str, int]:
    """A search that stands still amid its trials, so that the test has time: its job and process. One that went on to its end
    before it could be held is left, and another is begun, with another seed."""
    for seed in range(20):
        job = start_job(RunBook(store.path), "tune", [*words, f"--seed={seed}", f"--db={store.path}"])

        def trials(job: str = job) -> int:
            return next((len(study.trials) for study in list_studies(store) if study.job is not None and study.job.id == job), 0)

        while (found := jobs.show(store.folder, job)).state in UNDER_WAY and (found.pid is None or trials() < least):
            time.sleep(0.01)
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(found.pid)
            process.suspend()
            while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                time.sleep(0.01)
            if process.status() == psutil.STATUS_STOPPED and least <= trials() < wanted:
                return job, process.pid
            process.resume()
        while jobs.show(store.folder, job).state in UNDER_WAY:
            time.sleep(0.01)
    raise AssertionError(found)


def test_a_search_is_watched_killed_resumed_and_its_trials_are_looked_at(tmp_path: Path, watch: Callable[..., Watched]) -> None:
    trace = tmp_path / "short.jsonl"
    assert main(["synth", str(trace), "--requests", "120", "--arrival", "gamma:rate=8,cv=2", "--input",
                 "lognormal:median=2500,sigma=0.8", "--output", "lognormal:median=60,sigma=0.5", "--seed", "2"]) == 0  # fmt: skip
    store = Store(tmp_path / "t.duckdb")
    words = ["tune", str(trace), "--slo=ttft=1s,stall=60ms", "--windows=2", "--holdout=1", "--trials=4", "--workers=1"]
    with serving(store.path) as url:
        job, pid = held_amid(store, words, 2, 4)
        shown = watch(url).open(f"tuner?study={job}")
        page = shown.page
        shown.until("tn-said", "^Searching: [23] of 4 trials")
        page.wait_for_function(READY)
        lines = page.evaluate(LINES)
        page.evaluate("() => window.scrollTo(0, 200)")
        os.kill(pid, signal.SIGKILL)
        assert "trials are kept" in shown.until("tn-said", "^Killed: its process is gone")
        assert "Go on with the search" in shown.until("tn-answer", "^No answer: the search ended before")
        assert page.evaluate(LINES) == lines and page.evaluate("() => window.scrollY") == 200
        page.get_by_role("button", name="Go on with the search").click()
        shown.until("tn-said", "^Finished: 4 of 4 trials")
        shown.until("tn-answer", "CHANGE")
        replay_trial("last", 0, db=store.path)
        page.locator("#tn-grid .ag-row[row-index='2'] [role=gridcell]").first.click()
        page.get_by_role("button", name="Replay this trial with every event").click()
        page.get_by_role("link", name="Beside the current policy").wait_for(timeout=120_000)
        page.get_by_role("link", name="Its Verdict").click()
        page.wait_for_function(r"() => /\S/.test(document.getElementById('vd-said')?.textContent)")
        assert "/verdict?run=2" in page.url
        page.go_back()
        page.get_by_role("link", name="Its Timeline").click()
        page.wait_for_function("() => document.querySelectorAll('#timeline .scatterlayer .trace path.js-fill').length >= 5")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_readable_in_both_themes_and_on_a_phone(
    store: Store,
    watch: Callable[..., Watched],
    scheme: str,
) -> None:
    made_study(store, many_rows(60))
    with serving(store.path) as url:
        shown = watch(url, color_scheme=scheme).open("tuner?trial=3")
        shown.page.wait_for_function(READY)
        shown.page.set_viewport_size({"width": 390, "height": 800})
        shown.page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")  # figures follow in a moment


def test_a_search_under_way_is_looked_at_in_peace_and_then_gone_on_with(
    store: Store,
    watch: Callable[..., Watched],
) -> None:
    running = Job.create(store.folder, "tune", {"argv": ["tracekit", "tune", "x"]})
    running.begin()
    rows = many_rows(40)
    folder = made_study(store, rows[:30], job=running.id, trials=60)
    with serving(store.path) as url:
        shown = watch(url).open("tuner")
        page = shown.page
        page.wait_for_function(READY)
        first = shown.until("tn-said", "30")
        page.get_by_role("button", name="Pause this page", exact=True).last.click()
        page.wait_for_function("() => document.getElementById('tn-pause').textContent === 'Show news again'")
        page.evaluate("() => window.scrollTo(0, 400)")
        with (folder / "trials.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows[30:])
        for _ in range(2):  # two ticks that are answered with nothing
            with page.expect_response(lambda answer: answer.status == 204):
                pass
        assert shown.text("tn-said") == first
        page.evaluate("() => document.getElementById('tn-pause').click()")
        shown.until("tn-said", "40")
        assert page.evaluate("() => window.scrollY") == 400
    running.finish({"exit_code": 0})

"""Pictures of the pages for the docs, the same runs every time: ``python -m tests.dashboards.pictures docs/pages``.

With ``tour`` before the folder only those of ``docs/tour.md``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import sync_playwright

from benchmarks.page_studies import made_study, many_rows
from benchmarks.pages import ARGUMENTS, ROOT, chromium
from tests.dashboards.browser import serving
from tests.dashboards.tour import run_demo, walk
from tracekit.cli.main import main as run
from tracekit.generators.recipe import build_case
from tracekit.replay import replay
from tracekit.store import Store
from tuner import capacity

__all__ = ["main", "tour"]

VIEWS = {
    "runs": "",
    "verdict": "?run=1",
    "tail": "?run=1&lat=1-100",
    "timeline": "?run=1&f=HOL_LONG_PROMPT",
    "requests": "?run=1&lat=1-100",
    "memory": "?run=3",
    "compare": "?run=1&cmp=2",
    "trace": "?run=1",
    "quality": "?run=1",
    "fleet": "?run=4",
    "tuner": "",
    "what-if": "",
}
"""Run 1: a case of long prompts; run 2: the same with a cap on them; run 3: a case of evictions; run 4: one of separate pools.
The study is made up; the question of What if is asked of a short trace of its own."""
DEMO_VIEWS = ("experiments", "replay", "jobs")
"""Taken of the database of the tour, where a change has been replayed."""
THEMES = ("light", "dark")
SIZE = {"width": 1180, "height": 820}


def record(folder: Path) -> Path:
    db = folder / "cases.duckdb"
    for case, sets in (("D01", ()), ("D01", ("long_prefill_token_threshold=4096",)), ("D04", ()), ("D10", ())):
        built = build_case(ROOT / "tests" / "data" / "cases" / f"{case}.yaml", folder / f"{case}{len(sets)}")
        policy, profile = str(built.policy), str(built.profile)
        replay(str(built.trace), engine="sim", db=str(db), name=case, policy=policy, profile=profile, sets=sets, diagnose=False)
    made_study(Store(db), many_rows(120), trials=120)
    ask(folder, db)
    return db


def ask(folder: Path, db: Path) -> None:
    """The question whose answer What if shows."""
    trace = folder / "chat.jsonl"
    run(["synth", str(trace), "--requests", "80", "--arrival", "poisson:rate=8", "--input", "600", "--output",
         "uniform:10,40", "--seed", "2"])  # fmt: skip
    capacity(str(trace), db=db, slo="ttft=500ms", sets=("max_num_seqs=8",), windows=2, length="4s", price_per_hour=2.0,
             what_if=["isl_scale=2", "fleet.replicas=2 fleet.router=least_tokens", "kv_scale=0.5 burst_scale=2"])  # fmt: skip


def main(out: Path) -> None:
    """Draw every view in both themes, as ``NAME-THEME.png`` in ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, serving(record(Path(folder))) as url, sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        for theme in THEMES:
            page = launched.new_context(viewport=SIZE, color_scheme=theme).new_page()  # type: ignore[arg-type]
            page.set_default_timeout(90_000)
            for name, search in VIEWS.items():
                page.goto(f"{url}{name}{search}")
                page.wait_for_selector("main h1")
                if name == "timeline":
                    page.wait_for_function("() => /Found here/.test(document.getElementById('summary')?.textContent)")
                settle(page)
                page.screenshot(path=str(out / f"{name}-{theme}.png"))


def tour(out: Path) -> None:
    """Walk the way of the tour, with a picture of each step, as ``tour-NAME.png`` in ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        db = Path(folder) / "demo.duckdb"
        run_demo(db)
        launched = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        with serving(db) as url:
            page = launched.new_context(viewport=SIZE, color_scheme="light").new_page()
            page.set_default_timeout(90_000)
            for step in walk(page, url):
                settle(page)
                if step.at is not None:
                    page.get_by_text(step.at).first.evaluate("each => each.scrollIntoView({block: 'start'})")
                page.screenshot(path=str(out / f"tour-{step.name}.png"))
            page.close()
            for theme in THEMES:
                page = launched.new_context(viewport=SIZE, color_scheme=theme).new_page()  # type: ignore[arg-type]
                page.set_default_timeout(90_000)
                for name in DEMO_VIEWS:
                    page.goto(f"{url}{name}")
                    page.wait_for_selector("main h1")
                    settle(page)
                    page.screenshot(path=str(out / f"{name}-{theme}.png"))
                page.close()


def settle(page: Any) -> None:
    """Wait until nothing on the page says that it is loading, and its figures have been drawn."""
    page.wait_for_load_state("networkidle")
    page.wait_for_function("() => !/Loading …|being made/.test(document.querySelector('main').innerText)")
    page.wait_for_function("() => [...document.querySelectorAll('.dash-graph')].every(each => each.querySelector('.main-svg'))")


if __name__ == "__main__":
    if sys.argv[1] == "tour":
        tour(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
        tour(Path(sys.argv[1]))

"""Pictures of the pages for the docs, the same runs every time: ``python -m tests.dashboards.pictures docs/pages``."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import sync_playwright

from tests.dashboards.browser import ARGUMENTS, ROOT, chromium, serving
from tests.dashboards.cases import Cases
from tracekit.generators.recipe import build_case

__all__ = ["main"]

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
}
"""Run 1: a case of long prompts; run 2: the same with a cap on them; run 3: a case of evictions."""
SIZE = {"width": 1180, "height": 820}


def record(folder: Path) -> Path:
    cases = Cases(folder / "cases.duckdb")
    for case, sets in (("D01", ()), ("D01", ("long_prefill_token_threshold=4096",)), ("D04", ())):
        built = build_case(ROOT / "tests" / "data" / "cases" / f"{case}.yaml", folder / f"{case}{len(sets)}")
        cases.record(case, built.trace, policy=str(built.policy), profile=str(built.profile), sets=sets)
    return cases.db


def main(out: Path) -> None:
    """Draw every view in both themes, as ``NAME-THEME.png`` in ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, serving(record(Path(folder))) as url, sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        for theme in ("light", "dark"):
            page = launched.new_context(viewport=SIZE, color_scheme=theme).new_page()  # type: ignore[arg-type]
            page.set_default_timeout(90_000)
            for name, search in VIEWS.items():
                page.goto(f"{url}{name}{search}")
                page.wait_for_selector("main h1")
                if name == "timeline":
                    page.wait_for_function("() => /Found here/.test(document.getElementById('summary')?.textContent)")
                page.wait_for_load_state("networkidle")
                page.wait_for_function("() => !/Loading …/.test(document.querySelector('main').innerText)")
                page.screenshot(path=str(out / f"{name}-{theme}.png"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""From the press of *Replay* to the first point of that run on the Timeline, in a browser, as a person sees it."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from benchmarks.pages import ARGUMENTS, chromium

__all__ = ["FIRST_POINT", "Started", "first_points"]

FIRST_POINT = """() => { const plot = document.querySelector('#timeline .js-plotly-plot');
    const said = document.getElementById('summary')?.textContent || '';
    return plot && plot.querySelector('.scatterlayer .trace path') && /iterations, /.test(said); }"""
"""When the timeline draws what has been replayed so far."""
NEXT = """() => { const link = [...document.querySelectorAll('#rp-said a')].find(each => /live/.test(each.textContent));
    if (link) { link.click(); } return Boolean(link); }"""


class Started(NamedTuple):
    """Seconds from the press of the button: until the page says that the job runs, and until its first point is drawn; and
    whether the run was under way then."""

    said_s: float
    drawn_s: float
    live: bool


def first_points(url: str, repeats: int) -> list[Started] | None:
    """The latest trace of the database, replayed ``repeats`` times under what the form has; each is cancelled then. ``None``
    where there is no Chromium."""
    path = chromium()
    if path is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        found = [_first_point(browser.new_page(), url) for _ in range(repeats)]
        browser.close()
    return found


def _first_point(page: Any, url: str) -> Started:
    page.goto(f"{url}replay")
    page.wait_for_function("() => /requests/.test(document.getElementById('rp-trace')?.textContent)", timeout=60_000)
    page.wait_for_function("() => /^From the shell/.test(document.getElementById('rp-command')?.textContent)", timeout=60_000)
    began = time.perf_counter()
    page.get_by_role("button", name="Replay", exact=True).click()
    page.wait_for_function(NEXT, timeout=60_000, polling=20)
    said = time.perf_counter() - began
    page.wait_for_function(FIRST_POINT, timeout=120_000, polling=20)
    drawn = time.perf_counter() - began
    live = page.locator("#status.running").count() > 0
    stop = page.locator("#live").get_by_role("button", name="Cancel")
    if live and stop.count():
        stop.click()
        page.wait_for_function("() => !document.querySelector('#live.running')", timeout=120_000)
    page.close()
    return Started(said, drawn, live)

"""The Tuner page with many trials: when it is drawn, and how long a brush over its parallel coordinates takes.

``python -m benchmarks.dashboard_tuner [--json] [--trials 2000] [--visits 5] [--brushes 40]``. A made-up study of three knobs, a
server in a process of its own, headless Chromium with an empty cache. A brush lasts from the button that is let go until the
lines, the other figures, the list of trials and the count of those that are marked have been painted.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure, Report, run_main
from benchmarks.page_studies import made_study, many_rows
from benchmarks.pages import ARGUMENTS, DRAWN, chromium, served, visited
from tracekit.store import Store

__all__ = ["brush", "main", "measure"]

AXES = 4
"""Three knobs and what is sought."""
_LISTEN = """() => {
  const chosen = document.getElementById('tn-chosen');
  window.brushes = [];
  let began = 0;
  addEventListener('mouseup', () => { began = performance.now(); }, true);
  new MutationObserver(() => requestAnimationFrame(() => setTimeout(() => { window.brushes.push(performance.now() - began); })))
    .observe(chosen, { childList: true, characterData: true, subtree: true });
}"""
"""The observer is told once the count has changed, which is last; the frame that paints it has passed when the timer runs."""


def brush(page: Any, axis: int, low: float, high: float, axes: int = AXES) -> None:
    """Draw a box over one axis of the lines, from ``low`` to ``high`` of its height."""
    area = page.locator("#tn-ways .nsewdrag").first.bounding_box()

    def at(x: float, y: float) -> tuple[float, float]:
        return area["x"] + area["width"] * (x + 0.3) / (axes - 0.1), area["y"] + area["height"] * (1 - (y + 0.04) / 1.08)

    page.mouse.move(*at(axis - 0.1, high))
    page.mouse.down()
    page.mouse.move(*at(axis + 0.1, low), steps=4)
    page.mouse.up()


def _brushes(url: str, count: int) -> list[float]:
    """Milliseconds of each of ``count`` brushes of the axis of the values, between two bounds drawn at random, no two alike."""
    from playwright.sync_api import sync_playwright

    draw = random.Random(0)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1400, "height": 1100})
        page.goto(f"{url}tuner")
        page.wait_for_function(DRAWN["tuner"], timeout=120_000)
        page.locator("#tn-ways").scroll_into_view_if_needed()
        page.evaluate(_LISTEN)
        for number in range(count):
            low = 0.4 * draw.random()
            brush(page, AXES - 1, low, low + 0.2 + 0.35 * draw.random())
            page.wait_for_function("n => window.brushes.length > n", arg=number, timeout=60_000)
        said = page.locator("#tn-chosen").inner_text()
        assert said.endswith("trials are marked"), said
        found = [float(each) for each in page.evaluate("() => window.brushes")]
        browser.close()
    return found


def measure(options: argparse.Namespace) -> Report:
    """All figures."""
    report = Report(benchmark="dashboard_tuner", notes=[f"{options.trials:,} trials of three knobs; wall time in a browser"])
    if chromium() is None:
        report.notes.append("no Chromium: nothing could be measured")
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as name:
        store = Store(Path(name) / "study.duckdb")
        made_study(store, many_rows(options.trials))
        with served(store.path) as (url, server):
            found = visited(url, server, {"tuner": ""}, options.visits)
            spent = _brushes(url, options.brushes) if found else []
    each = found and found["tuner"]
    note = f"CPU: {each.server_s:.2f} s of the server, {each.browser_s:.2f} s of the browser; {each.mb:.2f} MB" if each else ""
    report.figures["tuner_paint_s"] = Figure(value=each.wall_s if each else None, unit="s", target=2.0, at_most=True, note=note)
    p95, note = (float(np.percentile(spent, 95)) if spent else None), f"{len(spent)} brushes"
    report.figures["tuner_brush_p95_ms"] = Figure(value=p95, unit="ms", target=300.0, at_most=True, note=note)
    return report


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=2_000)
    parser.add_argument("--visits", type=int, default=5, help="in a browser with an empty cache; the median counts")
    parser.add_argument("--brushes", type=int, default=40)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run_main("dashboard_tuner", "The Tuner page with many trials.", measure, argv, _options)


if __name__ == "__main__":
    main()

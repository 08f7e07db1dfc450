"""Pages as a browser gets them, for benchmarks and tests: a server in a process of its own, a Chromium, when a page is drawn."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

__all__ = ["ARGUMENTS", "DRAWN", "ROOT", "Visits", "chromium", "served", "visited"]

ROOT = Path(__file__).resolve().parents[1]
_OFF = (
    # every new window renders pages for its address bar, which nobody sees: half a second of CPU time each
    "WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup",
    # what Playwright turns off: the last such option is the one that counts
    "HttpsUpgrades", "HttpsFirstBalancedModeAutoEnable", "LensOverlay", "MediaRouter", "PaintHolding", "OptimizationHints",
    "ThirdPartyStoragePartitioning", "DestroyProfileOnBrowserClose",
)  # fmt: skip
ARGUMENTS = [
    f"--disable-features={','.join(_OFF)}",
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
DRAWN = {
    "timeline": "() => document.querySelectorAll('#timeline .scatterlayer .trace path.js-fill').length >= 5",
    "verdict": "() => document.querySelector('.finding') && document.querySelectorAll('#vd-excess .barlayer path').length > 0",
    "tuner": "() => { const ways = document.querySelector('#tn-ways .js-plotly-plot');"
             " return ways && ways.dataset.heard === 'yes' && ways.strokes"
             " && document.querySelector('#tn-history .scatterlayer path.dots'); }",
}  # fmt: skip
"""When a page shows what was asked of it."""
MB = 1e6


class Visits(NamedTuple):
    """Medians over visits of a browser with an empty cache until the page is drawn: seconds by the clock, CPU seconds of the
    server and of the browser with all its processes, MB on the wire."""

    wall_s: float
    server_s: float
    browser_s: float
    mb: float


def chromium() -> str | None:
    """The Chromium to look with: ``TRACEKIT_CHROMIUM``, else the system's."""
    named = os.environ.get("TRACEKIT_CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def served(db: Path, *options: str) -> Iterator[tuple[str, psutil.Process]]:
    """``tracekit dashboard`` in a process of its own: its URL and the process. It must not leave a traceback."""
    command = [sys.executable, "-m", "tracekit.cli.main", "dashboard", "--db", str(db), "--port", "0", "--json", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield _address(process), psutil.Process(process.pid)
    finally:
        process.terminate()
        said = process.communicate(timeout=30)[1]
        assert "Traceback" not in said, said


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines: list[str] = []
    while lines[-1:] != ["}\n"]:
        lines.append(process.stdout.readline())
        assert lines[-1], process.communicate()[1]
    return str(json.loads("".join(lines))["url"])


def _cpu(process: psutil.Process) -> float:
    """CPU seconds of a process and its living children."""
    spent = 0.0
    for each in [process, *process.children(recursive=True)]:
        try:
            spent += sum(each.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return spent


def visited(url: str, server: psutil.Process, pages: dict[str, str], repeats: int) -> dict[str, Visits] | None:
    """Each page (its name in ``DRAWN``, the query string) opened ``repeats`` times; ``None`` where there is no Chromium."""
    path = chromium()
    if path is None:
        return None
    from playwright.sync_api import sync_playwright

    found: dict[str, list[Visits]] = {name: [] for name in pages}
    with sync_playwright() as playwright:
        known = set(psutil.Process().children(recursive=True))
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        started = [each for each in psutil.Process().children(recursive=True) if each not in known]
        for _ in range(repeats):
            for name, search in pages.items():
                found[name].append(_visit(browser, started[0], server, f"{url}{name}{search}", DRAWN[name]))
        browser.close()
    return {name: Visits(*map(statistics.median, zip(*each, strict=True))) for name, each in found.items()}


def _visit(browser: Any, process: psutil.Process, server: psutil.Process, address: str, drawn: str) -> Visits:
    page = browser.new_context(viewport={"width": 1400, "height": 1100}).new_page()
    answers: list[Any] = []
    page.on("requestfinished", lambda request: answers.append(request))
    before, began = (_cpu(server), _cpu(process)), time.perf_counter()
    page.goto(address)
    page.wait_for_function(drawn, timeout=120_000)
    wall = time.perf_counter() - began
    after = _cpu(server), _cpu(process)
    size = sum(each.sizes()["responseBodySize"] for each in answers) / MB
    page.context.close()
    return Visits(wall, after[0] - before[0], after[1] - before[1], size)

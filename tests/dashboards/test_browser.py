"""The page in a real browser over real HTTP: drawn, zoomed, live, killed, and open while replays commit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.page_asking import Asker, over_http
from tests.dashboards.browser import ROOT, served, serving
from tests.dashboards.runs import recorded
from tests.dashboards.watched import Watched
from tracekit.replay import replay
from tracekit.store import Store, list_runs

PAPER = "getComputedStyle(document.querySelector('#timeline .main-svg')).backgroundColor"
NAMELESS = """[...document.querySelectorAll('button, input, select, a')].filter(each => each.offsetParent !== null
    && !each.closest('.modebar, [aria-hidden=true]')
    && !each.labels?.length && !each.textContent.trim() && !each.ariaLabel && !each.title)
    .map(each => each.outerHTML)"""


def background(page: Any) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def paper(page: Any) -> str:
    return str(page.evaluate(PAPER))


def test_themes_follow_the_system_and_the_switch(store: Store, watch: Callable[..., Watched]) -> None:
    recorded(store, "first", 3000)
    colours = {"light": "rgb(255, 255, 255)", "dark": "rgb(17, 24, 39)"}
    with serving(store.path) as url:
        shown = watch(url, color_scheme="dark").open("timeline").drawn()
        assert (background(shown.page), paper(shown.page)) == (colours["dark"],) * 2
        shown.page.emulate_media(color_scheme="light")
        shown.page.wait_for_function(f"() => {PAPER} == '{colours['light']}'")
        assert background(shown.page) == colours["light"]
        shown.page.get_by_label("dark", exact=True).check()
        shown.page.wait_for_function(f"() => {PAPER} == '{colours['dark']}'")
        shown.page.reload()
        shown.drawn()
        assert (background(shown.page), paper(shown.page)) == (colours["dark"],) * 2
        assert shown.page.get_by_label("dark", exact=True).is_checked()


def test_zoom_asks_for_finer_data_and_the_address_is_the_view(store: Store, watch: Callable[..., Watched]) -> None:
    recorded(store, "first", 3000)
    with serving(store.path) as url:
        shown = watch(url).open("timeline?run=1").drawn()
        shown.until("summary", "3,000 iterations, drawn as 1,200 buckets")
        box = shown.page.locator("#timeline .nsewdrag").first.bounding_box()
        y = box["y"] + box["height"] / 2
        shown.page.mouse.move(box["x"] + box["width"] * 0.5, y)
        shown.page.mouse.down()
        shown.page.mouse.move(box["x"] + box["width"] * 0.6, y, steps=5)
        shown.page.mouse.up()
        summary = shown.until("summary", "one step each")
        zoomed = shown.page.url
        begin, end = map(float, re.search(r"run=1&t=([\d.]+)-([\d.]+)", zoomed).groups())  # type: ignore[union-attr]
        assert (begin, end) == (pytest.approx(15, abs=0.3), pytest.approx(18, abs=0.3))
        shown.page.go_back()
        shown.until("summary", "drawn as 1,200 buckets")
        shown.page.go_forward()
        assert shown.until("summary", "one step each") == summary
        shown.page.get_by_role("button", name="Whole run").click()
        shown.until("summary", "drawn as 1,200 buckets")
        assert shown.page.url.endswith("?run=1")
        shown.page.get_by_label("From, s").fill("20")
        shown.page.get_by_label("From, s").press("Enter")
        shown.until("summary", "^20.000 to 30.000 s: 1,000 iterations, one step each")
        again = watch(url).open(zoomed.removeprefix(url)).drawn()
        assert again.until("summary", "one step each") == summary


def test_every_control_has_a_name(store: Store, watch: Callable[..., Watched]) -> None:
    recorded(store, "first", 300)
    with serving(store.path) as url:
        page = watch(url).open("timeline").drawn().page
        assert page.evaluate(NAMELESS) == []
        assert page.locator("main").get_by_role("status").text_content() == page.text_content("#status")
        assert page.get_by_role("group", name="Timeline of the run").is_visible()
        assert page.get_by_role("main").count() == page.get_by_role("heading", level=1).count() == 1
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the page"


WRITER = """
import sys
from pathlib import Path
from tests.dashboards.runs import iteration_rows, spooled
from tracekit.store import Store, commit_run
store = Store(Path(sys.argv[1]))
sink, rows = spooled(store, "paced", 100), 100
for line in sys.stdin:
    if line == "commit\\n":
        commit_run(store, sink, {"name": "paced", "events": "full", "iterations": rows, "requests": 40})
    else:
        sink.append("iterations", iteration_rows(int(line), rows))
        rows += int(line)
    print("done", flush=True)
"""


class Paced:
    """A run in a process of its own that goes on as the test says."""

    def __init__(self, store: Store) -> None:
        argv = [sys.executable, "-c", WRITER, str(store.path)]
        self.process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.order("0")

    def order(self, what: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def test_a_live_run_is_followed_to_its_commit(store: Store, watch: Callable[..., Watched]) -> None:
    run = Paced(store)
    with serving(store.path) as url:
        shown = watch(url).open("timeline?run=paced").drawn()
        assert "running" in shown.until("status", "^running")
        shown.until("summary", "100 iterations")
        run.order("5000")
        shown.until("summary", "5,100 iterations")
        run.order("70000")
        shown.until("summary", "75,100 iterations")
        run.order("commit")
        shown.until("status", "^finished: 40 requests, 75,100 iterations")
        assert "75,100 iterations" in shown.text("summary")
    run.kill()


def test_a_killed_run_says_so_and_comes_back_when_recovered(store: Store, watch: Callable[..., Watched]) -> None:
    run = Paced(store)
    with serving(store.path) as url:
        shown = watch(url).open("timeline").drawn()
        shown.until("status", "^running")
        run.kill()
        said = shown.until("status", "^killed")
        command = re.search(r"tracekit (runs recover .*)", said)
        assert command is not None
        words = [sys.executable, "-m", "tracekit.cli.main", *command[1].split()]
        done = subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        shown.until("status", "^interrupted")
        assert "100 iterations" in shown.text("summary")


@contextmanager
def polled(url: str, searches: list[str]) -> Iterator[dict[str, list[str]]]:
    """Open pages, one per address, that ask again as soon as they have drawn the answer; the states each was told of."""
    states: dict[str, list[str]] = {search: [] for search in searches}
    done = threading.Event()

    def poll(search: str) -> None:
        page = Asker(over_http(url))
        while not done.is_set():
            states[search].append(page.ask(search)["status.className"].split()[-1])
            time.sleep(0.02)

    def guarded(search: str) -> None:
        try:
            poll(search)
        except Exception as error:
            states[search].append(repr(error))

    threads = [threading.Thread(target=guarded, args=(search,)) for search in searches]
    for thread in threads:
        thread.start()
    yield states
    done.set()
    for thread in threads:
        thread.join(30)


def test_replays_commit_while_pages_are_open(tmp_path: Path, store: Store, watch: Callable[..., Watched]) -> None:
    tracekit = [sys.executable, "-m", "tracekit.cli.main"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    trace = tmp_path / "trace.jsonl"
    shape = ["--requests", "900", "--arrival", "poisson:rate=2", "--input", "200", "--output", "uniform:100,400"]
    subprocess.run([*tracekit, "synth", *shape, str(trace)], env=environment, check=True, capture_output=True)
    recorded(store, "before", 2000)
    with served(store.path) as url:
        shown = watch(url).open("timeline?run=last").drawn()
        with polled(url, ["?run=1", "?run=last", "?run=live", "?run=last&last=10"]) as states:
            for _ in range(2):
                words = [*tracekit, "replay", str(trace), "--name", "live", "--db", str(store.path)]
                done = subprocess.run(words, env=environment, capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                assert "waiting for" not in done.stderr
        shown.until("status", r"^finished: 900 requests, [\d,]+ iterations")
        shown.until("summary", r"[\d,]{6,} iterations")
    assert [run["name"] for run in list_runs(store)] == ["before", "live", "live"]
    told = {search: set(said) for search, said in states.items()}
    assert told["?run=1"] <= {"finished", "busy"}, told
    for search in ("?run=last", "?run=live", "?run=last&last=10"):
        assert {"running", "finished"} <= told[search] <= {"missing", "running", "committing", "busy", "finished"}, told
        assert "missing" not in states[search][states[search].index("running") :]


def test_from_the_list_of_runs_to_the_verdict_to_the_iterations(tmp_path: Path, watch: Callable[..., Watched]) -> None:
    """With the keyboard where there is a key for it; what is shown is in the address, so that Back leads back."""
    db = tmp_path / "t.duckdb"
    settings = ("max_num_seqs=4",)
    replay(str(ROOT / "examples" / "demo_trace.jsonl.gz"), limit=200, db=str(db), engine="sim", slo="ttft=500ms", sets=settings)
    with serving(db) as url:
        shown = watch(url, color_scheme="dark").open("")
        page = shown.page
        page.get_by_role("link", name="run 1").click()
        assert "QUEUE_SEATS" in shown.until("vd-said", "QUEUE_SEATS")
        assert "?run=1" in page.url
        page.keyboard.press("j")
        assert page.evaluate("document.activeElement.ariaLabel").startswith("Finding ")
        page.get_by_role("link", name="Show me").first.click()
        shown.drawn()
        assert re.search(r"/timeline\?run=1&t=[\d.]+-[\d.]+&f=QUEUE_SEATS", page.url)
        page.get_by_title("Remove: finding QUEUE_SEATS").wait_for()
        page.keyboard.press("g")
        page.keyboard.press("q")
        shown.until("rq-said", "requests are selected")
        page.keyboard.press("?")
        page.get_by_role("dialog", name="Keys").wait_for()
        page.keyboard.press("g")  # keys are the dialog's while it is open
        page.keyboard.press("v")
        assert page.evaluate("document.activeElement.id") == "help-close"
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="hidden")
        page.go_back()
        shown.drawn()
        page.go_back()
        shown.until("vd-said", "QUEUE_SEATS")

"""A run under way: what is said of it so far, by value, and what its strip offers in every state."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboards.app import create_app
from dashboards.live import live_of, live_strip
from dashboards.pages.verdict_live import render_live
from dashboards.queries import RunBook
from dashboards.so_far import SoFarKeeper
from dashboards.uploads import MOST_BYTES
from replay_engine.tables import TABLES
from tests.dashboards.browser import served
from tests.dashboards.runs import in_a_killed_process, iteration_rows, recorded, spooled
from tests.dashboards.watched import Watched
from tracekit import jobs
from tracekit.cli.main import main
from tracekit.store import Store, commit_run, list_runs, spools_there

MS = 1_000_000


def outcomes(first: int, ttft_ms: list[int]) -> Any:
    rows = np.zeros(len(ttft_ms), TABLES["outcomes"])
    rows["request"] = np.arange(first, first + len(ttft_ms))
    rows["ttft_ns"] = np.array(ttft_ms) * MS
    rows["tpot_ns"] = -1
    rows["max_gap_ns"] = 5 * MS
    return rows


def test_what_has_ended_so_far_is_counted_once(store: Store) -> None:
    sink = spooled(store, "live", 70, slo={"default": {"ttft_ns": 50 * MS}, "class": {}, "tenant": {}})
    book, keeper = RunBook(store.path), None
    keeper = SoFarKeeper(book)
    zero = keeper.look("live")
    assert zero is not None
    assert zero.ended == 12  # the rows that the made-up run begins with
    sink.append("outcomes", outcomes(12, [10, 20, 100, 200]))
    found = keeper.look("live")
    assert found is not None
    assert (found.ended, found.total) == (16, 40)
    ttft = next(each for each in found.measures if each.name == "TTFT")
    assert (ttft.n, ttft.most_s, ttft.missed) == (16, 0.2, 2)
    assert ttft.p99_s == 0.2
    assert next(each for each in found.measures if each.name == "TPOT").n == 12
    assert found.refusals == (("max_num_seqs", 1.0),)
    shown = render_live(keeper, "?run=live")
    assert shown is not None
    assert shown[0].startswith("Under way: 16 of 40 requests have ended.")
    assert "refused by max_num_seqs 100" in shown[0]
    commit_run(store, sink, {"name": "live", "events": "full", "iterations": 70, "requests": 40})
    assert keeper.look("live") is None
    assert render_live(keeper, "?run=live") is None


def test_the_strip_says_how_it_stands_and_offers_what_can_be_done(store: Store) -> None:
    book = RunBook(store.path)
    assert live_of(book, "last") is None
    recorded(store, "done", 30)
    assert live_of(book, "1") is None
    assert live_strip(None)[0] == []
    job = jobs.Job.create(store.folder, "replay", {"argv": [sys.executable, "-c", "pass"], "who": "ui"})
    job.begin()
    starting = live_of(book, job.id)
    assert starting is not None
    assert (starting.state, starting.job, starting.can) == ("starting", job.id, ("cancel",))
    sink = spooled(store, "live", 70)
    running = live_of(book, job.id)
    assert running is not None
    assert (running.state, running.share, running.can) == ("running", 12 / 40, ("cancel",))
    assert running == live_of(book, "live")
    reading = live_of(RunBook(store.path, read_only=True), "live")
    assert reading is not None
    assert reading.can == ()
    commit_run(store, sink, {"name": "live", "events": "full", "iterations": 70, "requests": 40})
    job.finish({"exit_code": 0, "run": 2})
    assert live_of(book, job.id) is None
    assert book.view(job.id).ref == "2"


def test_a_killed_run_is_kept_and_its_job_can_be_resumed(store: Store) -> None:
    ids: list[str] = []

    def work() -> None:
        argv = [sys.executable, "-c", "import time; time.sleep(600)"]
        job = jobs.Job.create(store.folder, "replay", {"argv": argv, "who": "ui"})
        job.begin()
        spooled(store, "killed", 50)

    in_a_killed_process(work)
    book = RunBook(store.path)
    ids += [status.id for status in jobs.list_jobs(store.folder)]
    killed = live_of(book, ids[0])
    assert killed is not None
    assert (killed.state, killed.job, killed.can) == ("killed", ids[0], ("resume",))
    assert "12 of 40 requests have ended, and what was shown is kept" in killed.said
    assert len(book.view(ids[0]).frames[0]["iteration"]) == 50
    jobs.resume(store.folder, ids[0])
    try:
        again = live_of(book, "killed")
        assert again is not None
        assert (again.state, again.can) == ("killed", ())
        assert "its job runs again" in again.said
        after = live_of(book, ids[0])
        assert after is not None
        assert after.state == "starting"
    finally:
        jobs.cancel(store.folder, ids[0], force=True)
    ended = live_of(book, ids[0])
    assert ended is not None
    assert (ended.state, ended.can) == ("ended", ("resume",))


def test_a_paused_page_is_not_drawn_again_by_the_clock(store: Store) -> None:
    sink = spooled(store, "live", 100)
    client = create_app(store.path).server.test_client()
    (known,) = [each for each in client.get("/_dash-dependencies").json if "timeline.figure" in each["output"]]
    names = [each.rsplit(".", 1) for each in known["output"].strip(".").split("...")]

    def ask(trigger: str, paused: bool, drawn: Any) -> Any:
        values = {"url.search": "?run=live", "tick.n_intervals": 1, "theme.data": "light", "narrow.data": False,
                  "drawn.data": drawn, "paused.data": paused}  # fmt: skip
        body: dict[str, Any] = {"output": known["output"], "changedPropIds": [trigger]}
        body["outputs"] = [{"id": name, "property": prop} for name, prop in names]
        for what in ("inputs", "state"):
            body[what] = [{**one, "value": values.get(f"{one['id']}.{one['property']}")} for one in known[what]]
        return client.post("/_dash-update-component", json=body)

    first = ask("url.search", True, {})
    assert "100 iterations" in first.json["response"]["summary"]["children"]
    sink.append("iterations", iteration_rows(50, 100))
    assert ask("tick.n_intervals", True, {}).status_code == 204
    assert "150 iterations" in ask("tick.n_intervals", False, {}).json["response"]["summary"]["children"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    shape = ["--requests", "6000", "--arrival", "poisson:rate=4", "--input", "200", "--output", "uniform:200,400"]
    assert main(["synth", *shape, str(path)]) == 0
    return path


@pytest.fixture
def held() -> Iterator[list[int]]:
    """Processes that a test has stopped: none outlives it."""
    stopped: list[int] = []
    yield stopped
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def held_when_it_writes(store: Store, held: list[int]) -> int:
    """Stop the replay's process where it stands, once it has written iterations, so that the test has time; its number."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for spool in spools_there(store):
            if spool.rows.get("iterations", 0) > 1000:
                os.kill(spool.pid, signal.SIGSTOP)
                held.append(spool.pid)
                return spool.pid
        time.sleep(0.01)
    raise AssertionError(f"no replay writes: {jobs.list_jobs(store.folder)}")


def test_from_a_file_to_its_verdict_live_killed_and_resumed(
    tmp_path: Path, trace: Path, watch: Callable[..., Watched], held: list[int]
) -> None:
    """Without the shell: a trace is sent and replayed, seen live, paused, killed, and started again."""
    store = Store(tmp_path / "t.duckdb")
    with served(store.path) as url:
        shown = watch(url).open("replay")
        page = shown.page
        large = tmp_path / "large.csv"
        with large.open("wb") as file:
            file.truncate(MOST_BYTES + 1)
        for name, said, most in (("rp-upload", "rp-checked", "64 MiB"), ("rp-profile-upload", "rp-profile-said", "256 KiB")):
            page.locator(f"#{name} input[type=file]").set_input_files(str(large))
            shown.until(said, f"large.csv: more than {most}")
        page.locator("#rp-upload input[type=file]").set_input_files(str(trace))
        shown.until("rp-checked", "read as canonical_jsonl, 6,000 of 6,000 rows")
        shown.until("rp-command", "From the shell: tracekit replay .*trace.jsonl")
        page.locator("#rp-slo").fill("ttft=500ms")
        page.locator("#rp-max_num_seqs").fill("8")
        page.locator("#rp-max_num_seqs").press("Tab")
        shown.until("rp-command", "max_num_seqs=8")
        page.get_by_role("button", name="Replay", exact=True).click()
        shown.until("rp-said", "Started as job")
        (status,) = jobs.list_jobs(store.folder)
        pid = held_when_it_writes(store, held)
        page.get_by_role("link", name="watch it live").click()
        shown.until("status", "^running")
        shown.drawn()
        shown.until("summary", "iterations")
        page.get_by_role("link", name="Verdict", exact=True).click()
        shown.until("vd-said", "^(Under way: [\\d,]+ of 6,000 requests have ended)")
        page.go_back()
        shown.drawn()
        page.get_by_role("button", name="Pause this page").click()
        page.get_by_role("button", name="Show news again").click()
        page.get_by_role("button", name="Pause this page").wait_for()
        page.evaluate("() => window.scrollTo(0, 200)")
        page.wait_for_function("() => window.scrollY === 200")
        os.kill(pid, signal.SIGKILL)
        shown.until("status", "^killed")
        shown.until("live", "■ killed.*what was shown is kept")
        assert re.search(r"[\d,]+ iterations", shown.text("summary"))
        assert page.evaluate("window.scrollY") == 200
        assert jobs.show(store.folder, status.id).state == "lost"
        page.locator("#live").get_by_role("button", name="Resume").click()
        page.wait_for_url(re.compile(re.escape(status.id)))
        shown.until("status", "^(running|waiting)")
        shown.until("status", r"^finished: 6,000 requests")
        page.get_by_role("link", name="Verdict", exact=True).click()
        assert "QUEUE_SEATS" in shown.until("vd-said", "QUEUE_SEATS")
    assert len(list_runs(store)) == 1

"""The timeline's answers, asked for as a browser asks: what it draws, what it says, and what it does not send again."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from benchmarks.page_asking import Asker
from dashboards.access import is_loopback
from dashboards.address import parse_address
from dashboards.app import create_app
from dashboards.buckets import downsample, span_ns
from dashboards.figures import Drawn, timeline_figure
from dashboards.pages.timeline_answer import COVERED, render
from dashboards.palette import THEMES, Theme, reason_fill
from dashboards.queries import RunBook
from dashboards.timeline_layout import STRIPS
from tests.dashboards.runs import a_writer_at_work, frame_of, in_a_killed_process, iteration_rows, recorded, spooled
from tracekit.store import Store, code_names

REASONS = code_names("iterations", "head_refused_by")


def asker(db: Path) -> Asker:
    client = create_app(db).server.test_client()

    def fetch(path: str, body: bytes | None) -> bytes:
        answer = client.get(path) if body is None else client.post(path, data=body, content_type="application/json")
        assert answer.status_code == 200, answer.data[:500]
        return bytes(answer.data)

    return Asker(fetch)


def values(packed: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["bdata"]), f"<{packed['dtype']}")


def trace(page: dict[str, Any], name: str) -> np.ndarray:
    (found,) = [each for each in page["timeline.figure"]["data"] if each["name"] == name]
    return values(found["y"])[:-1]


def drawn(window: tuple[int, int], **more: Any) -> Drawn:
    return Drawn(reasons=REASONS, window_ns=window, **more)


def test_a_finished_run(store: Store) -> None:
    recorded(store, "first", 3000)
    page = asker(store.path).ask("?run=1")
    assert page["status.className"] == "status finished"
    assert page["status.children"] == "finished: 40 requests, 3,000 iterations · h100"
    assert (page["run.value"], page["window.value"], page["begin.value"], page["end.value"]) == ("1", "all", "0", "30")
    assert (page["timeline-box.style"], page["replica-box.style"]) == ({}, {"display": "none"})
    assert page["notice.children"] == ""
    rows = iteration_rows(3000)
    assert trace(page, "decode").mean() == pytest.approx(rows["decode_seqs"].mean(), rel=1e-3)
    assert trace(page, "prefill").mean() == pytest.approx(rows["prefill_tokens"].mean(), rel=1e-3)
    assert trace(page, "largest batch").max() == (rows["decode_seqs"] + rows["prefill_tokens"]).max()
    assert set(trace(page, "token budget")) == {1024}
    assert set(trace(page, "all blocks")) == {1000}
    assert trace(page, "max_num_seqs").mean() == pytest.approx(rows["waiting"].mean(), rel=1e-3)
    assert "3,000 iterations, drawn as 1,200 buckets of 25 ms, idle 0.0%" in page["summary.children"]
    assert "At most 37 running and 3 waiting" in page["summary.children"]
    assert "the queue's head was refused by max_num_seqs 100.0%" in page["summary.children"]


def test_a_window_is_drawn_finer(store: Store) -> None:
    recorded(store, "first", 3000)
    page = asker(store.path).ask("?run=1&t=10-15")
    assert (page["window.value"], page["begin.value"], page["end.value"]) == ("range", "10", "15")
    assert "10.000 to 15.000 s: 500 iterations, one step each" in page["summary.children"]
    assert page["timeline.figure"]["layout"]["xaxis"]["range"] == [10, 15]
    assert trace(page, "decode").tolist() == iteration_rows(500, 1000)["decode_seqs"].tolist()
    assert [each["name"] for each in page["timeline.figure"]["data"] if "most" in each["name"]] == []


def test_what_is_shown_already_is_not_sent_again(store: Store) -> None:
    recorded(store, "first", 300)
    page = asker(store.path)
    assert "timeline.figure" in page.ask("?run=1")["sent"]
    assert not {"timeline.figure", "run.options", "summary.children"} & page.ask("?run=1")["sent"]
    assert "timeline.figure" in page.ask("?run=1&t=1-2")["sent"]
    assert "timeline.figure" in page.ask("?run=1&t=1-2", "dark")["sent"]
    recorded(store, "second", 10)
    page_now = page.ask("?run=1&t=1-2", "dark")
    assert "timeline.figure" not in page_now["sent"]
    assert [each["value"] for each in page_now["run.options"]] == ["2", "1"]


def test_a_window_of_a_recorded_run_is_cut_once_and_a_live_one_each_time(store: Store) -> None:
    recorded(store, "first", 3000)
    book = RunBook(store.path)
    light, dark = (render(book, "?run=1", theme, {}).figure for theme in ("light", "dark"))
    assert len(book.cuts._values) == 1
    for one, other in zip(light["data"], dark["data"], strict=True):
        assert one["y"] == other["y"]
    zoomed, alone = (render(each, "?run=1&t=1-20", "light", {}).figure for each in (book, RunBook(store.path)))
    assert zoomed == alone != light
    assert len(book.cuts._values) == 2
    sink = spooled(store, "live", 1000)
    first = render(book, "?run=live", "light", {}).figure
    sink.append("iterations", iteration_rows(500, 1000))
    assert render(book, "?run=live", "light", {}).figure != first
    assert len(book.cuts._values) == 2


def test_a_live_run_grows_and_is_followed_to_its_end(store: Store) -> None:
    sink = spooled(store, "live", 1000)
    page = asker(store.path)
    first = page.ask("?run=live&last=2")
    assert first["status.className"] == "status running"
    assert (first["begin.value"], first["end.value"], first["tick.interval"]) == ("8", "10", 1000)
    sink.append("iterations", iteration_rows(500, 1000))
    second = page.ask("?run=live&last=2")
    assert (second["begin.value"], second["end.value"]) == ("13", "15")
    assert "200 iterations" in second["summary.children"]
    fixed = page.ask("?run=live&t=8-10")
    assert (fixed["begin.value"], fixed["end.value"]) == ("8", "10")
    whole = page.ask("?run=live")
    assert whole["end.value"] == "15"


def test_a_killed_run(store: Store) -> None:
    in_a_killed_process(lambda: spooled(store, "left", 70))
    page = asker(store.path).ask("")
    assert page["status.className"] == "status killed"
    assert "tracekit runs recover" in page["status.children"]
    assert "70 iterations" in page["summary.children"]
    assert page["tick.interval"] == 5000


@pytest.mark.parametrize("events", ["outcomes", "none"])
def test_a_run_without_iterations_says_why(store: Store, events: str) -> None:
    recorded(store, "lean", 0, events)
    page = asker(store.path).ask("?run=1")
    assert f"recorded with --events {events}" in page["notice.children"]
    assert "replay with --events full" in page["notice.children"]
    assert page["timeline-box.style"] == COVERED


def test_a_run_without_any_iteration_yet(store: Store) -> None:
    spooled(store, "live", 0)
    page = asker(store.path).ask("")
    assert page["notice.children"] == "no iteration has been written yet"
    assert page["status.className"] == "status running"


def test_no_such_run_keeps_the_list(store: Store) -> None:
    recorded(store, "a")
    page = asker(store.path)
    page.ask("?run=1")
    gone = page.ask("?run=77")
    assert gone["status.className"] == "status missing"
    assert "run 77: no such run" in gone["status.children"]
    assert gone["timeline-box.style"] == COVERED
    assert [each["value"] for each in gone["run.options"]] == ["1"]
    back = page.ask("?run=1")
    assert back["timeline-box.style"] == {}
    assert "timeline.figure" in back["sent"]


def test_an_empty_database_and_none_at_all(store: Store, tmp_path: Path) -> None:
    page = asker(store.path)
    assert "holds no runs yet" in page.ask("")["status.children"]
    with store.write("make it"):
        pass
    assert "holds no runs yet" in page.ask("")["status.children"]
    recorded(store, "a")
    assert page.ask("")["run.value"] == "1"
    other = tmp_path / "other.duckdb"
    other.write_text("not a database")
    assert asker(other).ask("")["status.className"] == "status missing"


def test_replicas_have_a_selector(store: Store) -> None:
    recorded(store, "fleet", 900)
    with store.write("make it a fleet") as con:
        con.execute("UPDATE iterations SET replica = iteration % 3")
    page = asker(store.path)
    first = page.ask("?run=1")
    assert ([each["value"] for each in first["replica.options"]], first["replica.value"]) == ([0, 1, 2], 0)
    assert first["replica-box.style"] == {}
    second = page.ask("?run=1&replica=2")
    assert "timeline.figure" in second["sent"]
    assert trace(second, "decode").max() <= 30
    missing = page.ask("?run=1&replica=7")
    assert "no replica 7 in this run: shown is 0" in missing["notice.children"]


def test_while_a_writer_is_at_work_the_page_keeps_what_it_has(store: Store) -> None:
    recorded(store, "seen")
    recorded(store, "unseen")
    page = asker(store.path)
    page.ask("?run=1")
    with a_writer_at_work(store):
        same = page.ask("?run=1")
        assert (same["status.className"], same["timeline-box.style"]) == ("status finished", {})
        busy = page.ask("?run=2")
        assert busy["status.className"] == "status busy"
        assert "a long load" in busy["status.children"]
        assert (busy["run.value"], busy["timeline-box.style"], busy["tick.interval"]) == ("1", {}, 1000)
        fresh = asker(store.path).ask("")
        assert fresh["status.className"] == "status busy"
    assert page.ask("?run=2")["status.className"] == "status finished"


def test_names_are_shown_as_text(store: Store) -> None:
    recorded(store, "<img src=x onerror=alert(1)>", 10)
    page = asker(store.path).ask("?run=1")
    assert page["run.options"][0]["label"] == "run 1 · <img src=x onerror=alert(1)> · made up · finished"
    assert "onerror" not in str(page["timeline.figure"])


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("window", [(0, 30_000_000_000), (1_000_000_000, 2_000_000_000)])
def test_the_figure_is_one_that_plotly_knows(theme: str, window: tuple[int, int]) -> None:
    rows = iteration_rows(3000)
    rows["preempted"][::100] = 2
    frame = frame_of(rows)
    figure = timeline_figure(downsample(frame, *window), drawn(window, budget=1024, kv_total=1000), THEMES[theme])
    checked = go.Figure(figure)  # raises on a name or value that Plotly does not have
    assert [note.text for note in checked.layout.annotations] == [f"<b>{title}</b>" for title, *_ in STRIPS]
    assert len(str(figure)) < 700_000
    dashes = {each["name"]: each["line"].get("dash", "solid") for each in figure["data"] if each["legend"] == "legend2"}
    assert dashes["running"] != dashes["waiting"]  # two lines of one strip differ by more than colour
    (marks,) = [each for each in figure["data"] if each["name"] == "preempted"]
    inside = (rows["start_ns"] >= window[0]) & (rows["start_ns"] < window[1])
    assert values(marks["customdata"]).sum() == rows["preempted"][inside].sum()
    assert span_ns(frame) == (0, 30_000_000_000)


def test_steps_begin_where_their_buckets_do() -> None:
    """Equal buckets are told by the first edge and the width, unequal ones edge by edge; bounds by their ends."""
    frame = frame_of(iteration_rows(3000))
    for window in ((0, 29_999_999_987), (7_000_000_123, 28_123_456_789), (1_000_000_000, 2_000_000_000)):
        buckets = downsample(frame, *window)
        figure = timeline_figure(buckets, drawn(window, kv_total=1000), THEMES["light"])
        steps, bounds = (
            [each for each in figure["data"] if (each["name"] == "all blocks") == bound and each["mode"] == "lines"]
            for bound in (False, True)
        )
        for each in steps:
            n = len(values(each["y"]))
            edges = values(each["x"]) if "x" in each else each["x0"] + np.arange(n) * each["dx"]
            assert edges * 1e9 == pytest.approx(buckets.edges_ns, abs=2)
            assert ("x" in each) == buckets.exact
        assert [values(each["x"]).tolist() for each in bounds] == [[window[0] / 1e9, window[1] / 1e9]]


def test_a_budget_far_above_every_batch_is_said_and_not_drawn() -> None:
    buckets = downsample(frame_of(iteration_rows(3000)), 0, 30_000_000_000)
    for budget, there in ((2000, True), (8192, False)):
        figure = timeline_figure(buckets, drawn((0, 30_000_000_000), budget=budget), THEMES["dark"])
        names = [each["name"] for each in figure["data"]]
        assert ("token budget" in names, "off the scale" in figure["layout"]["annotations"][0]["text"]) == (there, not there)
        assert "all blocks" not in names


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_everything_stands_out_from_the_paper(theme: Theme) -> None:
    assert contrast(theme.text, theme.paper) >= 4.5
    assert contrast(theme.quiet, theme.paper) >= 4.5
    for line in (theme.line, theme.waiting, theme.decode):
        assert contrast(line, theme.paper) >= 3
    reasons = [theme.fill(reason_fill(name)[0]) for name in REASONS]
    for fill in (theme.decode, theme.prefill, theme.recomputed, theme.cached, *reasons):
        assert contrast(fill, theme.paper) >= 3, fill
        assert contrast(theme.hatch, fill) >= 2, fill


def test_reasons_that_look_alike_do_not() -> None:
    fills = [reason_fill(name) for name in REASONS]
    assert len(set(fills)) == len(fills)
    assert reason_fill("one that comes later") not in fills


@pytest.mark.parametrize(
    ("search", "run", "replica", "t", "last", "ignored"),
    [
        ("", "last", None, None, None, ()),
        (None, "last", None, None, None, ()),
        ("?run=3&t=40.0-83.5", "3", None, (40.0, 83.5), None, ()),
        ("?run=a%20b&replica=1&last=60&v=1", "a b", 1, None, 60.0, ()),
        ("?run=&t=9-3&last=nan&replica=x&z=1", "last", None, None, None, ("z", "t", "last", "replica")),
        ("?t=1-2&last=5", "last", None, (1.0, 2.0), None, ("last",)),
        ("?t=1e-3-5.5e-2", "last", None, (0.001, 0.055), None, ()),
        ("?t=1-1e999&last=1e999&replica=٣", "last", None, None, None, ("t", "last", "replica")),
        ("?t=" + "9" * 400 + "-1", "last", None, None, None, ("t",)),
    ],
)
def test_addresses(
    search: str | None, run: str, replica: int | None, t: tuple[float, float] | None, last: float | None, ignored: tuple[str, ...]
) -> None:
    address = parse_address(search)
    assert (address.run, address.replica, address.t, address.last_s, address.ignored) == (run, replica, t, last, ignored)


def test_an_address_beyond_the_run_is_drawn_as_idle(store: Store) -> None:
    recorded(store, "a", 100)
    page = asker(store.path).ask("?run=1&t=500-600&colour=red")
    assert page["summary.children"] == "500.000 to 600.000 s: no iteration."
    assert page["notice.children"] == "not understood in the address: colour"


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "localhost.example", "")))


def test_pages_come_from_this_process_only(store: Store) -> None:
    client = create_app(store.path).server.test_client()
    answer = client.get("/timeline")
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert b"http://" not in answer.data
    assert b"https://" not in answer.data
    layout = client.get("/_dash-layout").data
    assert b"tracekit" in layout

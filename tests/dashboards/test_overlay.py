"""What the timeline says beyond its rows: expected durations, the oldest wait, findings, and when the selection waited."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.address import UNITS, Address, parse_address
from dashboards.buckets import downsample, span_ns
from dashboards.columns import Columns
from dashboards.figures import Drawn, timeline_figure
from dashboards.oldest import IN_QUEUE, oldest_of, read_oldest
from dashboards.overlay import Bracket, Overlay, overlay_key, overlay_of
from dashboards.pages.timeline_answer import prepare_overlay, render
from dashboards.palette import THEMES
from dashboards.queries import RunBook
from dashboards.summary import describe_window
from dashboards.timeline_table import HEAD, timeline_rows
from dashboards.words import seconds
from replay_engine.profile import Latency
from tests.dashboards.runs import iteration_rows
from tracekit.diagnosis.iteration_cost import CostForm
from tracekit.store import code_names, sql

REASONS = code_names("iterations", "head_refused_by")


@pytest.fixture(scope="module")
def book(tight: RunBook) -> RunBook:
    return tight


def values(packed: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["bdata"]), f"<{packed['dtype']}").astype(float)


def trace(figure: dict[str, Any], name: str) -> np.ndarray:
    (found,) = [each for each in figure["data"] if each["name"] == name]
    return values(found["y"])[:-1]


WAIT = st.tuples(st.integers(0, 60), st.integers(0, 25)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(WAIT, max_size=12), st.lists(st.integers(0, 90), min_size=2, max_size=9, unique=True).map(sorted))
def test_the_oldest_wait_is_that_of_whoever_has_stood_longest(waits: list[tuple[int, int]], edges: list[int]) -> None:
    """Held against every moment, a hundredth of a tick before and after the ends included."""
    begin, end = (np.array([each[side] for each in waits], np.int64) * 100 for side in (0, 1))
    cut = np.array(edges, np.int64) * 100
    found = oldest_of(begin, end).peaks(cut)
    for bucket in range(len(cut) - 1):
        moments = np.arange(cut[bucket] + 1, cut[bucket + 1] + 1)
        standing = (begin[:, None] < moments) & (moments <= end[:, None])
        longest = np.where(standing, moments - begin[:, None], 0)
        assert found[bucket] == longest.max(initial=0)


def test_the_oldest_wait_of_a_run(book: RunBook) -> None:
    phases = ", ".join(f"'{name}'" for name in IN_QUEUE)
    longest = sql(book.store, f"SELECT max(end_ns - start_ns) FROM spans WHERE run = 1 AND phase IN ({phases})").rows[0][0]
    page = render(book, "?run=1", "light", {})
    drawn = trace(page.figure, "oldest wait")
    assert drawn.max() == pytest.approx(longest / 1e9, rel=1e-6)
    assert [each["yaxis"] for each in page.figure["data"] if each["name"] == "oldest wait"] == ["y7"]
    assert page.figure["layout"]["yaxis7"]["title"]["text"] == "oldest wait, s"
    assert read_oldest(book.store, 99) == {}
    there = trace(page.figure, "waiting") > 0
    assert (drawn[there] > 0).all()


def test_a_simulated_run_takes_what_its_profile_expects(book: RunBook) -> None:
    view = book.view("4")
    frame = view.frames[0]
    assert view.expected
    assert np.abs(frame["expected_ns"] - frame["duration_ns"]).max() <= 1
    page = render(book, "?run=4", "light", {})
    assert "Every iteration took what the profile expects." in page.summary
    assert np.allclose(trace(page.figure, "expected"), trace(page.figure, "mean"), rtol=1e-5)
    config = 1300 - int(0.02 * 1300) - 1  # one block is never handed out
    assert set(trace(page.figure, "watermark")) == {config}


def test_a_batch_is_drawn_in_tokens_sequences_or_milliseconds(book: RunBook) -> None:
    frame, window = book.view("1").frames[0], "&t=2-6"
    drawn = {unit: render(book, f"?run=1{window}&y={unit}", "light", {}) for unit in UNITS}
    assert [page.figure["layout"]["yaxis"]["title"]["text"] for page in drawn.values()] == list(UNITS)
    stacks = {
        unit: {each["name"]: values(each["y"])[:-1] for each in page.figure["data"] if each.get("stackgroup") == "s0"}
        for unit, page in drawn.items()
    }
    assert list(stacks["sequences"]) == ["decode", "others running"]
    assert list(stacks["ms"]) == ["weights and decode", "prefill", "recomputed"]
    buckets = downsample(frame, 2_000_000_000, 6_000_000_000)
    busy = buckets.busy_ns > 0
    held = sum(stacks["sequences"].values())
    assert (stacks["sequences"]["decode"] == stacks["tokens"]["decode"]).all()
    assert (held[busy] <= buckets.peak["running"][busy] + 1e-4).all()
    assert held.max() == pytest.approx(16, abs=0.01)  # all seats
    assert np.allclose(sum(stacks["ms"].values()), buckets.mean["duration_ns"] / 1e6, rtol=1e-4)
    prefilled = stacks["tokens"]["prefill"] + stacks["tokens"]["recomputed"]
    assert (stacks["ms"]["prefill"] + stacks["ms"]["recomputed"] > 0).sum() > 0
    assert ((stacks["ms"]["recomputed"] > 0) == (stacks["tokens"]["recomputed"] > 0))[prefilled > 600].all()
    assert parse_address("?y=ms").search() == "?y=ms"
    assert (parse_address("?y=tokens").search(), parse_address("?y=litres").ignored) == ("", ("y",))


def test_iterations_that_take_longer_are_shaded_and_named() -> None:
    rows = iteration_rows(300)
    cost = CostForm(Latency(**dict.fromkeys(Latency.__dataclass_fields__, 0.0) | {"floor_ns": 10e6}), asynchronous=False)
    rows["duration_ns"][200] = 9_000_000
    rows["duration_ns"][123] = 13_000_000
    rows["start_ns"] = np.cumsum(rows["duration_ns"]) - rows["duration_ns"]
    columns = Columns(cost)
    columns.append(rows)
    buckets = downsample(columns.frame(), 0, 3_002_000_000)
    assert buckets.against is not None
    assert tuple(buckets.against) == (3_002_000_000, 3_000_000_000, 123, 3_000_000)
    drawn = Drawn(reasons=REASONS, window_ns=(0, 3_002_000_000))
    said = describe_window(buckets, drawn)
    assert "Iterations took 2 ms (0.1%) more than the profile expects; furthest off is iteration 123, 3 ms longer" in said
    figure = timeline_figure(buckets, drawn, THEMES["light"])
    off = trace(figure, "duration") - trace(figure, "expected")
    assert sorted(np.round(off[off != 0], 3).tolist()) == [-1, 3]
    at = [each["name"] for each in figure["data"]].index("duration")
    assert (figure["data"][at]["fill"], figure["data"][at - 1]["name"]) == ("tonexty", "expected")


def test_without_a_profile_nothing_is_expected() -> None:
    columns = Columns()
    columns.append(iteration_rows(30))
    drawn = Drawn(reasons=REASONS, window_ns=(0, 300_000_000))
    buckets = downsample(columns.frame(), *drawn.window_ns)
    assert "expected" not in [each["name"] for each in timeline_figure(buckets, drawn, THEMES["dark"])["data"]]
    assert "The profile does not say how long iterations take." in describe_window(buckets, drawn)


def test_findings_are_brackets_and_the_selection_is_painted(book: RunBook) -> None:
    plain = overlay_of(book, Address(run="1"))
    assert plain.brackets
    assert plain.waits is None
    chosen = plain.brackets[0].id
    search = f"?run=1&cls=interactive&f={chosen}"
    first = render(book, search, "light", {})
    key = overlay_key(book.recorded("1")["spool"], parse_address(search))  # type: ignore[index]
    assert first.drawn["overlay"] == key
    assert not [each for each in first.figure["layout"]["annotations"] if chosen in each["text"]]
    assert prepare_overlay(book, search) == key
    second = render(book, search, "light", first.drawn, overlaid=key)
    assert [each["text"] for each in second.figure["layout"]["annotations"] if chosen in each["text"]]
    assert chosen in second.summary
    again = render(book, search, "light", second.drawn, overlaid=key)
    assert "figure" not in str(type(again.figure)) and not isinstance(again.figure, dict)
    waits = overlay_of(book, parse_address(search)).waits
    assert waits is not None
    drawn, width = trace(second.figure, "selected waiting"), second.figure["data"][0]["dx"]
    assert float(drawn.sum() * width) == pytest.approx(waits.within(np.array([0, 10**18])).total_ns / 1e9, rel=1e-5)
    zoomed = render(book, search + "&t=1-2", "light", {}, overlaid=key)
    assert trace(zoomed.figure, "selected waiting").max() > 0


def test_the_table_is_the_figure_in_rows(book: RunBook) -> None:
    frame = book.view("1").frames[0]
    begin, end = span_ns(frame)
    oldest = read_oldest(book.store, 1)[0]
    for window in ((begin, end), (begin, begin + 300_000_000)):
        buckets = downsample(frame, *window)
        drawn = Drawn(reasons=REASONS, window_ns=window, oldest_ns=oldest.peaks(buckets.edges_ns))
        rows = timeline_rows(buckets, drawn)
        assert 0 < len(rows) <= 30
        assert {len(row) for row in rows} == {len(HEAD)}
        by_name = dict(zip(HEAD, zip(*rows, strict=True), strict=True))
        longest = seconds(int(buckets.peak["duration_ns"].max()) / 1e9)
        assert longest in by_name["Longest"]
        assert seconds(float(drawn.oldest_ns.max()) / 1e9) in by_name["Oldest wait"]  # type: ignore[union-attr]
        assert sum(int(each.replace(",", "")) for each in by_name["Preempted"]) == buckets.preempted.sum()
        assert sum(int(each.replace(",", "")) for each in by_name["Iterations"]) == buckets.iterations.sum()
        assert set(by_name["Refused by"]) <= {*REASONS, "-"}


def test_the_window_is_no_part_of_a_selection() -> None:
    key = overlay_key("s", Address(run="1", cls="a", t=(1.0, 2.0)))
    assert key == overlay_key("s", Address(run="last", cls="a", last_s=3.0, iterations=(1, 2)))
    assert key != overlay_key("s", Address(run="1", cls="b", t=(1.0, 2.0)))
    assert key != overlay_key("z", Address(run="1", cls="a", t=(1.0, 2.0)))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("narrow", [False, True])
def test_strips_and_lanes_do_not_overlap(theme: str, narrow: bool) -> None:
    rows = iteration_rows(400)
    rows["recomputed_tokens"] = rows["prefill_tokens"] // 2
    columns = Columns()
    columns.append(rows)
    marks = (
        Bracket("A", 0.5, (0.0, 4.0), True),
        Bracket("B", 0.25, (3.0, 3.5), False),
        Bracket("C", 0.1, (1.0, 1.5), False),
        Bracket("elsewhere", 0.1, (8.0, 9.0), False),
    )
    window = (0, 3_300_000_000)
    figure = timeline_figure(
        downsample(columns.frame(), *window),
        Drawn(reasons=REASONS, window_ns=window, overlay=Overlay(marks), kv_total=1000, reserved=50, budget=1024,
              marked_s=(1.0, 1.1)),
        THEMES[theme], narrow=narrow,
    )  # fmt: skip
    layout = go.Figure(figure).layout
    domains = [layout[name].domain for name in ("yaxis", "yaxis2", "yaxis3", "yaxis4", "yaxis5")]
    for above, below in zip(domains, domains[1:], strict=False):
        assert above[0] > below[1]
    lanes = [note for note in layout.annotations if note.text.startswith("<b>") and "%" in note.text]
    assert [note.text.split("</b>")[0] for note in lanes] == ["<b>A", "<b>B", "<b>C"]
    assert len({note.y for note in lanes}) == 3
    assert min(note.y for note in lanes) > domains[0][1]
    for shape in layout.shapes:
        assert 0 <= shape.x0 <= shape.x1 <= 3.3
    (recomputed,) = [each for each in figure["data"] if each["name"] == "recomputed"]
    assert recomputed["fillpattern"]["shape"] == "/"

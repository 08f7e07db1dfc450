"""What the pages say of a real run, held against SQL on its tables; and every page drawn, or refused in a sentence."""

from __future__ import annotations

import base64
import json
import re
import shutil
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from dash import no_update
from dash.development.base_component import Component
from hypothesis import given
from hypothesis import strategies as st

from dashboards.address import Address, parse_address
from dashboards.app import create_app
from dashboards.beside import beside as run_beside
from dashboards.beside import findings_beside, level_of
from dashboards.beside_figures import tails_figure, tails_rows
from dashboards.blame import WAITS, beside, carriers, stretches, waits_of
from dashboards.frame import render_frame
from dashboards.heading import heading_of, selection_chips
from dashboards.many_runs import many_runs
from dashboards.members import members_of
from dashboards.memory import peak_of, preempted, pressure_of
from dashboards.overlay import overlay_of
from dashboards.pages import PAGES, compare, compare_more, memory, quality, requests, runs, tail, trace, verdict
from dashboards.pages.timeline_detail import render_detail
from dashboards.pair_figure import SYMBOLS, pair_figure
from dashboards.palette import DARK, LIGHT
from dashboards.queries import RunBook
from dashboards.request_rows import list_requests, lives_of
from dashboards.run_rows import read_runs
from dashboards.selection import choices_of, selected
from dashboards.tail import contrasts, percentiles, tail_map
from dashboards.tail_figures import map_figure
from dashboards.verdict_figure import excess_figure
from dashboards.verdicts import cards_of, read_verdict
from dashboards.waterfall import describe_lives, waterfall_figure
from dashboards.words import count, number, percent, rate, seconds, short
from tests.dashboards.runs import recorded
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.verdict import build_verdict
from tracekit.errors import UsageError
from tracekit.manifest import VERDICT, folder_of, kept_verdict
from tracekit.store import Store, sql


@pytest.fixture(scope="module")
def book(tight: RunBook) -> RunBook:
    return tight


def rows(book: RunBook, query: str) -> list[tuple[object, ...]]:
    return list(sql(book.store, query).rows)


@given(st.floats(-1e18, 1e18) | st.sampled_from([0.9996, 999.6e-6, 999.6e-9, 3.6e6 * 1234, 1e-7, 999.96, 9999.6]))
def test_numbers_are_read_without_an_exponent_and_mean_what_they_say(value: float) -> None:
    units = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
    said, unit = seconds(value).split(" ")
    assert float(said.replace(",", "")) * units[unit] == pytest.approx(value, rel=5.1e-3)
    assert abs(float(said.replace(",", ""))) < 1000 or unit == "h"
    for text, digits in ((number(value), 4), (short(value), 3), (rate(value).removesuffix("/s"), 3), (short(value, 9), 9)):
        assert not set(text) & set("eE")
        assert float(text.replace(",", "")) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))
    assert not set(count(value) + percent(value)) & set("eE")


def test_an_address_is_written_as_it_is_read() -> None:
    views = [
        Address(),
        Address(run="3", t=(40.0, 83.5), finding="QUEUE_SEATS", requests=(1, 7), cls="short & sweet", metric="gap"),
        Address(run="a b", replica=2, last_s=60.0, tenant="t=1", iterations=(5, 90), latency_s=(0.001, 2.0), compare="2"),
    ]
    for view in views:
        assert parse_address(view.search()) == view, view.search()
    assert Address().search() == ""
    assert views[1].search() == "?run=3&t=40-83.5&f=QUEUE_SEATS&req=1,7&cls=short%20%26%20sweet&m=gap"
    assert parse_address("?req=1,x&it=9-2&m=speed&lat=5-1").ignored == ("req", "it", "m", "lat")
    for chip in selection_chips(views[2]):
        left = parse_address(chip.without)
        assert len(selection_chips(left)) == len(selection_chips(views[2])) - 1, chip


def test_words() -> None:
    assert [seconds(each) for each in (None, float("nan"), 0, 3e-9, 0.0123, 12.3456, 1800, 90000)] == [
        "-", "-", "0 s", "3 ns", "12.3 ms", "12.3 s", "30 min", "25 h",
    ]  # fmt: skip
    assert (count(12345.4), count(None), percent(0.1234), percent(float("nan")), rate(5.19311)) == (
        "12,345", "-", "12.3 %", "-", "5.19/s",
    )  # fmt: skip


def test_the_list_of_runs(book: RunBook) -> None:
    table = read_runs(book)
    assert [row.ref for row in table.rows] == ["4", "3", "2", "1"]
    first = table.rows[3]
    ttft = np.array([each[0] for each in rows(book, "SELECT ttft_ns FROM outcomes WHERE run = 1")], float) / 1e9
    assert (first.name, first.requests, first.state) == ("tight", 250, "finished")
    assert first.ttft_p50_s == pytest.approx(np.percentile(ttft, 50))
    assert first.ttft_p99_s == pytest.approx(np.percentile(ttft, 99))
    assert first.attainment == pytest.approx(rows(book, "SELECT avg(slo_met::INT) FROM outcomes WHERE run = 1")[0][0])
    assert (table.rows[1].attainment, table.rows[1].gap_max_s is None) == (None, False)
    said, drawn = runs.render(table)
    assert said == "4 runs."
    assert "tight" in str(drawn)


def test_requests_are_selected_alike_everywhere(book: RunBook) -> None:
    data = book.data("1")
    classes = choices_of(data).classes
    assert set(classes) == {"interactive", "batch"}
    view = Address(run="1", cls="batch", arrived_s=(2.0, 20.0), latency_s=(0.05, 1e6))
    expected = rows(
        book,
        "SELECT request FROM outcomes WHERE run = 1 AND class = 'batch' AND arrival_ns BETWEEN 2e9 AND 20e9 AND ttft_ns >= 5e7"
        " ORDER BY request",
    )
    assert data.outcomes["request"][selected(data, view)].tolist() == [each[0] for each in expected]
    assert len(expected) > 2
    table = list_requests(data, view)
    assert {row.request for row in table.rows} == {each[0] for each in expected}
    assert (table.selected, table.total) == (len(expected), 250)
    medians = dict(rows(book, "SELECT class, median(ttft_ns) / 1e9 FROM outcomes WHERE run = 1 GROUP BY class"))
    for row in table.rows:
        assert row.excess_s == pytest.approx(row.ttft_s - medians[row.cls])  # type: ignore[operator]
    assert [row.excess_s for row in table.rows] == sorted((row.excess_s for row in table.rows), reverse=True)  # type: ignore[type-var]
    assert not selected(data, replace(view, cls="nobody")).any()


def test_lives_touch_and_last_as_long_as_the_request(book: RunBook) -> None:
    data = book.data("1")
    lives = lives_of(data, tuple(range(20)))
    for life in lives:
        ends = [each.end_s for each in life.stretches]
        assert [each.begin_s for each in life.stretches] == [0.0, *ends[:-1]]
        (e2e,) = rows(book, f"SELECT e2e_ns / 1e9 FROM outcomes WHERE run = 1 AND request = {life.request}")[0]
        assert ends[-1] == pytest.approx(e2e)
    figure = waterfall_figure(lives, DARK)
    drawn = sum(sum(bar["x"]) for bar in figure["data"])
    assert drawn == pytest.approx(sum(life.stretches[-1].end_s for life in lives))
    assert describe_lives(lives).startswith("20 requests drawn")
    assert describe_lives(()) == "No request to draw."


def test_the_tail_and_what_its_requests_have_in_common(book: RunBook) -> None:
    data, slow = book.data("1"), Address(run="1", latency_s=(1.0, 1e8))
    found = tail_map(data, slow)
    assert found is not None
    assert (int(found.counts.sum()), found.n, found.limit_s) == (250, 250, 0.5)
    ttft = np.array([each[0] for each in rows(book, "SELECT ttft_ns FROM outcomes WHERE run = 1")], float) / 1e9
    for each in percentiles(data, slow):
        chosen = ttft[ttft >= 1.0]
        assert each.selected_s == pytest.approx(np.percentile(chosen, each.point))
        assert each.all_s == pytest.approx(np.percentile(ttft, each.point))
        assert each.beyond == (chosen > each.selected_s).sum()
    ranked = contrasts(data, slow)
    assert [each.distance for each in ranked] == sorted((each.distance for each in ranked), reverse=True)
    by_name = {each.name: each for each in ranked}
    waiting = by_name["waiting at arrival"]
    assert waiting.distance > 0.5
    assert waiting.selected_median > waiting.rest_median  # type: ignore[operator]
    share = rows(book, "SELECT avg((class = 'batch')::INT) FROM outcomes WHERE run = 1 AND ttft_ns >= 1e9")[0][0]
    cls = by_name["class"]
    assert cls.selected[cls.labels.index("batch")] == pytest.approx(share)
    assert contrasts(data, Address(run="1")) == ()
    boxes = [each for each in map_figure(found, slow, LIGHT)["layout"]["shapes"] if each["type"] == "rect"]
    assert len(boxes) == 1


def test_memory(book: RunBook) -> None:
    data = book.data("1")
    (one,) = pressure_of(data)
    most, lost = rows(book, "SELECT max(kv_used), sum(preempted) FROM iterations WHERE run = 1")[0]
    assert (one.total, one.most, one.preemptions) == (1299, most, lost)
    assert one.preemptions > 0
    peak = peak_of(data, 0)
    assert peak is not None
    assert peak.used == most
    assert [each.blocks for each in peak.largest] == sorted((each.blocks for each in peak.largest), reverse=True)
    times = dict(rows(book, "SELECT request, count(*) FROM preemptions WHERE run = 1 GROUP BY request"))
    assert {each.request: each.times for each in preempted(data)}.items() <= times.items()


def test_two_runs_beside_each_other(book: RunBook) -> None:
    found = run_beside(book, "1", "2", "ttft")
    assert {each["knob"] for each in found.document["knobs"]} == {"max_num_seqs"}
    pairs = rows(
        book,
        "SELECT a.request, a.ttft_ns / 1e9, b.ttft_ns / 1e9 FROM outcomes a JOIN outcomes b USING (request)"
        " WHERE a.run = 1 AND b.run = 2 ORDER BY request",
    )
    order = np.argsort(found.requests)
    assert np.allclose(np.array(pairs, float)[:, 1], found.before[order])
    assert np.allclose(np.array(pairs, float)[:, 2], found.after[order])


def test_two_runs_beside_each_other_by_class_and_tenant(book: RunBook) -> None:
    found = run_beside(book, "1", "2", "e2e", "batch", "reports")
    query = (
        "SELECT a.request, a.e2e_ns / 1e9, b.e2e_ns / 1e9 FROM outcomes a JOIN outcomes b USING (request)"
        " WHERE a.run = 1 AND b.run = 2 AND a.class = 'batch' AND a.tenant = 'reports' ORDER BY request"
    )
    pairs = np.array(rows(book, query), float)
    assert 0 < len(pairs) < 250
    order = np.argsort(found.requests)
    assert np.allclose(pairs, np.column_stack([found.requests, found.before, found.after])[order])
    assert found.document["requests"] == len(pairs)
    moved = [each["request"] for key in ("losers", "winners") for each in found.document["contest"][key]]
    assert moved and set(moved) <= set(pairs[:, 0])
    assert (found.classes, "reports" in found.tenants) == (("batch", "interactive"), True)
    assert [each.n for each in found.figures] != [each.n for each in run_beside(book, "1", "2", "e2e").figures]
    with pytest.raises(UsageError, match="no request of these runs is of class nobody"):
        run_beside(book, "1", "2", "e2e", "nobody")
    with pytest.raises(UsageError, match="of class batch and tenant nobody"):
        run_beside(book, "1", "2", "e2e", "batch", "nobody")
    tails = tails_rows(found.before, found.after)
    assert [row[0] for row in tails] == ["P50", "P90", "P95", "P99", "P99.9"]
    assert tails[0][1:] == [seconds(np.median(found.before)), seconds(np.median(found.after)),
                            count((found.before > np.median(found.before)).sum())]  # fmt: skip
    curves = tails_figure(found.before, found.after, "E2E", LIGHT)["data"]
    assert [(each["line"]["dash"], f"n = {len(pairs)}" in each["name"]) for each in curves] == [("solid", True), ("dash", True)]


def test_the_cloud_of_two_runs_tells_classes_and_who_lost_apart(book: RunBook) -> None:
    found = run_beside(book, "1", "2", "ttft")
    query = (
        "SELECT a.class, b.ttft_ns > a.ttft_ns, count(*) FROM outcomes a JOIN outcomes b USING (request) WHERE a.run = 1 AND"
        " b.run = 2 AND a.ttft_ns > 0 AND b.ttft_ns > 0 GROUP BY ALL"
    )
    wanted = {f"{name}, {'▲ slower' if lost else '▼ faster or the same'}": n for name, lost, n in rows(book, query)}
    drawn = pair_figure(found.before, found.after, found.requests, LIGHT, ("this run", "the other"), found.of)["data"]
    assert {each["name"]: len(base64.b64decode(each["x"]["bdata"])) // 4 for each in drawn} == wanted
    assert len({(each["marker"]["symbol"], each["marker"]["color"]) for each in drawn}) == len(wanted)
    shapes = {each["name"].split(", ")[0]: each["marker"]["symbol"].removesuffix("-open") for each in drawn}
    assert len(set(shapes.values())) == len(shapes) == 2  # a class has one symbol, open or filled
    many = np.array([f"c{at % 9}" for at in range(len(found.before))], np.object_)
    sides = found.before, found.after, found.requests
    names = {each["name"].split(", ")[0] for each in pair_figure(*sides, DARK, ("a", "b"), many)["data"]}
    assert len(names) == len(SYMBOLS) and "4 other classes" in names
    plain = pair_figure(*sides, DARK, ("a", "b"))["data"]
    assert [each["name"] for each in plain] == ["▲ slower", "▼ faster or the same"]


def test_many_runs_side_by_side(book: RunBook) -> None:
    found = many_runs(book, ["1", "2", "4", "3", "2", "9"])
    assert found.runs == (1, 2, 4) and found.heads[0] == "1 tight"
    assert [each.partition(":")[0] for each in found.left_out] == ["run 3", "run 9"]  # another number of requests; none at all
    by_name = {each.label: each for each in found.rows}
    query = "SELECT median(ttft_ns) / 1e9 FROM outcomes WHERE run IN (1, 2, 4) GROUP BY run ORDER BY run"
    middle = [float(value) for (value,) in rows(book, query)]  # type: ignore[arg-type]
    row = by_name["TTFT P50"]
    fastest = row.texts[middle.index(min(middle))]
    assert row.best == tuple(at for at, text in enumerate(row.texts) if text == fastest) and len(row.best) < 3
    assert row.shares == pytest.approx([each / max(middle) for each in middle], rel=1e-6)
    assert all(len(each.texts) == len(each.shares) == 3 for each in found.rows)
    assert not by_name["Requests"].best  # the same in all, and no side is better
    text = text_of(compare.render(book, "?run=1&cmp=2&also=4,3", "light"))
    assert "All of them side by side" in text and "Left out: run 3: " in text and "★ " in text
    assert "All of them" in text_of(compare.render(book, "?run=1&also=2", "light"))
    assert parse_address("?also=1,x").also == parse_address(f"?also={','.join('1' * 11)}").also == ()


def test_causes_and_queues_beside_each_other(book: RunBook, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [cards_of(read_verdict(book, run).document) for run in ("1", "2")]
    found = findings_beside(*cards)
    assert {each.id for each in found} == {card.id for side in cards for card in side}
    words = {each.id: each.word for each in found}
    for each in found:
        assert (each.before_s is None, each.after_s is None) == (each.word == "new", each.word == "solved")
    assert findings_beside(cards[0], ())[0].word == "solved"
    assert {each.word for each in findings_beside(cards[0], cards[0])} == {"unchanged"}
    assert words
    edges = np.linspace(0, 60e9, 61)
    for what in ("waiting", "running"):
        level = level_of(book.view("1"), what, edges)
        part = f"greatest(0, least(start_ns + duration_ns, 6e10) - greatest(start_ns, 0)) * {what}"
        assert level.sum() == pytest.approx(rows(book, f"SELECT sum({part}) / 1e9 FROM iterations WHERE run = 1")[0][0])
    causes, ended = compare_more.render_causes(book, "?run=1&cmp=2")
    while not ended:
        causes, ended = compare_more.render_causes(book, "?run=1&cmp=2")
    assert all(name in text_of(causes) for name in words)
    assert compare_more.render_causes(book, "?run=1") == ([], True)
    monkeypatch.setattr(compare_more, "coming_verdict", lambda *_: None)
    waiting, ended = compare_more.render_causes(book, "?run=1&cmp=2")
    assert "being made" in text_of(waiting) and not ended
    assert compare_more.render_causes(book, "?run=1&cmp=2", again=True) == (no_update, False)  # only what changes is sent


def test_the_heading(book: RunBook) -> None:
    heading = heading_of(book, Address(run="1"))
    assert heading.title == "run 1 · tight"
    assert "--max-num-seqs 16" in heading.policy
    late = "count(*) FILTER (WHERE ttft_ns > 5e8), count(*) FILTER (WHERE tpot_ns > 5e7)"
    missed = rows(book, f"SELECT {late} FROM outcomes WHERE run = 1")
    assert [chip.text for chip in heading.slo][:2] == [
        f"TTFT ≤ 500 ms: {count(missed[0][0])} missed", f"TPOT ≤ 50 ms: {count(missed[0][1])} missed",
    ]  # fmt: skip
    assert heading_of(book, Address(run="3")).slo[0].text.startswith("no SLO")
    assert heading_of(book, Address(run="nope")).note.startswith("run nope: no such run")


RENDERS = {
    "requests": lambda book, search: requests.render(book, search, "excess", "light"),
    "tail": lambda book, search: tail.render(book, search, "dark"),
    "memory": lambda book, search: memory.render(book, search, "light"),
    "compare": lambda book, search: compare.render(book, search, "dark"),
    "trace": lambda book, search: trace.render(book, search, "light"),
    "quality": lambda book, search: quality.render(book, search),
    "verdict": lambda book, search: verdict.render(book, search, "light"),
}


def text_of(drawn: object) -> str:
    """Everything on a page as the browser gets it."""

    def plain(each: object) -> object:
        return each.to_plotly_json() if isinstance(each, Component) else repr(each)

    return json.dumps(drawn, default=plain, ensure_ascii=False)


@pytest.mark.parametrize("page", RENDERS)
@pytest.mark.parametrize(
    "search",
    ["?run=1", "?run=2&cls=batch&t=5-30", "?run=3", "?run=nope", "?run=1&cmp=3", "?run=1&cls=nobody", "?run=1&req=12&m=tpot"],
)
def test_no_page_fails_or_shows_what_is_not_a_number(book: RunBook, page: str, search: str) -> None:
    text = text_of(RENDERS[page](book, search))
    assert "NaN" not in text
    assert not re.search(r"\bnan\b", text.lower())
    if search == "?run=nope":
        assert "no such run" in text
    if search == "?run=1&cmp=3" and page == "compare":
        assert "not comparable" in text


def test_every_page_is_reached_from_the_rail_with_the_selection(book: RunBook) -> None:
    rail, _, chips = render_frame(book, "/tail", "?run=1&cls=batch")
    assert [link.href for link in rail] == [f"{page.path}?run=1&cls=batch" for page in PAGES]
    assert [link.className for link in rail].count("current") == 1
    assert [chip.href for chip in chips] == ["/tail?run=1"]
    client = create_app(book.store.path).server.test_client()
    for page in PAGES:
        assert client.get(page.path).status_code == 200
        assert page.layout() is not None


def test_the_verdict_is_the_diagnosis_in_words(book: RunBook) -> None:
    found = read_verdict(book, "1")
    assert not found.recorded
    assert found.document == build_verdict(book.data("1"), diagnose(book.data("1")), budget=None)
    cards = cards_of(found.document)
    assert {card.id for card in cards} == {each["id"] for each in found.document["findings"]}
    assert cards
    said, body = verdict.render(book, "?run=1", "dark")
    text = text_of(body)
    assert said == found.document["verdict"]
    for card in cards:
        assert card.name in text
        assert all(name in text and value in text for name, value, _, _ in card.evidence[:3])
        assert f"/timeline?run=1&t={card.t_s[0]:.9f}".rstrip("0").rstrip(".") in text
    assert "tracekit diagnose 1" in text
    left = found.document["unexplained"]["excess_s"]
    figure = excess_figure(cards, left, LIGHT)
    assert figure["data"][-1]["name"] == "not explained"
    assert sum(bar["x"][0] for bar in figure["data"]) == pytest.approx(found.document["excess_s"], rel=1e-4)


def test_the_verdict_that_a_replay_ended_with_is_not_found_again_and_another_is_not_taken_for_it(
    tight: RunBook, tmp_path: Path
) -> None:
    shutil.copytree(tight.store.path.parent, tmp_path / "own")
    book = RunBook(tmp_path / "own" / tight.store.path.name)
    (begun,) = rows(book, "SELECT started_at FROM runs WHERE run = 1")[0]
    assert isinstance(begun, datetime)
    kept = kept_verdict(book.store, 1, begun)
    assert kept == build_verdict(book.data("1"), diagnose(book.data("1")), budget=None)
    fresh = RunBook(book.store.path)
    assert read_verdict(fresh, "1").document == kept
    first, whole = (verdict.render(fresh, "?run=2", "light", within)[0] for within in (0.0, 60.0))
    assert first in (verdict.COMING, whole)
    assert whole == read_verdict(book, "2").document["verdict"]
    file = folder_of(book.store, 1) / VERDICT
    text = file.read_text(encoding="utf-8")
    assert kept_verdict(book.store, 1, begun + timedelta(seconds=1)) is None  # a run that had this number before
    assert kept_verdict(book.store, 3, begun) is None  # outcomes only: there was none to write
    for other in (text.replace('"excess_s"', '"excess"', 1), text[:-40], ""):
        file.write_text(other, encoding="utf-8")
        assert kept_verdict(book.store, 1, begun) is None
    assert read_verdict(RunBook(book.store.path), "1").document == kept
    file.write_text(text, encoding="utf-8")


def test_one_steps_through_where_the_selected_waited_most(book: RunBook) -> None:
    data, view = book.data("1"), Address(run="1", cls="interactive")
    end = int((data.iterations["start_ns"] + data.iterations["duration_ns"]).max())
    waits = waits_of(data, view)
    found = stretches(waits, (0, end))
    assert len(found) > 1
    assert all(a[1] < b[0] for a, b in pairwise(found))
    cuts = np.array(sorted({0, end, *(edge for each in found for edge in each)}))
    waited = dict(zip(cuts[:-1].tolist(), waits.within(cuts).waited_ns.tolist(), strict=True))
    carried = sum(waited[begin] for begin, _ in found)
    assert carried >= 0.8 * sum(waited.values())
    assert beside(found, (0, end)) == (found[-1], found[0])
    seen, search = [], view.search()
    for _ in found:  # every stretch once, by what the page's own links say
        (link,) = [each for each in links_of(render_detail(book, search, "light")) if getattr(each, "id", None) == "blame-next"]
        search = link.href.removeprefix("/timeline")
        seen.append(tuple(round(edge * 1e9) for edge in parse_address(search).t or ()))
    assert np.abs(np.array(seen) - np.array(found)).max() <= 1000
    last = [getattr(each, "id", None) for each in links_of(render_detail(book, search, "light"))]
    assert "blame-previous" in last
    assert "blame-next" not in last


def links_of(parts: object) -> list[Component]:
    """Every link in what a page shows, in order."""
    if isinstance(parts, list | tuple):
        return [link for part in parts for link in links_of(part)]
    if not isinstance(parts, Component):
        return []
    inner = links_of(getattr(parts, "children", None))
    return [parts, *inner] if type(parts).__name__ == "Link" else inner


def test_blame_sums_to_what_the_selected_requests_waited(book: RunBook) -> None:
    data, view = book.data("1"), Address(run="1", cls="interactive")
    end = int((data.iterations["start_ns"] + data.iterations["duration_ns"]).max())
    waits = ", ".join(f"'{phase}'" for phase in WAITS)
    query = (
        "SELECT sum(s.end_ns - s.start_ns), sum(greatest(0, least(s.end_ns, 30e9) - greatest(s.start_ns, 10e9))) FROM spans s"
        f" JOIN outcomes o USING (run, request) WHERE run = 1 AND o.class = 'interactive' AND s.phase IN ({waits})"
    )
    whole, part = rows(book, query)[0]
    found = waits_of(data, view).within(np.linspace(0, end, 401).astype(np.int64))
    assert (found.total_ns, float(found.waited_ns.sum())) == (whole, pytest.approx(float(whole), rel=1e-9))  # type: ignore[arg-type]
    window = waits_of(data, view).within(np.linspace(10 * 10**9, 30 * 10**9, 101).astype(np.int64))
    assert float(window.waited_ns.sum()) == pytest.approx(float(part), rel=1e-9)  # type: ignore[arg-type]
    assert 0 < carriers(window.waited_ns) <= 100


@pytest.mark.parametrize(
    "address", ["cls=interactive", "lat=0.2-60", "arr=3-12", "arr=2-20&lat=0.05-60&cls=batch", "f={finding}", "req=3,7"]
)
def test_a_selection_is_of_the_same_requests_on_every_page_and_in_every_window(address: str, book: RunBook) -> None:
    finding = read_verdict(book, "1").document["findings"][0]["id"]
    counts = set()
    for window in ("", "&t=4-6", "&t=0-1000", "&last=5"):
        search = f"?run=1&{address.format(finding=finding)}{window}"
        drawn = text_of(tail.render(book, search, "light"))
        counts.add(re.search(r"The ([\d,]+) selected requests", drawn)[1])  # type: ignore[index]
        counts.add(re.match(r"([\d,]+) of ", requests.render(book, search, "excess", "light")[0])[1])  # type: ignore[index]
        counts.add(re.search(r"The ([\d,]+) selected requests", text_of(render_detail(book, search, "light")))[1])  # type: ignore[index]
        waits = overlay_of(book, parse_address(search)).waits
        assert waits is not None
        counts.add(f"{waits.requests:,}")
    assert len(counts) == 1 and counts != {"0"}


def test_iterations_one_by_one(book: RunBook) -> None:
    data = book.data("1")
    first = data.iterations[200:230]
    begin, end = int(first["start_ns"][0]), int(first["start_ns"][-1]) + 1
    found = members_of(data, 0, begin, end)
    assert [each.iteration for each in found] == first["iteration"].tolist()
    for each, row in zip(found, first, strict=True):
        assert sum(tokens for _, tokens, _, _ in each.prefill) == row["prefill_tokens"]
        assert each.expected_s == pytest.approx(row["duration_ns"] / 1e9, rel=1e-6)
    assert members_of(data, 0, 0, 10**15) == ()
    drawn = text_of(render_detail(book, f"?run=1&t={begin / 1e9}-{end / 1e9}", "light"))
    assert "Iterations one by one" in drawn
    assert render_detail(book, "?run=1", "light") == []


def test_a_run_of_an_older_version_is_named(store: Store) -> None:
    recorded(store, "old", 10)
    text = text_of(tail.render(RunBook(store.path), "?run=1", "light"))
    assert "older version" in text or "keeps no requests" in text

"""Charts saved in a real browser: the CSV has the values that are drawn, the images are images."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboards.address import Address
from dashboards.distribution import distribution_figure, distribution_of
from dashboards.pages.timeline_answer import render
from dashboards.palette import LIGHT
from dashboards.queries import RunBook
from dashboards.request_rows import DRAWN, list_requests, lives_of
from dashboards.tail import contrasts, percentiles, tail_map
from dashboards.tail_figures import contrast_figure
from dashboards.verdict_figure import excess_figure
from dashboards.verdicts import Card, cards_of, read_verdict
from dashboards.waterfall import waterfall_figure
from tests.dashboards.browser import serving
from tests.dashboards.watched import Watched


@pytest.fixture(scope="module")
def book(tight: RunBook) -> RunBook:
    return tight


@pytest.fixture(scope="module")
def site(book: RunBook, browser: Any) -> Iterator[Watched]:
    with serving(book.store.path) as url:
        context = browser.new_context(viewport={"width": 1400, "height": 1000}, accept_downloads=True)
        yield Watched(context.new_page(), url)
        context.close()


def saved(site: Watched, chart: str, kind: str, tmp_path: Path) -> bytes:
    """What the chart's button leaves on the disk."""
    page = site.page
    page.wait_for_function("name => document.querySelector(`#${name} .main-svg .trace`)", arg=chart)
    with page.expect_download() as got:
        page.click(f"[data-chart={chart}][data-export={kind}]")
    assert got.value.suggested_filename == f"{chart}.{kind}"
    got.value.save_as(tmp_path / f"{chart}.{kind}")
    return (tmp_path / f"{chart}.{kind}").read_bytes()


def values(drawn: Any) -> list[Any]:
    """An array of a figure as numbers, whether it is packed or a list."""
    if isinstance(drawn, dict):
        return list(np.frombuffer(b64decode(drawn["bdata"]), dtype=f"<{drawn['dtype']}").tolist())
    return list(drawn)


def rows_of(figure: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [
        (trace["name"], x, y)
        for trace in figure["data"]
        for x, y in zip(places(trace), values(trace["y"]), strict=True)
    ]  # fmt: skip


def places(trace: dict[str, Any]) -> list[Any]:
    """Where a trace's points stand: each said, or the first and the distance."""
    if "x" in trace:
        return values(trace["x"])
    return [trace["x0"] + at * trace["dx"] for at in range(len(values(trace["y"])))]


def same(text: bytes, figure: dict[str, Any], titles: tuple[str, str]) -> None:
    """Every drawn point is a row, in the order in which they are drawn, by value."""
    head, *rows = csv.reader(io.StringIO(text.decode()))
    assert tuple(head[:3]) == ("series", *titles)
    wanted = rows_of(figure)
    assert len(rows) == len(wanted) > 0
    for row, (name, *point) in zip(rows, wanted, strict=True):
        assert row[0] == name
        for got, value in zip(row[1:3], point, strict=True):
            assert got == value if isinstance(value, str) else float(got) == pytest.approx(value, rel=1e-6), (row, point)


def test_the_csv_of_a_curve_and_of_bars_is_what_is_drawn(site: Watched, book: RunBook, tmp_path: Path) -> None:
    site.open("tail?run=1")
    data, view = book.data("1"), Address(run="1")
    curve = distribution_figure(distribution_of(data, view), percentiles(data, view), None, "TTFT", LIGHT)
    same(saved(site, "tl-cdf", "csv", tmp_path), curve, ("TTFT, seconds", "took as long or longer"))
    head, *rows = csv.reader(io.StringIO(saved(site, "tl-map", "csv", tmp_path).decode()))
    drawn = tail_map(data, view)
    assert drawn is not None and head == ["latency, s", "arrival, seconds on the engine clock", "requests", "id"]
    assert sum(int(row[2]) for row in rows if not row[3]) == drawn.n  # counts, not their logarithms
    points = {int(row[3]): (float(row[1]), float(row[0])) for row in rows if row[3]}
    assert points == {number: pytest.approx((at, value), rel=1e-4) for number, at, value in drawn.worst}
    contrast = contrast_figure(contrasts(data, replace(view, cls="interactive"))[0], LIGHT)
    site.go("tail?run=1&cls=interactive")
    site.until("tl-contrasts", "selected|interactive|apart")
    same(saved(site, "tl-contrast-0", "csv", tmp_path), contrast, ("x", "y"))
    site.go("requests?run=1").until("rq-said", "selected")
    lives = lives_of(data, tuple(row.request for row in list_requests(data, view).rows[:DRAWN]))
    same(saved(site, "rq-figure", "csv", tmp_path), waterfall_figure(lives, LIGHT), ("seconds since arrival", "y"))
    site.open("verdict?run=1")
    document = read_verdict(book, "1").document
    bars = excess_figure(cards_of(document), document["unexplained"]["excess_s"], LIGHT)
    same(saved(site, "vd-excess", "csv", tmp_path), bars, ("seconds of request time in excess", "y"))
    site.open("timeline?run=1").drawn()
    strips = render(book, "?run=1", "light", {}).figure
    assert any("dx" in trace for trace in strips["data"])
    same(saved(site, "timeline", "csv", tmp_path), strips, ("x", "tokens"))
    assert site.wrong == []


def test_images_are_images_of_the_chart(site: Watched, book: RunBook, tmp_path: Path) -> None:
    site.open("verdict?run=1")
    root = ET.fromstring(saved(site, "vd-excess", "svg", tmp_path))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = " ".join(root.itertext())
    document = read_verdict(book, "1").document
    assert all(card.id in words for card in cards_of(document))
    assert "not explained" in words
    picture = saved(site, "vd-excess", "png", tmp_path)
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture[-8:-4] == b"IEND"
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (2 * int(float(root.attrib["width"])), 2 * int(float(root.attrib["height"])))
    assert site.wrong == []


def test_neighbours_in_the_bar_of_causes_differ_by_more_than_colour(book: RunBook) -> None:
    (card, *_) = cards_of(read_verdict(book, "1").document)
    many: list[Card] = [card._replace(id=f"CAUSE_{at}") for at in range(8)]
    bars = excess_figure(many, 1.0, LIGHT)["data"]
    hatches = [bar["marker"].get("pattern", {}).get("shape", "") for bar in bars]
    assert all(a != b for a, b in zip(hatches, hatches[1:], strict=False))
    looks = [(bar["marker"]["color"], hatch) for bar, hatch in zip(bars, hatches, strict=True)]
    assert len(set(looks)) == len(looks) == 9
    for n, name in ((9, "1 other"), (13, "5 others")):
        named = [card._replace(id=f"CAUSE_{at}", excess_s=1.0 + at) for at in range(n)]
        data = excess_figure(named, 2.0, LIGHT)["data"]
        assert [bar["name"] for bar in data[-2:]] == [name, "not explained"]
        assert sum(bar["x"][0] for bar in data) == pytest.approx(2.0 + sum(each.excess_s for each in named))
        assert data[-2]["marker"]["pattern"]["shape"] not in (data[-3]["marker"]["pattern"]["shape"], ".")

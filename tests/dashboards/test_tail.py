"""The tail in parts: where the time of the selected went, how their latency is distributed, how badly they stood still."""

from __future__ import annotations

import base64
import json

import numpy as np
import plotly.graph_objects as go
import pytest
from dash.development.base_component import Component

from dashboards.address import METRICS, Address
from dashboards.decomposition import decompose, describe_parts, parts_figure
from dashboards.distribution import distribution_figure, distribution_of
from dashboards.pages.tail import render_parts
from dashboards.palette import THEMES
from dashboards.queries import RunBook
from dashboards.selection import selected
from dashboards.stalls import describe_stalls, stalls_of
from dashboards.tail import contrasts, percentiles

SLOW = Address(run="1", latency_s=(1.0, 1e8))


@pytest.fixture(scope="module")
def book(tight: RunBook) -> RunBook:
    return tight


def drawn(figure: dict[str, object]) -> dict[str, list[float]]:
    return {each.name: list(each.x) for each in go.Figure(figure).data}


@pytest.mark.parametrize("metric", METRICS)
def test_the_parts_are_all_of_the_time(book: RunBook, metric: str) -> None:
    data, view = book.data("1"), Address(run="1", cls="interactive", metric=metric)
    found = decompose(data, book.attribution("1"), view)
    assert found is not None
    rows, chosen = data.outcomes, selected(data, view)
    first = np.where(rows["ttft_ns"] >= 0, rows["ttft_ns"], rows["e2e_ns"])
    whole = {"ttft": first, "e2e": rows["e2e_ns"]}.get(metric, rows["e2e_ns"] - first) / 1e9
    for side, mask in ((0, chosen), (1, data.counted[rows["request"]] & ~chosen)):
        assert found.n[side] == mask.sum()
        assert found.total_s[side] == pytest.approx(whole[mask].mean(), rel=1e-9)
        own = [each.selected_s if side == 0 else each.rest_s for each in found.parts]
        assert sum(own) == pytest.approx(found.total_s[side], rel=1e-9)  # type: ignore[arg-type]
    assert found.parts[-1].name == "not_explained"
    for theme in THEMES.values():
        bars = drawn(parts_figure(found, theme))
        assert "not_explained" in bars
        assert sum(each[1] for each in bars.values()) == pytest.approx(found.total_s[0], rel=0.02)
    assert f"{found.n[0]} selected requests" in describe_parts(found)


def test_queue_time_by_reason_is_that_of_the_outcomes(book: RunBook) -> None:
    data = book.data("1")
    found = decompose(data, book.attribution("1"), SLOW)
    assert found is not None
    queued = sum(each.selected_s for each in found.parts if each.name.startswith("queue.") or each.name == "under_way")
    assert queued == pytest.approx(data.outcomes["queue_ns"][selected(data, SLOW)].mean() / 1e9, rel=0.01)
    assert decompose(data, book.attribution("1"), Address(run="1", cls="nobody")) is None
    alone = decompose(data, book.attribution("1"), Address(run="1"))
    assert alone is not None
    assert (alone.total_s[1], alone.n[1], {each.rest_s for each in alone.parts}) == (None, 0, {None})
    assert len(next(iter(drawn(parts_figure(alone, THEMES["light"])).values()))) == 1


def test_the_distribution_and_what_its_percentiles_rest_on(book: RunBook) -> None:
    data = book.data("1")
    curves, points = distribution_of(data, SLOW), percentiles(data, SLOW)
    ttft = np.sort(data.outcomes["ttft_ns"] / 1e9)
    assert [(each.who, each.n) for each in curves] == [("selected", int((ttft >= 1).sum())), ("all", 250)]
    for each, of in zip(curves, (ttft[ttft >= 1], ttft), strict=True):
        for value, share in zip(each.latency_s, each.share, strict=True):
            assert share == pytest.approx((of >= value).mean(), abs=1.5 / len(of))
        assert (each.latency_s[-1], each.share[-1]) == (of[-1], 1 / len(of))
    figure = distribution_figure(curves, points, 0.5, "TTFT", THEMES["dark"])
    go.Figure(figure)
    assert figure["data"][-1]["text"] == [f" P{each.point:g}: {each.beyond} beyond" for each in points]
    assert len(distribution_of(data, Address(run="1"))) == 1
    assert np.frombuffer(base64.b64decode(figure["data"][0]["y"]["bdata"]), "<f4")[0] == 1


def test_stalls_stand_beside_the_percentiles(book: RunBook) -> None:
    data = book.data("1")
    mine, rest = stalls_of(data, SLOW)
    chosen = selected(data, SLOW)
    gaps = data.outcomes["max_gap_ns"] / 1e9
    stalled = data.outcomes["stalled_ns"] / 1e9
    assert (mine.n, rest.n) == ((chosen & (gaps >= 0)).sum(), (~chosen & (gaps >= 0)).sum())
    assert mine.gap_max_s == gaps[chosen].max()
    assert rest.gap_p99_s == pytest.approx(np.percentile(gaps[~chosen & (gaps >= 0)], 99))
    assert mine.stalled == (stalled[chosen] > 0).sum()
    assert mine.stalled_mean_s == pytest.approx(stalled[chosen & (gaps >= 0)].mean())
    assert describe_stalls((mine, rest)).startswith("The longest gap between two tokens of ")
    (nobody, _) = stalls_of(data, Address(run="1", cls="nobody"))
    assert describe_stalls((nobody,)).startswith("None of the selected")


def test_the_longest_prompt_beside_an_arrival(book: RunBook) -> None:
    """Held against looking at everybody for everybody."""
    data = book.data("1")
    rows = data.outcomes
    begin, end = rows["arrival_ns"] + rows["queue_ns"], rows["last_token_ns"]
    there = (begin[None, :] < rows["arrival_ns"][:, None]) & (rows["arrival_ns"][:, None] < end[None, :])
    longest = np.where(there, rows["prompt_tokens"][None, :], 0).max(axis=1)
    (found,) = [each for each in contrasts(data, SLOW) if each.name == "longest prompt in the engine at arrival"]
    chosen = selected(data, SLOW)
    assert found.selected_median == np.median(longest[chosen])
    assert found.rest_median == np.median(longest[~chosen])


def test_a_run_without_iterations_says_so(book: RunBook) -> None:
    said = json.dumps(
        render_parts(book, "?run=3", "light"),
        default=lambda each: each.to_plotly_json() if isinstance(each, Component) else repr(each),
    )
    assert "kept no iterations" in said
    assert "NaN" not in said

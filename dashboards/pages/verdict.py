"""What is wrong, how sure is it, what to change, and what a replay said. The findings in the order of what they explain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html
from dash.exceptions import PreventUpdate

from dashboards.acts import register_acts, tune_button
from dashboards.address import Address, parse_address
from dashboards.download_links import run_links
from dashboards.expected_rows import expected_rows, expected_said
from dashboards.markup import data_table, figure_with_table
from dashboards.pages.verdict_card import SIGNS, card_of
from dashboards.pages.verdict_live import render_live
from dashboards.palette import THEMES, Theme
from dashboards.queries import RunBook
from dashboards.so_far import SoFarKeeper
from dashboards.spoken import spoken
from dashboards.verdict_figure import describe_excess, excess_figure
from dashboards.verdicts import SOON_S, Card, Verdict, cards_of, coming_verdict, figure_name
from dashboards.words import percent, seconds
from tracekit.errors import TracekitError

__all__ = ["COMING", "expected_part", "layout", "register", "render"]

LOUDEST = {"ttft": "ttft p99", "tpot": "tpot p50", "gap": "longest gap", "e2e": "e2e p99"}
"""The figure that says most of a measure that is in excess."""
COMING = (
    "This run has no verdict yet: its replay was told not to make one. It is being made now, which takes seconds, and appears"
    " here by itself. Timeline, Tail and Requests can be read meanwhile."
)
LOUD = 0.2
"""A share that nothing explains: beyond, the page says so before it recommends anything."""


def layout() -> Any:
    return html.Div(
        [
            html.H1("Verdict"),
            html.P("Loading …", id="vd-said", className="verdict", role="status"),
            html.P(id="vd-acted", className="acted", role="status"),
            dcc.Interval(id="vd-tick", interval=2000),
            dcc.Store(id="vd-drawn"),
            html.Div(id="vd-body"),
        ]
    )


def register(app: Dash, book: RunBook) -> None:
    keeper = SoFarKeeper(book)

    def show(search: str | None, theme: str | None, _: int | None, drawn: Any, paused: bool | None) -> tuple[Any, Any, Any]:
        ticked = ctx.triggered_id == "vd-tick"
        if ticked and ((paused and drawn == "live") or drawn == "ended"):  # what is recorded does not change under a page
            raise PreventUpdate
        live = render_live(keeper, search)
        if live is not None:
            return *live, "live"
        said, body = render(book, search, theme if theme in THEMES else "light", SOON_S)
        return said, body, "waiting" if body is None else "ended"  # what could not be read is asked for again

    app.callback(
        Output("vd-said", "children"),
        Output("vd-body", "children"),
        Output("vd-drawn", "data"),
        Input("url", "search"),
        Input("theme", "data"),
        Input("vd-tick", "n_intervals"),
        State("vd-drawn", "data"),
        State("paused", "data"),
    )(show)
    register_acts(app, book)


def render(book: RunBook, search: str | None, theme: str, within_s: float = 60.0) -> tuple[Any, Any]:
    """The verdict in one sentence, and all below it; where it takes longer than ``within_s`` to make, that it is being made."""
    address = parse_address(search)
    try:
        found = coming_verdict(book, address.run, within_s)
    except TracekitError as error:
        return spoken(error), None
    if found is None:
        return COMING, None
    return found.document["verdict"], list(_body(found, address, THEMES[theme]))


def _body(found: Verdict, address: Address, theme: Theme) -> Iterator[Any]:
    document, cards = found.document, cards_of(found.document)
    excess, left = document["excess_s"], document["unexplained"]["excess_s"]
    if document["unexplained"]["share"] > LOUD and excess > 0:
        share = percent(document["unexplained"]["share"])
        yield html.P(f"{share} of what is slow is not explained by anything below.", className="notice")
    rows = [[card.id, seconds(card.excess_s), percent(card.share)] for card in cards]
    rows.append(["not explained", seconds(left), percent(document["unexplained"]["share"])])
    yield _in_short(cards)
    said = describe_excess(cards, excess, left, document["basis"])
    yield figure_with_table("vd-excess", excess_figure(cards, left, theme), said, ("Cause", "In excess", "Share"), rows)
    if not found.recorded and cards:
        yield html.P(
            ["Nothing has been replayed yet. To prove these: ", html.Code(f"tracekit diagnose {found.run}")], className="hint"
        )
    for card in cards:
        yield card_of(card, address, found.run)
    yield from expected_part(document.get("expected"), address.search())
    yield tune_button()
    asked = dcc.Link("What if …", href="/what-if" + Address(run=str(found.run)).search(), className="button")
    told = " asks how much more traffic it takes, and what other traffic, hardware or replicas would do"
    yield html.Div([asked, html.Span(told, className="hint")], className="ways")
    yield html.Div([html.Span("Take it along:", className="quiet"), *run_links(found.run)], className="ways")
    for text in document["warnings"]:
        yield html.P(text, className="notice")
    if document["remarks"]:
        yield html.H2("Worth knowing")
        yield html.Ul([html.Li(text) for text in document["remarks"]])


def _in_short(cards: tuple[Card, ...]) -> Any:
    """What to do about the first cause, before anything is looked at."""
    advice = cards[0].advice if cards else None
    if advice is None:
        return html.P("No change of the scheduler's settings is recommended for it.", className="short") if cards else html.P()
    what = advice.flags or advice.change
    parts: list[Any] = [html.Strong("What to change: "), html.Code(what), f" · {SIGNS.get(advice.outcome, advice.outcome)}"]
    best = next((each for each in advice.moved if each[0] == LOUDEST.get(cards[0].measure)), None)
    if best is not None:
        parts.append(f", {figure_name(best[0])} {best[1]} → {best[2]}")
    if advice.price:
        parts += [html.Br(), html.Strong("What it costs: "), advice.price]
    return html.P(parts, className="short")


def expected_part(expected: dict[str, Any] | None, search: str) -> Iterator[Any]:
    """The model of where time should go beside where it went, and what of the difference has no name."""
    if expected is None:
        return
    address = parse_address(search)
    yield html.H2("Where the time should go, and where it went")
    yield html.P(expected_said(expected), className="summary")
    head = ("Time of all requests", "Should be", "Was", "Difference")
    yield data_table(head, expected_rows(expected), caption="The largest difference first", numeric=1)
    for effect in expected["unnamed"]:
        begin, end = effect["where"]["t0_s"], effect["where"]["t1_s"]
        shown = address.search(t=(max(begin, 0.0), end) if end > begin else None, last_s=None, finding=None, requests=(),
                               latency_s=None, arrived_s=None)  # fmt: skip
        share = percent(effect["share_of_time"])
        told = f"No name yet: {effect['what']} ({share} of all that requests took). "
        yield html.P([told, dcc.Link("Show where", href="/timeline" + shown)], className="notice")

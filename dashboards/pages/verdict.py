"""What is wrong, how sure is it, what to change, and what a replay said. The findings in the order of what they explain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html
from dash.exceptions import PreventUpdate

from dashboards.acts import change_button, register_acts, tune_button
from dashboards.address import Address, parse_address
from dashboards.download_links import finding_links, run_links
from dashboards.markup import aria, copy_button, data_table, figure_with_table
from dashboards.pages.verdict_live import render_live
from dashboards.palette import THEMES, Theme
from dashboards.queries import RunBook
from dashboards.so_far import SoFarKeeper
from dashboards.verdict_figure import describe_excess, excess_figure
from dashboards.verdicts import Card, Proven, Verdict, cards_of, read_verdict
from dashboards.words import percent, seconds
from tracekit.errors import TracekitError

__all__ = ["layout", "register", "render"]

SHOWN_EVIDENCE = 3
LOUD = 0.2
"""A share that nothing explains: beyond, the page says so before it recommends anything."""
SIGNS = {"confirmed": "✓ confirmed by replay", "refuted": "✗ refuted by replay", "within noise": "≈ within noise",
         "not replayed": "not replayed", "": "not replayed yet"}  # fmt: skip


def layout() -> Any:
    return html.Div(
        [
            html.H1("Verdict"),
            html.P("Loading …", id="vd-said", className="verdict", role="status"),
            html.P(id="vd-acted", className="summary", role="status"),
            dcc.Interval(id="vd-tick", interval=2000),
            dcc.Store(id="vd-drawn"),
            html.Div(id="vd-body"),
        ]
    )


def register(app: Dash, book: RunBook) -> None:
    keeper = SoFarKeeper(book)

    def show(search: str | None, theme: str | None, _: int | None, drawn: Any, paused: bool | None) -> tuple[Any, Any, Any]:
        ticked = ctx.triggered_id == "vd-tick"
        if ticked and (paused or drawn == "ended"):  # what is recorded does not change under a page
            raise PreventUpdate
        live = render_live(keeper, search)
        if live is not None:
            return *live, "live"
        said, body = render(book, search, theme if theme in THEMES else "light")
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


def render(book: RunBook, search: str | None, theme: str) -> tuple[Any, Any]:
    """The verdict in one sentence, and all below it."""
    address = parse_address(search)
    try:
        found = read_verdict(book, address.run)
    except TracekitError as error:
        return str(error), None
    return found.document["verdict"], list(_body(found, address, THEMES[theme]))


def _body(found: Verdict, address: Address, theme: Theme) -> Iterator[Any]:
    document, cards = found.document, cards_of(found.document)
    excess, left = document["excess_s"], document["unexplained"]["excess_s"]
    if document["unexplained"]["share"] > LOUD and excess > 0:
        share = percent(document["unexplained"]["share"])
        yield html.P(f"{share} of what is slow is not explained by anything below.", className="notice")
    rows = [[card.id, seconds(card.excess_s), percent(card.share)] for card in cards]
    rows.append(["not explained", seconds(left), percent(document["unexplained"]["share"])])
    said = describe_excess(cards, excess, left, document["basis"])
    yield figure_with_table("vd-excess", excess_figure(cards, left, theme), said, ("Cause", "In excess", "Share"), rows)
    if not found.recorded and cards:
        yield html.P(
            ["Nothing has been replayed yet. To prove these: ", html.Code(f"tracekit diagnose {found.run}")], className="hint"
        )
    for card in cards:
        yield _card(card, address, found.run)
    yield tune_button()
    yield html.Div([html.Span("Take it along:", className="quiet"), *run_links(found.run)], className="ways")
    for text in document["warnings"]:
        yield html.P(text, className="notice")
    if document["remarks"]:
        yield html.H2("Worth knowing")
        yield html.Ul([html.Li(text) for text in document["remarks"]])


def _card(card: Card, address: Address, run: int) -> Any:
    size = f"{percent(card.share)} of the excess, {seconds(card.excess_s)} ({card.measure})"
    sure = f"{size}; confidence {card.confidence}: {card.because}"
    head = html.Div([html.H2([html.Code(card.id), " ", card.name]), html.P(sure, className="quiet")])
    parts = [head, html.P(f"A consequence of {card.under}.", className="hint") if card.depth else None, html.P(card.what)]
    parts.append(_evidence(card))
    if card.is_not:
        parts.append(html.P(["It is not: ", "; ".join(card.is_not), "."], className="quiet"))
    parts.append(_advice(card))
    parts.append(_ways(card, address))
    if change_button(card):
        parts.append(finding_links(run, card.id))
    name = "card finding step" + (" under" if card.depth else "") + (" chosen" if address.finding == card.id else "")
    return html.Section([each for each in parts if each is not None], className=name, tabIndex="-1", **aria(f"Finding {card.id}"))


def _evidence(card: Card) -> Any:
    first = [[name, value, bound or "-"] for name, value, bound, _ in card.evidence[:SHOWN_EVIDENCE]]
    table = data_table(("Evidence", "Value", "Held against"), first, caption="What it rests on", numeric=1)
    more = [[name, value, bound or "-", html.Code(sql)] for name, value, bound, sql in card.evidence]
    rest = data_table(("Evidence", "Value", "Held against", "How to check it"), more, caption="All of it", numeric=9)
    return html.Div([table, html.Details([html.Summary("All evidence, and the SQL that yields it"), rest])])


def _advice(card: Card) -> Any:
    if card.advice is None:
        tried = [_tried(each) for each in card.tried]
        why = "Nothing is recommended: what was replayed did not help." if tried else "No scheduler knob is recommended."
        return html.Div([html.P(why, className="advice"), *([html.Ul(tried)] if tried else [])])
    advice, outcome = card.advice, SIGNS.get(card.advice.outcome, card.advice.outcome)
    parts: list[Any] = [html.P([html.Strong("Change "), html.Code(advice.change), f" · {outcome}"], className="advice")]
    parts += [html.P(f"{name}: {text}") for name, text in (("Why", advice.why), ("Price", advice.price)) if text]
    parts += [html.Ul([html.Li(text) for text in advice.figures])] if advice.figures else []
    parts += [html.P(advice.reason, className="quiet")] if advice.reason else []
    if card.tried:
        others = html.Ul([_tried(each) for each in card.tried])
        parts.append(html.Details([html.Summary("Other changes that were replayed"), others]))
    return html.Div(parts)


def _tried(each: Proven) -> Any:
    return html.Li(
        [html.Code(each.change), f": {SIGNS.get(each.outcome, each.outcome)}", f". {each.reason}" if each.reason else ""]
    )


def _ways(card: Card, address: Address) -> Any:
    """Show me (the timeline with this finding), its requests, and its flags to paste."""
    begin, end = card.t_s
    window = (max(begin, 0.0), end) if end > begin else None
    shown = address.search(finding=card.id, t=window, last_s=None, requests=(), latency_s=None, iterations=None)
    requests = address.search(finding=card.id, t=None, last_s=None, requests=card.requests[:50], latency_s=None)
    links: list[Any] = [
        dcc.Link("Show me", href="/timeline" + shown, className="button"),
        dcc.Link("Its requests", href="/requests" + requests, className="button"),
    ]
    if card.advice is not None and card.advice.flags:
        name = {"type": "vd-flags", "finding": card.id}
        links.append(html.Code(card.advice.flags, id=name, className="flags"))
        links.append(copy_button(card.advice.flags, "Copy flags"))
    links += change_button(card)
    return html.Div(links, className="ways")

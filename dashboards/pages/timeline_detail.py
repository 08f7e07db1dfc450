"""Below the timeline: whom the selection waited for, and iterations one by one where the window is narrow enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dash import Dash, Input, Output, dcc, html

from dashboards.address import Address, parse_address, window_ns
from dashboards.blame import Waits, beside, carriers, stretches
from dashboards.markup import data_table, figure_with_table
from dashboards.members import MOST, Member, members_of
from dashboards.overlay import overlay_of
from dashboards.palette import THEMES, Theme
from dashboards.plain_figures import step_figure
from dashboards.queries import RunBook
from dashboards.spoken import spoken
from dashboards.words import MISSING, count, percent, seconds
from tracekit.diagnosis import RunData
from tracekit.errors import TracekitError

__all__ = ["register_detail", "render_detail"]

BUCKETS = 400
"""Stretches of a window; where it has carried most of the waiting is told by them."""
SHOWN = 4
"""Prefill entries of an iteration that are named."""


def register_detail(app: Dash, book: RunBook) -> None:
    """One callback of its own, so that the timeline is drawn before it."""

    def show(search: str | None, theme: str | None) -> Any:
        return render_detail(book, search, theme if theme in THEMES else "light")

    app.callback(Output("timeline-detail", "children"), Input("url", "search"), Input("theme", "data"))(show)


def render_detail(book: RunBook, search: str | None, theme: str) -> list[Any]:
    """Nothing where nothing is selected and the window is wide."""
    address = parse_address(search)
    if not address.selects and address.t is None:
        return []
    try:
        if book.recorded(address.run) is None:
            return []
        data = book.data(address.run)
        waits = overlay_of(book, address).waits
    except TracekitError as error:
        return [html.P(spoken(error), className="notice")]
    if not data.has_iterations:
        return []
    its = data.iterations
    span = int(its["start_ns"].min()), int((its["start_ns"] + its["duration_ns"]).max())
    window = window_ns(address, span)
    return [*_blame(waits, window, THEMES[theme]), *_ways(waits, address, window, span), *_members(data, address, window)]


def _blame(waits: Waits | None, window: tuple[int, int], theme: Theme) -> Iterator[Any]:
    if waits is None:
        return
    edges = np.linspace(*window, BUCKETS + 1).astype(np.int64)
    found = waits.within(edges)
    yield html.H2("When the selected requests waited")
    if not found.total_ns:
        yield html.P(f"{_selected(found.requests)} never waited.", className="summary")
        return
    inside = float(found.waited_ns.sum())
    width = (window[1] - window[0]) / BUCKETS / 1e9
    few = carriers(found.waited_ns)
    said = (
        f"{_selected(found.requests)} waited {seconds(found.total_ns / 1e9)} together,"
        f" {percent(inside / found.total_ns)} of it in this window;"
        f" {count(few)} of {BUCKETS} stretches of {seconds(width)} carry 80 %."
    )
    waiting = found.waited_ns / 1e9 / width
    lines = [("selected requests waiting", waiting.tolist(), theme.blame)]
    figure = step_figure(window[0] / 1e9, width, lines, theme, "seconds on the engine clock", "waiting")
    rows = [
        [f"{edges[at] / 1e9:,.3f}", seconds(found.waited_ns[at] / 1e9)] for at in np.argsort(-found.waited_ns, kind="stable")[:50]
    ]
    yield figure_with_table("timeline-blame", figure, said, ("From, s", "Waited"), rows)


def _selected(requests: int) -> str:
    return "The selected request" if requests == 1 else f"The {count(requests)} selected requests"


def _ways(waits: Waits | None, address: Address, window: tuple[int, int], span: tuple[int, int]) -> Iterator[Any]:
    """Links to where else they waited most (``[`` and ``]``)."""
    found = [] if waits is None else stretches(waits, span, BUCKETS)
    links: list[Any] = []
    for name, text, to in zip(("previous", "next"), ("◀ Previous wait", "Next wait ▶"), beside(found, window), strict=True):
        if to is not None:
            shown = address.search(t=(to[0] / 1e9, to[1] / 1e9), last_s=None)
            links.append(dcc.Link(text, href="/timeline" + shown, id=f"blame-{name}", className="button"))
    if links:
        links.append(html.Span(f"Of the whole run, {count(len(found))} stretches carry 80 % of it.", className="quiet"))
    if address.t is not None and address.arrived_s is None:
        links.append(dcc.Link("The requests that arrived in this window", href="/requests" + address.search(arrived_s=address.t)))
    if links:
        yield html.Div(links, className="ways")


def _members(data: RunData, address: Address, window: tuple[int, int]) -> Iterator[Any]:
    replica = address.replica if address.replica in data.replicas else data.replicas[0]
    found = members_of(data, replica, *window)
    if not found:
        return
    yield html.H2("Iterations one by one")
    rows = [_row(each, address) for each in found]
    head = (
        "Iteration",
        "Prefill: request tokens@context",
        "Refused at the head",
        "Start, s",
        "Took",
        "Profile says",
        "Decodes",
        "Running",
        "Waiting",
        "Preempted",
    )
    yield data_table(head, rows, caption=f"Replica {replica}; a window of at most {MOST} iterations is shown so", numeric=3)


def _row(each: Member, address: Address) -> list[Any]:
    prefill: list[Any] = []
    for request, tokens, context, again in each.prefill[:SHOWN]:
        link = dcc.Link(f"#{request}", href="/requests" + address.search(requests=(request,)))
        prefill += [link, f" {tokens:,}@{context:,}" + (f" ({again:,} again)" if again else ""), "; "]
    more = len(each.prefill) - SHOWN
    prefill += [f"and {more} more"] if more > 0 else []
    refused: Any = MISSING
    if each.head is not None and each.refused_by:
        refused = [dcc.Link(f"#{each.head}", href="/requests" + address.search(requests=(each.head,))), f" by {each.refused_by}"]
    return [
        count(each.iteration),
        prefill or MISSING,
        refused,
        f"{each.start_s:,.4f}",
        seconds(each.duration_s),
        seconds(each.expected_s),
        count(each.decodes),
        count(each.running),
        count(each.waiting),
        count(each.preempted),
    ]

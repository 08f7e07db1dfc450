"""What Compare shows of two runs besides their requests: the causes that each verdict names, and both queues over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboards.address import Address, parse_address
from dashboards.beside import findings_beside, level_of
from dashboards.beside_figures import Queues, queues_figure, queues_rows
from dashboards.buckets import span_ns
from dashboards.many_runs import many_runs
from dashboards.markup import data_table, figure_with_table
from dashboards.palette import Theme
from dashboards.queries import RunBook
from dashboards.spoken import spoken
from dashboards.verdicts import SOON_S, Verdict, cards_of, coming_verdict
from dashboards.words import MISSING, seconds
from tracekit.errors import LockedError, TracekitError

__all__ = ["compare_many", "compare_queues", "register_causes", "render_causes"]

BINS = 400
CAUSES = "What became of the causes"
_HEAD = ("Cause", "In excess, this run", "The other", "With the other run")


def register_causes(app: Dash, book: RunBook) -> None:
    """They follow what is compared, and are asked for again until both verdicts are there: nothing else is drawn anew for it."""

    def show(_: Any, __: int | None, search: str | None) -> tuple[Any, bool]:
        return render_causes(book, search, again=ctx.triggered_id == "cp-causes-tick")

    app.callback(
        Output("cp-causes", "children"),
        Output("cp-causes-tick", "disabled"),
        Input("cp-body", "children"),
        Input("cp-causes-tick", "n_intervals"),
        State("url", "search"),
    )(show)


def render_causes(book: RunBook, search: str | None, *, again: bool = False) -> tuple[Any, bool]:
    """What became of the causes, and whether there is nothing to wait for. Nothing while there are no two recorded runs: the page
    says why. ``again``: the page asks whether they are there, and keeps what it shows until they are."""
    address = parse_address(search)
    try:
        if address.compare is None or None in (book.recorded(address.run), book.recorded(address.compare)):
            return [], True
        found = [coming_verdict(book, ref, SOON_S) for ref in (address.run, address.compare)]
    except LockedError as error:
        return no_update if again else [html.H2(CAUSES), html.P(spoken(error), className="summary")], False
    except TracekitError as error:
        return [html.H2(CAUSES), html.P(f"They cannot be told: {spoken(error)}", className="summary")], True
    waiting = None in found
    return no_update if again and waiting else list(_causes(found, address)), not waiting


def _causes(verdicts: Sequence[Verdict | None], address: Address) -> Iterator[Any]:
    """Which causes are solved, new or left. A verdict that is still being made is waited for by the page."""
    yield html.H2(CAUSES)
    if None in verdicts:
        yield html.P("One of the two has no verdict yet: it is being made, and this appears by itself.", className="summary")
        return
    mine, theirs = (cards_of(each.document) for each in verdicts if each is not None)
    found = findings_beside(mine, theirs)
    if not found:
        yield html.P("Neither verdict names a cause.", className="summary")
        return
    rows = [
        [
            _link(each.id, address),
            *(MISSING if value is None else seconds(value) for value in (each.before_s, each.after_s)),
            each.word,
        ]
        for each in found
    ]  # fmt: skip
    whole = (
        "Both runs as a whole, whatever is selected" if address.cls or address.tenant else "Request time beyond what is allowed"
    )
    yield data_table(_HEAD, rows, caption=whole, numeric=1)


def _link(name: str, address: Address) -> Any:
    return dcc.Link(name, href="/verdict" + address.search(finding=name), title="Its evidence in this run")


def compare_many(book: RunBook, address: Address) -> list[Any]:
    """This run, the one it is held against and the further ones of the address in one table; nothing where there are no further
    ones."""
    if not address.also:
        return []
    found = many_runs(book, [address.run, *filter(None, [address.compare]), *map(str, address.also)])
    links = [dcc.Link(head, href="/verdict" + address.search(run=str(run), compare=None, also=()), title="Its verdict")
             for run, head in zip(found.runs, found.heads, strict=True)]  # fmt: skip
    rows = [[row.label, *(_cell(text, share, at in row.best) for at, (text, share) in
             enumerate(zip(row.texts, row.shares, strict=True)))] for row in found.rows]  # fmt: skip
    caption = "Whole runs, whatever is selected; bars within a row; ★ marks the best of it"
    parts = [html.H2("All of them side by side"), data_table(("Figure", *links), rows, caption=caption, numeric=1)]
    return parts + [html.P(f"Left out: {why}", className="notice") for why in found.left_out]


def _cell(text: str, share: float | None, best: bool) -> Any:
    said = html.Span(f"★ {text}" if best else text)
    return said if share is None else html.Div([said, html.Span(className="share", style={"width": f"{100 * share:.1f}%"})])


def compare_queues(book: RunBook, address: Address, theme: Theme) -> list[Any]:
    """Both runs' queues on one axis of time; nothing where one of them kept no iterations."""
    views = [book.view(ref) for ref in (address.run, address.compare or "")]
    spans = [span_ns(frame) for view in views for frame in view.frames.values()]
    if not all(view.frames for view in views):
        why = "One of the two runs kept no iterations: their queues cannot be drawn; replay with --events full."
        return [html.H2("Their queues over time"), html.P(why, className="summary")]
    edges = np.linspace(min(begin for begin, _ in spans), max(end for _, end in spans), BINS + 1)
    waiting, running = ([level_of(view, what, edges) for view in views] for what in ("waiting", "running"))
    found = Queues(edges / 1e9, (waiting[0], waiting[1]), (running[0], running[1]))
    most = [f"{values.max():,.0f}" for values in waiting]
    said = f"Requests waiting and running, on average: at most {most[0]} wait in this run, {most[1]} in the other."
    head = ("Time", "Running, this run", "Running, the other", "Waiting, this run", "Waiting, the other")
    return [
        html.H2("Their queues over time"),
        figure_with_table("cp-queues", queues_figure(found, theme), said, head, queues_rows(found)),
    ]

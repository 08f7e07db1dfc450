"""What Compare shows of two runs besides their requests: the causes that each verdict names, and both queues over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from dash import dcc, html

from dashboards.address import Address
from dashboards.beside import findings_beside, level_of
from dashboards.beside_figures import Queues, queues_figure, queues_rows
from dashboards.buckets import span_ns
from dashboards.markup import data_table, figure_with_table
from dashboards.palette import Theme
from dashboards.queries import RunBook
from dashboards.verdicts import Verdict, cards_of
from dashboards.words import MISSING, seconds

__all__ = ["compare_causes", "compare_queues"]

BINS = 400
_HEAD = ("Cause", "In excess, this run", "The other", "With the other run")


def compare_causes(verdicts: Sequence[Verdict | None], address: Address) -> Iterator[Any]:
    """Which causes are solved, new or left. A verdict that is still being made is waited for by the page."""
    yield html.H2("What became of the causes")
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

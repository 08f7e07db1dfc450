"""The answer to a question of capacity: curves, knees, replicas over time, cost; each with its numbers as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dash import html

from dashboards.markup import data_table, figure_with_table
from dashboards.palette import Theme
from dashboards.what_if_figures import cost_figure, curve_figure, needs_figure
from dashboards.what_if_rows import (
    Knee,
    Needs,
    changes_of,
    costs_of,
    describe_costs,
    describe_curves,
    describe_needs,
    extrapolated_of,
    knees_of,
    needs_of,
)
from dashboards.words import MISSING, count, number, percent, short
from tracekit.metrics.slo import SloTable

__all__ = ["answer_of"]


def answer_of(document: Mapping[str, Any], theme: Theme) -> Iterator[Any]:
    """Everything below the sentence."""
    knees, needs, costs = knees_of(document), needs_of(document), costs_of(document)
    changes = changes_of(document)
    if changes:
        yield html.Ul([html.Li([html.Code(name), f": {said}"]) for name, said in changes], className="summary")
    yield html.P(f"{document['traffic'][0]}; profile {document['profile']}; SLO {_slo(document)}.", className="quiet")
    yield from _beware(document)
    yield html.H2("How much each takes")
    head = ("Scenario", "Knee, x today's rate", "Requests/s", "x today's capacity", "Its traffic, x", "Attain their SLO there",
            "Points per 10 % past the knee", "Cards", "Requests/s a card")  # fmt: skip
    yield data_table(head, [_knee(each) for each in knees], caption="The highest rate at which the target holds", numeric=1)
    yield html.H2("Attainment against load")
    rows = [[each.name, number(p.factor), number(p.per_s), percent(p.attainment), count(p.n), "; ".join(p.why) or "within"]
            for each in knees for p in each.points]  # fmt: skip
    columns = ("Scenario", "x today's rate", "Requests/s", "Attain their SLO", "n", "Extrapolation")
    yield figure_with_table("wi-curve", curve_figure(knees, document["target"], theme), describe_curves(document), columns, rows)
    yield html.H2("Replicas over the trace")
    for at, each in enumerate(needs):
        yield _needs(at, each, theme)
    if costs:
        yield html.H2("What it costs")
        cells = [[each.name, each.place, count(each.cards), number(each.per_hour), number(each.output), number(each.both),
                  *(count(tokens) for tokens in each.tokens), percent(each.idle)] for each in costs]  # fmt: skip
        names = ("Scenario", "At", "Cards", "An hour", "A million output tokens", "of input and output", "Input tokens",
                 "of the cache", "Output tokens", "Idle")  # fmt: skip
        yield figure_with_table("wi-cost", cost_figure(costs, theme), describe_costs(costs), names, cells)
        yield html.P("Tokens are those of requests that met their SLO, in the windows that were replayed; all others cost"
                     " too and count for nothing. Idle: share of the time in which an engine ran no iteration.",
                     className="hint")  # fmt: skip
    yield html.H2("How it was found")
    yield html.P("Rates are scaled, not requests: prompts, outputs and what they share stay, so that prefix hits are those of the"
                 " trace, only closer in time. The knee is bisected on the same windows for every scenario.", className="hint")
    yield html.Ul([html.Li(line) for line in document["traffic"][1:]])


def _slo(document: Mapping[str, Any]) -> str:
    table = SloTable.from_dict(document["slo"])
    default = table.default
    if default is None:
        return "by class or tenant"
    parts = ((part, default.limit(part)) for part in default.given())
    return ", ".join(f"{part} ≤ {short((limit or 0) / 1e9, 6)} s" for part, limit in parts) or "by class or tenant"


def _knee(each: Knee) -> list[Any]:
    factor = MISSING if not each.factor else short(each.factor) + (" and more" if each.open else "")
    slope = MISSING if each.slope is None else f"{100 * each.slope:+.1f}"
    over = MISSING if each.over is None else f"{each.over:.2f}"
    return [each.name, factor, number(each.per_s), over, short(each.rate), percent(each.now), slope, count(each.cards),
            number(each.per_s / each.cards)]  # fmt: skip


def _needs(at: int, each: Needs, theme: Theme) -> Any:
    said = describe_needs(each)
    if each.reason is not None:
        return html.P(said, className="summary")
    fleets = [fleet for _, _, fleet in each.windows for _ in range(len(each.slots) // len(each.windows))]
    rows = [[f"{slot.begin_s:,.1f} to {slot.end_s:,.1f} s", number(slot.per_s), str(slot.ideal),
             "more than 64" if fleet is None else str(fleet)]
            for slot, fleet in zip(each.slots, fleets, strict=True)]  # fmt: skip
    head = ("Stretch", "Arrivals/s", "Ideal", "Replayed, its window")
    return figure_with_table(f"wi-needs-{at}", needs_figure(each, theme), said, head, rows)


def _beware(document: Mapping[str, Any]) -> Iterator[Any]:
    found = extrapolated_of(document)
    if not found:
        yield html.P("Every point lies within what the profile was fitted for, and no scaling breaks prefix hashes.",
                     className="quiet")  # fmt: skip
        return
    items = []
    for each in found:
        low, high = min(each.factors, default=0.0), max(each.factors, default=0.0)
        between = f"x{short(low)} to x{short(high)}" if high > low else f"x{short(low)}"
        where = "every point" if each.all else f"{len(each.factors)} points, {between}"
        items.append(html.Li([html.Strong(f"{each.name}, {where}: "), f"{each.why}."]))
    yield html.Div([html.P("Extrapolation:"), html.Ul(items)], className="notice")

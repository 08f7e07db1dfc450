"""Did the change help, and whom did it hurt? Two runs of the same requests: verdicts with intervals, and every request's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboards.address import METRICS, Address, parse_address
from dashboards.beside import Beside, beside
from dashboards.beside_figures import tails_figure, tails_rows
from dashboards.markup import aria, control, data_table, figure_with_table
from dashboards.pages.compare_more import compare_many, compare_queues, register_causes
from dashboards.pair_figure import pair_figure
from dashboards.palette import THEMES, Theme
from dashboards.queries import RunBook
from dashboards.spoken import spoken
from dashboards.words import MISSING, count, seconds
from tracekit.errors import LockedError, TracekitError

__all__ = ["layout", "register", "render"]

WAITING_MS = 1500
"""How often a page that waits for a run, or for a verdict, asks whether it is there."""
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "gap": "longest gap", "e2e": "E2E"}
SIGNS = {"better": "▲ better", "worse": "▼ worse"}


def layout() -> Any:
    metrics = [{"value": each, "label": NAMES[each]} for each in METRICS]
    return html.Div(
        [
            html.H1("Compare"),
            html.Div(
                [
                    control("This run", "cp-run", dcc.Dropdown(id="cp-run", clearable=False), style={"minWidth": "320px"}),
                    control(
                        "against",
                        "cp-other",
                        dcc.Dropdown(id="cp-other", placeholder="choose another run"),
                        style={"minWidth": "320px"},
                    ),
                    control("and", "cp-more", dcc.Dropdown(id="cp-more", multi=True, placeholder="more runs, in one table"),
                            style={"minWidth": "220px"}),
                    control("Latency", "cp-metric", dcc.Dropdown(metrics, id="cp-metric", clearable=False, searchable=False)),
                    control("Class", "cp-class", dcc.Dropdown(id="cp-class", placeholder="all")),
                    control("Tenant", "cp-tenant", dcc.Dropdown(id="cp-tenant", placeholder="all")),
                ],
                className="controls",
                role="group",
                **aria("What is compared"),
            ),
            html.P("Loading …", id="cp-said", className="verdict", role="status"),
            html.P(id="cp-error", className="notice", role="alert"),
            html.Div(id="cp-body"),
            html.Div(id="cp-causes"),
            dcc.Store(id="cp-moved"),
            dcc.Interval(id="cp-tick", interval=WAITING_MS, disabled=True),
            dcc.Interval(id="cp-causes-tick", interval=WAITING_MS, disabled=True),
        ]
    )


def register(app: Dash, book: RunBook) -> None:
    """The choices write the address (in the browser); the address asks for an answer."""
    # Dash has no types for this one.
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("tracekit", "pair"),
        Output("cp-moved", "data"),
        Input("cp-run", "value"),
        Input("cp-other", "value"),
        Input("cp-metric", "value"),
        Input("cp-class", "value"),
        Input("cp-tenant", "value"),
        Input("cp-more", "value"),
        State("url", "search"),
        State("cp-run", "options"),
        prevent_initial_call=True,
    )

    def show(search: str | None, theme: str | None, _: int | None) -> tuple[Any, ...]:
        return render(book, search, theme if theme in THEMES else "light", again=ctx.triggered_id == "cp-tick")

    names = (
        ("cp-run", "options"),
        ("cp-other", "options"),
        ("cp-more", "options"),
        ("cp-run", "value"),
        ("cp-other", "value"),
        ("cp-more", "value"),
        ("cp-metric", "value"),
        ("cp-class", "options"),
        ("cp-class", "value"),
        ("cp-tenant", "options"),
        ("cp-tenant", "value"),
        ("cp-said", "children"),
        ("cp-error", "children"),
        ("cp-body", "children"),
        ("cp-tick", "disabled"),
    )
    asked = (Input("url", "search"), Input("theme", "data"), Input("cp-tick", "n_intervals"))
    app.callback([Output(*each) for each in names], *asked)(show)
    register_causes(app, book)


def render(book: RunBook, search: str | None, theme: str, *, again: bool = False) -> tuple[Any, ...]:
    """Lists and choices of the controls, then verdict, error, all below, and whether there is nothing to wait for. ``again``: the
    page asks whether what it waits for is there, and keeps what it shows until it is."""
    address = parse_address(search)
    more = [str(number) for number in address.also]
    try:
        runs = [{"value": each.ref, "label": each.title} for each in book.catalogue().runs if not each.live]
        row = book.recorded(address.run)
        base = None if row is None else str(row["run"])
        if address.compare is None:
            others = [each["value"] for each in runs if each["value"] != base]
            hint = (
                "Choose the run to hold against this one."
                if others
                else "There is no second run yet: replay the same trace with a change."
            )
            body = compare_many(book, address)
            return runs, runs, runs, base or no_update, None, more, *_choices(address), hint, "", body, True
        other = book.recorded(address.compare)
        if other is None:
            raise LockedError("The other run is under way. This page compares the two as soon as it has been committed.")
        found = beside(book, address.run, address.compare, address.metric, address.cls, address.tenant)
    except LockedError as error:  # what is waited for keeps its place in the address
        kept = (no_update,) * 11 if again else (*(no_update,) * 6, *_choices(address))
        return *kept, spoken(error), "", no_update if again else None, False
    except TracekitError as error:
        return [], [], [], no_update, address.compare, more, *_choices(address), "", spoken(error), None, True
    shown = other and str(other["run"])
    body = [*_body(found, address, THEMES[theme], compare_many(book, address)), *compare_queues(book, address, THEMES[theme])]
    choices = _choices(address, found)
    said = found.document["verdict"] + (" (of the selected requests)" if address.cls or address.tenant else "")
    return runs, runs, runs, base, shown, more, *choices, said, "", body, True


def _choices(address: Address, found: Beside | None = None) -> tuple[Any, ...]:
    """Latency, then which classes and tenants there are and which is chosen."""
    classes, tenants = (list(found.classes), list(found.tenants)) if found else ([], [])
    one, other = (list(dict.fromkeys([*each, *filter(None, [own])])) for each, own in
                  ((classes, address.cls), (tenants, address.tenant)))  # fmt: skip
    return address.metric, one, address.cls, other, address.tenant


def _body(found: Beside, address: Address, theme: Theme, many: list[Any]) -> Iterator[Any]:
    document = found.document
    knobs = [[each["knob"], html.Code(str(each["before"])), html.Code(str(each["after"]))] for each in document["knobs"]]
    yield html.H2("What was changed")
    yield (
        data_table(("Knob", "This run", "The other"), knobs, caption="Only what differs", numeric=9)
        if knobs
        else html.P("Nothing.")
    )
    yield html.H2("What it did")
    rows = [
        [each.label, each.before, each.after, each.change, SIGNS.get(each.verdict, each.verdict), count(each.n)]
        for each in found.figures
    ]
    head = ("Measure", "This run", "The other", "Change (95 %)", "Verdict", "n")
    yield data_table(head, rows, caption=document["confidence"]["note"].capitalize(), numeric=1)
    yield from many
    yield html.H2(f"Every request's {NAMES[address.metric]}")
    slower, faster = int((found.after > 1.01 * found.before).sum()), int((found.after < 0.99 * found.before).sum())
    both = count(len(found.before))
    said = f"{count(slower)} requests became slower, {count(faster)} faster, of {both} that have one in both runs."
    figure = pair_figure(found.before, found.after, found.requests, theme, ("this run", "the other"), found.of)
    columns = ("Request", "This run", "The other")
    worst = (found.before - found.after).argsort(kind="stable")[:50]
    table = [[str(found.requests[i]), seconds(found.before[i]), seconds(found.after[i])] for i in worst]
    yield figure_with_table("cp-pairs", figure, said, columns, table)
    if len(found.before):
        name = NAMES[address.metric]
        told = f"{name} of the same {both} requests in both runs, the slowest on the right."
        points = ("Percentile", "This run", "The other", "Requests beyond it here")
        curves = tails_figure(found.before, found.after, name, theme)
        yield figure_with_table("cp-tails", curves, told, points, tails_rows(found.before, found.after))
    for title, key in (("Slowed down most", "losers"), ("Sped up most", "winners")):
        yield html.H2(title)
        yield _moved(document["contest"][key], address)


def _moved(rows: list[dict[str, Any]], address: Address) -> Any:
    if not rows:
        return html.P("Nobody.", className="summary")
    cells = [
        [
            dcc.Link(f"#{row['request']}", href="/requests" + address.search(requests=(row["request"],))),
            row.get("class") or MISSING,
            *(_s(value) for value in row["ttft_ns"]),
            *(_s(value) for value in row["e2e_ns"]),
        ]
        for row in rows
    ]
    head = ("Request", "Class", "TTFT, this run", "the other", "E2E, this run", "the other")
    return data_table(head, cells, caption="By the change of E2E", numeric=2)


def _s(ns: float | None) -> str:
    return MISSING if ns is None else seconds(ns / 1e9)

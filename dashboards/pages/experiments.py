"""One factor at a time: what every level did to each measure, with its interval, and for which traffic the conclusion holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html

from dashboards.address import parse_address
from dashboards.experiment_rows import Held, Move, Series, holds_of, moves_of, read_experiment, read_experiments, series_of
from dashboards.interval_figure import Whisker, interval_figure
from dashboards.markup import aria, control, data_table, figure_with_table
from dashboards.palette import THEMES, Theme
from dashboards.plain_figures import plain_layout
from dashboards.queries import RunBook
from dashboards.spoken import spoken
from dashboards.words import MISSING, count, short
from tracekit.errors import TracekitError

__all__ = ["layout", "register", "render"]

SIGNS = {"better": "▲ better", "worse": "▼ worse", "higher": "higher", "lower": "lower"}
_HOLDS = {"all": "everywhere", "some": "only in some", "none": "nowhere", "unknown": "cannot tell"}
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_OUTPUTS = (
    ("ex-list", "options"),
    ("ex-list", "value"),
    ("ex-said", "children"),
    ("ex-error", "children"),
    ("ex-body", "children"),
)


def layout() -> Any:
    choice = dcc.Dropdown(id="ex-list", clearable=False, placeholder="no experiment yet")
    return html.Div(
        [
            html.H1("Experiments"),
            html.Div(
                [control("Experiment", "ex-list", choice, style={"minWidth": "460px", "maxWidth": "100%"})],
                className="controls",
                role="group",
                **aria("Which experiment"),
            ),
            html.Div("Loading …", id="ex-said", className="verdict", role="status"),
            html.P(id="ex-error", className="notice", role="alert"),
            html.Div(id="ex-body"),
            dcc.Store(id="ex-moved"),
        ]
    )


def register(app: Dash, book: RunBook) -> None:
    """The choice writes the address (in the browser); the address asks for an answer."""
    # Dash has no types for this one.
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ways", "pick"),
        Output("ex-moved", "data"),
        Input("ex-list", "value"),
        State("url", "search"),
        State("ex-list", "options"),
        prevent_initial_call=True,
    )

    def show(search: str | None, theme: str | None) -> tuple[Any, ...]:
        return render(book, search, theme if theme in THEMES else "light")

    app.callback([Output(*each) for each in _OUTPUTS], Input("url", "search"), Input("theme", "data"))(show)


def render(book: RunBook, search: str | None, theme: str) -> tuple[Any, ...]:
    """What the page shows for an address, in the order of ``_OUTPUTS``."""
    address = parse_address(search)
    try:
        rows = read_experiments(book)
        document = read_experiment(book, address.experiment)
    except TracekitError as error:
        return [], None, "", spoken(error), None
    options = [{"value": row.number, "label": _title(row)} for row in rows]
    said = [html.P(line) for line in document["conclusion"]]
    return options, document["experiment"], said, "", list(_body(document, THEMES[theme]))


def _title(row: Any) -> str:
    name = f" {row.name}" if row.name else ""
    return f"experiment {row.number}{name} · {row.factor} = {', '.join(row.levels)} · {', '.join(row.traces)} · {row.began}"


def _body(document: dict[str, Any], theme: Theme) -> Iterator[Any]:
    moves, holds = moves_of(document), holds_of(document)
    pinned = "; ".join(document["pinned"])
    yield html.P(
        f"{document['factor']} alone differs: {document['levels'][0]} is the baseline."
        + (f" Held for all levels: {pinned}." if pinned else ""),
        className="summary",
    )
    yield html.H2("Where it holds")
    yield _held(document, holds)
    for at, series in enumerate(series_of(document)):
        yield html.H2(f"Window by window: {series.trace}")
        yield _windows(f"ex-windows-{at}", series, theme)
    for level in range(1, len(document["levels"])):
        yield html.H2(f"{document['factor']} = {document['levels'][level]} against {document['levels'][0]}")
        own = [move for move in moves if move.level == level]
        yield from _changes(document, own, level, theme)
    yield html.P(
        f"{count(document['confidence']['comparisons'])} comparisons: {document['confidence']['note']}.", className="hint"
    )
    yield html.H2("The traffic it was tried on")
    rows = [[trace["name"], count(len(trace["windows"])), count(sum(w["requests"] for w in trace["windows"])),
             *_traffic(trace["traffic"])]
            for trace in document["traces"]]  # fmt: skip
    head = ("Trace", "Windows", "Requests in them", "Requests/s", "CV of gaps", "Prompt P50", "Answer P50")
    yield data_table(head, rows, caption="A conclusion holds for such traffic", numeric=1)
    for note in document["notes"]:
        yield html.P(note, className="notice")


def _traffic(facts: dict[str, Any]) -> list[str]:
    came = [MISSING if facts.get(name) is None else short(facts[name]) for name in ("rate_per_s", "cv")]
    return [*came, *(count(facts.get(name)) for name in ("input_p50", "output_p50"))]


def _held(document: dict[str, Any], holds: tuple[Held, ...]) -> Any:
    rows = [
        [held.label, document["levels"][held.level], _HOLDS[held.holds],
         "; ".join(f"{SIGNS.get(verdict, verdict)} in {', '.join(names)}" for verdict, names in held.where)]
        for held in holds
    ]  # fmt: skip
    return data_table(("Measure", "Level", "A clear change", "Where"), rows, caption="By measure and level", numeric=9)


def _changes(document: dict[str, Any], moves: list[Move], level: int, theme: Theme) -> Iterator[Any]:
    names = [trace["name"] for trace in document["traces"]]
    drawn = [move for move in moves if move.ratio and move.estimate is not None and move.estimate > -1]
    rows = [
        [
            move.label,
            names[move.trace],
            move.base,
            move.value,
            move.change,
            SIGNS.get(move.verdict, move.verdict),
            count(move.n),
        ]
        for move in moves
    ]
    head = ("Measure", "Trace", "Baseline", document["levels"][level], "Change (95 %)", "Verdict", "n windows")
    if not drawn:
        yield data_table(head, rows, caption="Every measure", numeric=2)
        return
    whiskers = [
        Whisker(
            f"{move.label}: {names[move.trace]}",
            move.estimate or 0.0,
            move.low,
            move.high,
            move.verdict,
            f"(n {move.n} windows)",
        )
        for move in drawn
    ]
    figure = interval_figure(whiskers, theme, "multiple of the baseline", ratio=True)
    yield figure_with_table(f"ex-level-{level}", figure, _said(moves), head, rows)


def _said(moves: list[Move]) -> str:
    total = len(moves)
    counts = {verdict: sum(move.verdict == verdict for move in moves) for verdict in ("better", "worse")}
    rest = total - sum(counts.values())
    return (
        f"Of {count(total)} comparisons {count(counts['better'])} are better, {count(counts['worse'])} worse, {count(rest)} not"
        " clear. Drawn are those that are multiples of the baseline; the table has all."
    )


def _windows(name: str, series: Series, theme: Theme) -> Any:
    colours = (theme.quiet, theme.decode, theme.fill(theme.prefill), theme.recomputed, theme.fill(theme.cached), theme.text)
    traces = [
        {
            "type": "scatter", "mode": "lines+markers", "name": name, "x": list(range(1, series.windows + 1)), "y": list(values),
            "line": {"color": colours[at % len(colours)], "dash": _DASHES[at % len(_DASHES)], "width": 2},
            "hovertemplate": f"window %{{x}}: {name} %{{y:,.4~g}}<extra></extra>",
        }
        for at, (name, values) in enumerate(series.levels)
    ]  # fmt: skip
    layout = plain_layout(theme, 260, "window", series.label)
    layout["xaxis"] |= {"dtick": 1}
    wins = [0] * len(series.levels)
    for at in range(series.windows):
        own = [values[at] for _, values in series.levels]
        known = [value for value in own if value is not None]
        for level, value in enumerate(own):
            wins[level] += bool(known) and value == max(known)
    said = f"{series.label}: highest in " + ", ".join(
        f"{count(n)} of {count(series.windows)} windows at {name}" for n, (name, _) in zip(wins, series.levels, strict=True)
    )
    rows = [[str(at + 1), *(_number(values[at]) for _, values in series.levels)] for at in range(series.windows)]
    head = ("Window", *(name for name, _ in series.levels))
    return figure_with_table(name, {"data": traces, "layout": layout}, said + " (ties count for each).", head, rows)


def _number(value: float | None) -> str:
    return MISSING if value is None else short(value, 4)

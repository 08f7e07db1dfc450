"""A study of the tuner: how far it is, what it recommends, and why that may be believed; any trial can be opened as a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboards.address import parse_address
from dashboards.markup import aria, control, figure_with_table
from dashboards.pages.tuner_answer import answer_of, proof_of
from dashboards.pages.tuner_trial import columns_of, register_trial, render_trial, trial_grid
from dashboards.palette import THEMES, Theme
from dashboards.queries import RunBook
from dashboards.spoken import spoken
from dashboards.study_figures import front_figure, history_figure, levels_figure, shares_figure, steps_figure
from dashboards.study_jobs import before_study, job_named, study_named
from dashboards.study_rows import front_of, history_of, levels_of, steps_of
from dashboards.study_ways import Ways, trial_rows, ways_of
from dashboards.study_words import best_word, describe_front, describe_history, describe_levels, describe_steps, standing
from dashboards.ways_figure import describe_ways, ways_data, ways_figure
from dashboards.words import MISSING, count, percent, short
from dashboards.work import acts_on, cancel_job, resume_job
from tracekit.errors import TracekitError
from tracekit.jobs import JobStatus
from tracekit.studies import Study, list_studies

__all__ = ["layout", "register", "render"]

EVERY_MS = 2000
HIDDEN = {"display": "none"}
LISTED = 100
_OUTPUTS = (
    ("tn-study", "options"), ("tn-study", "value"), ("tn-said", "children"), ("tn-error", "children"), ("tn-trial", "children"),
    ("tn-answer", "children"), ("tn-body", "children"), ("tn-grid", "columnDefs"), ("tn-all", "data"),
    ("tn-drawn", "data"), ("tn-stop", "style"), ("tn-resume", "style"),
)  # fmt: skip


def layout() -> Any:
    brush = [
        control("Keep trials by", "tn-axis", dcc.Dropdown(id="tn-axis", placeholder="an axis"), style={"minWidth": "260px"}),
        control("from level", "tn-from", dcc.Dropdown(id="tn-from", placeholder="lowest"), style={"minWidth": "120px"}),
        control("to level", "tn-to", dcc.Dropdown(id="tn-to", placeholder="highest"), style={"minWidth": "120px"}),
        html.Button("All trials", id="tn-clear", type="button"),
        html.Span(id="tn-chosen", role="status", className="quiet"),
    ]
    return html.Div(
        [
            html.H1("Tuner"),
            html.Div(
                [
                    control(
                        "Study",
                        "tn-study",
                        dcc.Dropdown(id="tn-study", clearable=False, placeholder="no study yet"),
                        style={"minWidth": "420px"},
                    )
                ],
                className="controls",
                role="group",
                **aria("Which study"),
            ),
            html.P("Loading …", id="tn-said", className="verdict", role="status"),
            html.P(id="tn-error", className="notice", role="alert"),
            html.Div(_actions(), className="ways"),
            html.Div(id="tn-answer"),
            html.Div(id="tn-body"),
            html.Div(brush, className="controls", role="group", **aria("Which trials are marked"), id="tn-brush"),
            html.H2("All trials"),
            html.P("Choose a trial to open it: its Verdict and its Timeline.", className="hint"),
            html.Div(id="tn-trial", role="region", **aria("The chosen trial")),
            trial_grid(),
            dcc.Interval(id="tn-tick", interval=EVERY_MS),
            dcc.Store(id="tn-all"),
            dcc.Store(id="tn-drawn"),
            *(dcc.Store(id=name) for name in ("tn-moved", "tn-painted", "tn-paused")),
        ]
    )


def _actions() -> list[Any]:
    return [
        html.Button("Stop the search", id="tn-stop", type="button", style=HIDDEN),
        html.Button("Go on with the search", id="tn-resume", type="button", style=HIDDEN),
        html.Button("Pause this page", id="tn-pause", type="button", title="Ask for no news while I read", style=HIDDEN),
        html.Span(id="tn-acted", role="status", className="quiet"),
    ]


def register(app: Dash, book: RunBook) -> None:
    """The address asks for an answer; what is drawn already is not sent again. Brushing is the browser's alone."""

    def show(search: str | None, theme: str | None, _: int | None, drawn: list[Any] | None, paused: bool | None) -> Any:
        if paused and ctx.triggered_id == "tn-tick":
            raise PreventUpdate
        return render(book, search, theme if theme in THEMES else "light", drawn)

    inputs = [Input("url", "search"), Input("theme", "data"), Input("tn-tick", "n_intervals")]
    app.callback([Output(*each) for each in _OUTPUTS], *inputs, State("tn-drawn", "data"), State("tn-paused", "data"))(show)
    _register_pause(app)
    _register_rows(app)
    # Dash has no types for these.
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ways", "choose"),
        Output("tn-moved", "data"),
        Input("tn-study", "value"),
        Input("tn-grid", "selectedRows"),
        Input("tn-axis", "value"),
        Input("tn-from", "value"),
        Input("tn-to", "value"),
        Input("tn-clear", "n_clicks"),
        State("url", "search"),
        State("tn-drawn", "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ways", "paint"),
        Output("tn-painted", "data"),
        Input("url", "search"),
        Input("tn-all", "data"),
    )
    register_trial(app, book)

    def acted(_: int | None, __: int | None, search: str | None) -> Any:
        return act(book, search, ctx.triggered_id) if ctx.triggered_id else no_update

    buttons = [Input("tn-stop", "n_clicks"), Input("tn-resume", "n_clicks")]
    app.callback(Output("tn-acted", "children"), *buttons, State("url", "search"), prevent_initial_call=True)(acted)


def _register_rows(app: Dash) -> None:
    """The rows of all trials are sent once: brushes choose among them, and the list has them from there too."""
    # Dash has no types for this.
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ways", "rows"), Output("tn-grid", "rowData"), Input("tn-all", "data")
    )


def _register_pause(app: Dash) -> None:
    """A search that can be stopped is under way, and can be looked at in peace."""
    # Dash has no types for this.
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("tracekit", "pause"),
        Output("tn-paused", "data"),
        Output("tn-pause", "children"),
        Output("tn-pause", "aria-pressed"),
        Input("tn-pause", "n_clicks"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("tracekit", "same"), Output("tn-pause", "style"), Input("tn-stop", "style")
    )


def render(book: RunBook, search: str | None, theme: str, drawn: list[Any] | None = None) -> tuple[Any, ...]:
    """What the page shows for an address, in the order of ``_OUTPUTS``. ``drawn``: the mark of what it shows already."""
    address = parse_address(search)
    keep = [no_update] * 4
    hidden = (HIDDEN, HIDDEN)
    options = [_option(each) for each in list_studies(book.store, LISTED)]
    try:
        study = study_named(book, address.study)
    except TracekitError as error:
        job = job_named(book, address.study)
        if job is None:
            said = spoken(error) if options else f"{spoken(error)}; so does Tune from here on a run's Verdict"
            return options, None, "", said, None, None, None, no_update, None, None, *hidden
        return options, None, before_study(job), "", None, None, None, no_update, None, None, *_buttons(book, job)
    mark = [study.key, study.changed, study.state, theme]
    state, panel = standing(study), render_trial(book, study, address)
    buttons = _buttons(book, study.job)
    if mark == drawn:
        return options, study.key, state, "", panel, no_update, *keep, *buttons
    look, rows = THEMES[theme], trial_rows(study)
    ways = ways_of(study)
    data = None if ways is None else ways_data(ways)
    shown = {"ways": data, "rows": rows}
    body = list(_body(study, ways, look))
    return options, study.key, state, "", panel, list(answer_of(study)), body, columns_of(study), shown, mark, *buttons


def act(book: RunBook, search: str | None, what: str) -> str:
    """Stop or resume the search that an address names; what to say."""
    try:
        job = job_named(book, parse_address(search).study)
        if job is None:
            return "the job that searched is not kept any more"
        (cancel_job if what == "tn-stop" else resume_job)(book, job.id)
    except TracekitError as error:
        return spoken(error)
    return "asked to stop" if what == "tn-stop" else "started again"


def _buttons(book: RunBook, job: JobStatus | None) -> tuple[Any, Any]:
    """Which of the two buttons is there."""
    can = () if job is None else acts_on(book, job)
    return {} if "cancel" in can else HIDDEN, {} if "resume" in can else HIDDEN


def _option(study: Study) -> dict[str, str]:
    return {"value": study.key, "label": f"{study.key[:8]} · {study.trace} · {len(study.trials)} trials · {study.state}"}


def _body(study: Study, ways: Ways | None, theme: Theme) -> Iterator[Any]:
    yield from proof_of(study, theme)
    yield from _search(study, theme)
    yield from _plateau(study, theme)
    if ways is not None:
        yield html.H2("All knobs at once")
        yield figure_with_table(
            "tn-ways", ways_figure(ways, theme, best_word(study)), describe_ways(ways), ("Axis", "Levels"),
            [[axis.name, ", ".join(axis.ticks)] for axis in ways.axes],
        )  # fmt: skip


def _search(study: Study, theme: Theme) -> Iterator[Any]:
    history, front = history_of(study), front_of(study)
    if len(history.trial):
        yield html.H2("The search")
        rows = [
            [str(n), state, _number(value), _number(best)]
            for n, state, value, best in zip(history.trial, history.state, history.value, history.best, strict=True)
        ]
        figure = history_figure(history, theme)
        yield figure_with_table(
            "tn-history", figure, describe_history(history), ("Trial", "State", "Value", "Best so far"), rows
        )
    if front is not None:
        yield html.H2("What the trials trade")
        order = front.front.argsort(kind="stable")[::-1]
        rows = [
            [
                str(front.trial[i]),
                _number(front.x[i]),
                _number(front.y[i]),
                "yes" if front.inside[i] else "no",
                "yes" if front.front[i] else "",
            ]
            for i in order
        ]
        head = ("Trial", f"{front.names[0]}, {front.units[0]}", f"{front.names[1]}, {front.units[1]}", "Within", "On the front")
        yield figure_with_table("tn-front", front_figure(front, theme), describe_front(front), head, rows)


def _plateau(study: Study, theme: Theme) -> Iterator[Any]:
    steps, levels = steps_of(study), levels_of(study)
    if steps:
        yield html.H2("Plateau or cliff")
        rows = [[f"{s.knob} = {s.level}", f"{100 * (s.ratio - 1):+.1f} %", "cliff" if s.cliff else ""] for s in steps]
        yield figure_with_table("tn-steps", steps_figure(steps, theme), describe_steps(steps), ("One step", "Change", ""), rows)
    if any(any(row.n) for row in levels):
        yield html.H2("Each knob")
        rows = [
            [f"{row.knob} = {row.levels[at]}", _number(row.best[at]), _number(row.median[at]), count(row.n[at])]
            for row in levels
            for at in range(len(row.levels))
        ]
        figure = levels_figure(levels, f"{study.objectives[0].name}, {study.objectives[0].unit}", theme, best_word(study))
        head = ("Level", "Best", "Median", "Trials")
        yield figure_with_table("tn-levels", figure, describe_levels(levels, best_word(study)), head, rows)
    shares = (study.answer or {}).get("importance") or {}
    if shares:
        yield html.H2("Which knobs mattered")
        first = next(iter(shares))
        told = (study.answer or {}).get("importance_of")
        n = "" if told is None else f" (n = {count(told['n'])} trials)"
        what = study.objectives[0].name if len(study.objectives) > 1 else "the value"
        said = f"{first} alone has {what} vary the most over the space: {100 * shares[first]:.0f} %{n}."
        rows = [[name, percent(share)] for name, share in shares.items()]
        yield figure_with_table("tn-shares", shares_figure(shares, theme), said, ("Knob", "Share"), rows)


def _number(value: float | None) -> str:
    return MISSING if value is None or value != value else short(value, 4)

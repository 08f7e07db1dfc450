"""What the scheduler did, iteration by iteration: batch, counts, KV, queue and durations of one run on one time axis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate

from dashboards.address import Address, parse_address, window_ns
from dashboards.buckets import downsample, span_ns
from dashboards.figures import timeline_figure
from dashboards.markup import aria, control
from dashboards.pages.timeline_detail import register_detail
from dashboards.palette import THEMES
from dashboards.queries import RunBook, RunView
from dashboards.summary import describe_window
from tracekit.errors import LockedError, TracekitError
from tracekit.store import code_names

__all__ = ["Answer", "layout", "register", "render"]

LIVE_MS, QUIET_MS = 1000, 5000
"""How often a page asks again: of a run under way, and for new runs otherwise."""
WINDOWS = {"all": "whole run", "10": "last 10 s", "60": "last minute", "600": "last 10 minutes", "range": "from … to"}
GRAPH: Any = {
    "displaylogo": False, "showSendToCloud": False, "responsive": True, "scrollZoom": False, "doubleClick": "autosize",
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "resetScale2d"],
}  # fmt: skip
SHOWN: dict[str, str] = {}
HIDDEN = {"display": "none"}
COVERED = {"visibility": "hidden", "height": "0", "overflow": "hidden"}
"""Out of sight but as wide as it will be: a figure that gets its width later is drawn twice."""
OUTPUTS = {
    "runs": Output("run", "options"),
    "run": Output("run", "value"),
    "replicas": Output("replica", "options"),
    "replica": Output("replica", "value"),
    "replica_box": Output("replica-box", "style"),
    "window": Output("window", "value"),
    "begin": Output("begin", "value"),
    "end": Output("end", "value"),
    "status": Output("status", "children"),
    "status_class": Output("status", "className"),
    "notice": Output("notice", "children"),
    "figure": Output("timeline", "figure"),
    "figure_box": Output("timeline-box", "style"),
    "summary": Output("summary", "children"),
    "every_ms": Output("tick", "interval"),
    "drawn": Output("drawn", "data"),
}


@dataclass(slots=True, kw_only=True)
class Answer:
    """What the page shall show; ``no_update`` where it may keep what it has."""

    runs: Any = no_update
    run: Any = no_update
    replicas: Any = no_update
    replica: Any = no_update
    replica_box: Any = no_update
    window: Any = no_update
    begin: Any = no_update
    end: Any = no_update
    status: Any = no_update
    status_class: Any = no_update
    notice: Any = no_update
    figure: Any = no_update
    figure_box: Any = no_update
    summary: Any = no_update
    every_ms: Any = no_update
    drawn: dict[str, Any] = field(default_factory=dict)

    def outputs(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in OUTPUTS}


def layout() -> Any:
    """The page before it knows anything; the first answer fills it."""
    number: dict[str, Any] = {"type": "text", "inputMode": "decimal", "debounce": True, "autoComplete": "off"}
    windows = [{"value": value, "label": text} for value, text in WINDOWS.items()]
    image = aria("Timeline of the run", describedby="summary")
    return html.Div(
        [
            html.H1("Timeline"),
            html.Div(
                [
                    control("Run", "run", dcc.Dropdown(id="run", clearable=False), id="run-box"),
                    control("Replica", "replica", dcc.Dropdown(id="replica", clearable=False), id="replica-box", style=HIDDEN),
                    control("Window", "window", dcc.Dropdown(windows, id="window", clearable=False, searchable=False)),
                    control("From, s", "begin", dcc.Input(id="begin", **number)),
                    control("To, s", "end", dcc.Input(id="end", **number)),
                    html.Button("Whole run", id="whole", type="button"),
                ],
                className="controls",
                role="group",
                **aria("What is shown"),
            ),
            html.P(id="status", className="status", role="status"),
            html.P(id="notice", className="notice", role="alert"),
            html.Div(
                [
                    html.P("Drag over a strip to zoom, double-click or press Whole run to see all of it.", className="hint"),
                    html.Div(dcc.Graph(id="timeline", figure={"data": [], "layout": {}}, config=GRAPH), role="img", **image),
                ],
                id="timeline-box",
                style=COVERED,
            ),
            html.P(id="summary", className="summary"),
            html.Div(id="timeline-detail"),
            dcc.Interval(id="tick", interval=QUIET_MS),
            dcc.Store(id="drawn", data={}),
            dcc.Store(id="navigated"),
        ]
    )


def register(app: Dash, book: RunBook) -> None:
    """Two callbacks: the controls write the URL (in the browser), and the URL, the clock and the theme ask for an answer."""
    controls = [("run", "value"), ("replica", "value"), ("window", "value"), ("begin", "value"), ("end", "value")]
    moves = [("whole", "n_clicks"), ("timeline", "relayoutData")]
    # Dash has no types for this one.
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("tracekit", "navigate"),
        Output("navigated", "data"),
        *(Input(name, prop) for name, prop in controls + moves),
        State("url", "search"),
        State("drawn", "data"),
        prevent_initial_call=True,
    )

    def show(search: str, _: int, theme: str | None, drawn: dict[str, Any]) -> dict[str, Any]:
        if theme not in THEMES:
            raise PreventUpdate
        return render(book, search, theme, drawn).outputs()

    app.callback(
        OUTPUTS,
        Input("url", "search"),
        Input("tick", "n_intervals"),
        Input("theme", "data"),
        State("drawn", "data"),
        running=[(Output("tick", "disabled"), True, False)],
    )(show)
    register_detail(app, book)


def render(book: RunBook, search: str | None, theme: str, drawn: dict[str, Any]) -> Answer:
    """The page for a URL. ``drawn`` is what it shows already (from the last answer): the figure is sent only if it differs."""
    address = parse_address(search)
    try:
        catalogue = book.catalogue()
        view = book.view(address.run)
    except LockedError as error:  # keep what is there
        return Answer(status=f"waiting: {error}", status_class="status busy", every_ms=LIVE_MS, drawn=drawn)
    except TracekitError as error:
        return _nothing(book, str(error))
    runs = [{"value": each.ref, "label": each.title} for each in catalogue.runs]
    answer = _answer(view, address, theme, drawn)
    if runs != drawn.get("runs"):
        answer.runs = runs
    answer.drawn["runs"] = runs
    if catalogue.note is not None:
        answer.notice = f"the list of runs may be old: {catalogue.note}"
    return answer


def _nothing(book: RunBook, why: str) -> Answer:
    """No such run: say so, keep the list of runs."""
    try:
        runs = [{"value": each.ref, "label": each.title} for each in book.catalogue().runs]
    except TracekitError:
        runs = []
    return Answer(
        runs=runs, run=None, replica_box=HIDDEN, status=why, status_class="status missing", notice="", figure_box=COVERED,
        summary="", every_ms=QUIET_MS, drawn={"runs": runs},
    )  # fmt: skip


def _answer(view: RunView, address: Address, theme: str, drawn: dict[str, Any]) -> Answer:
    answer = Answer(run=view.ref, every_ms=LIVE_MS if view.live else QUIET_MS)
    answer.status, answer.status_class = view.message, f"status {view.state}"
    replicas = sorted(view.frames)
    replica = address.replica if address.replica in view.frames else replicas[0] if replicas else None
    answer.replicas = [{"value": number, "label": f"replica {number}"} for number in replicas]
    answer.replica, answer.replica_box = replica, SHOWN if len(replicas) > 1 else HIDDEN
    notes = [f"not understood in the address: {', '.join(address.ignored)}"] if address.ignored else []
    if address.replica is not None and replicas and replica != address.replica:
        notes.append(f"no replica {address.replica} in this run: shown is {replica}")
    if replica is None:
        notes.append(_why_empty(view))
        answer.figure_box, answer.summary, answer.drawn = COVERED, "", {"run": view.ref, "replica": None}
    else:
        _draw(answer, view, replica, address, theme, drawn)
    answer.notice = ". ".join(notes)
    return answer


def _why_empty(view: RunView) -> str:
    if view.events != "full":
        return (
            f"this run was recorded with --events {view.events}: its iterations were not kept, so there is nothing to draw;"
            " replay with --events full"
        )
    return "no iteration has been written yet" if view.live else "this run has no iterations"


def _draw(answer: Answer, view: RunView, replica: int, address: Address, theme: str, drawn: dict[str, Any]) -> None:
    """Fill in figure, summary and the controls of the window, unless they are what is shown already."""
    frame = view.frames[replica]
    window = window_ns(address, span_ns(frame))
    last = f"{address.last_s:g}" if address.last_s is not None else None
    answer.window = "range" if address.t is not None else last if last in WINDOWS else "range" if last else "all"
    answer.begin, answer.end = (f"{edge / 1e9:.9g}" for edge in window)
    answer.drawn = {
        "run": view.ref, "replica": replica, "window": answer.window, "begin": answer.begin, "end": answer.end,
        "token": [view.ref, replica, len(frame["iteration"]), list(window), theme],
    }  # fmt: skip
    answer.figure_box = SHOWN
    if answer.drawn["token"] == drawn.get("token"):
        return
    reasons = code_names("iterations", "head_refused_by")
    buckets = downsample(frame, *window)
    budget, kv_total = view.budget.get(replica), view.kv_total.get(replica)
    answer.figure = timeline_figure(buckets, reasons, THEMES[theme], budget=budget, kv_total=kv_total, window_ns=window)
    answer.summary = describe_window(buckets, reasons, budget, kv_total)

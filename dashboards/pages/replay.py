"""Start work without a shell: a trace, an engine, a policy, an SLO, a window; the replay runs as a job like any other."""

from __future__ import annotations

import shlex
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from dashboards.markup import aria, control, data_table
from dashboards.ordering import KNOBS, loaded_traces, order_of, profiles_options, uploads_folder, words_of
from dashboards.queries import RunBook
from dashboards.spoken import spoken
from dashboards.uploads import KINDS, MOST_BYTES, checked, decoded, keep
from dashboards.words import count, seconds
from dashboards.work import start_job
from tracekit.errors import TracekitError
from tracekit.orders import DEFAULT_PROFILE, ENGINES, ROUTERS, ConfigError, policy_notes
from tracekit.profile_files import MOST_BYTES as MOST_PROFILE
from tracekit.profile_files import keep_profile, profile_word

__all__ = ["layout", "offered", "profiles", "quarantine", "register", "remarks"]

FIELDS = ("trace", "engine", "profile", "policy", *KNOBS, "replicas", "router", "more", "slo", "window", "limit", "name")
PLAIN_ROUTERS = tuple(each for each in ROUTERS if "(" not in each)
"""Those that take no weights; ``weighted(...)`` goes below *More settings*."""
_LARGE = "replay it with tracekit replay FILE, and it is listed here"
AGAIN_MS = 1500
"""How often the list of traces is asked for while somebody writes."""
WIDE = {"minWidth": "min(220px, 100%)"}
_PROFILE = f"Or drop a fitted profile here, or choose one: TOML as tracekit calibrate writes it, at most {MOST_PROFILE >> 10} KiB"
HINTS = {
    "slo": "ttft=500ms,tpot=50ms", "window": "whole trace; 10m:20m", "limit": "all requests", "name": "optional",
    "policy": "empty: vLLM's defaults. Or paste: vllm serve MODEL --max-num-seqs 128 ... , or a policy in TOML",
    "more": "one KNOB=VALUE a line, as order.by=shortest_first",
}  # fmt: skip
LABELS = {"slo": "SLO", "window": "Window", "limit": "At most, requests", "name": "Name of the run"}


def layout() -> Any:
    sent = f"Drop a trace here, or choose a file: {', '.join(KINDS)}, plain or gzipped, at most {MOST_BYTES >> 20} MiB"
    return html.Div(
        [
            html.H1("Replay"),
            html.P("A trace through the engine, as a job: it goes on when this page is closed.", className="hint"),
            html.P(id="rp-only", className="notice"),
            html.H2("1. The trace"),
            control("Loaded or sent", "rp-trace", dcc.Dropdown(id="rp-trace", placeholder="none yet"), style={"maxWidth": 640}),
            dcc.Loading(
                [
                    _upload("rp-upload", sent, MOST_BYTES, "rp-checked", _LARGE),
                    html.Div(id="rp-checked"),
                ],
                delay_show=300,
            ),
            html.H2("2. What serves it"),
            html.Div(
                [
                    control("Engine", "rp-engine", dcc.Dropdown(list(ENGINES), "sim", id="rp-engine", clearable=False)),
                    control("Profile", "rp-profile", _profiles()),
                    *(control(knob, f"rp-{knob}", _number(knob)) for knob in KNOBS),
                    control("Replicas", "rp-replicas", _number("replicas")),
                    control("Router", "rp-router", dcc.Dropdown(list(PLAIN_ROUTERS), id="rp-router", placeholder="default")),
                ],
                className="controls",
            ),
            _upload("rp-profile-upload", _PROFILE, MOST_PROFILE, "rp-profile-said", "expected a profile in TOML"),
            html.P(id="rp-profile-said", className="hint", role="status"),
            html.Div([_area("Policy", "policy"), _area("More settings", "more")], className="controls areas"),
            html.H2("3. What is asked of it"),
            html.Div([control(LABELS[name], f"rp-{name}", _text(name), style=WIDE) for name in LABELS], className="controls"),
            html.Div([html.Button("Replay", id="rp-start", type="button", className="button")], className="ways"),
            html.P(id="rp-said", role="status", className="summary"),
            html.P(id="rp-command", className="hint"),
            html.P(id="rp-notes", className="hint"),
            dcc.Store(id="rp-sent"),
            dcc.Interval(id="rp-again", interval=AGAIN_MS, disabled=True),
        ]
    )  # fmt: skip


def _upload(name: str, text: str, most: int, said: str, instead: str) -> Any:
    """Where a file can be dropped; ``said``: the id of what says that one is too large, with what to do ``instead``."""
    data: dict[str, Any] = {"data-most": str(most), "data-said": said, "data-instead": instead}
    return html.Div(dcc.Upload(html.Button(text, type="button", className="drop"), id=name, max_size=most), **data)


def _profiles() -> Any:
    return dcc.Dropdown([DEFAULT_PROFILE], DEFAULT_PROFILE, id="rp-profile", clearable=False)  # its options come with the page


def _number(name: str) -> Any:
    return dcc.Input(id=f"rp-{name}", type="text", inputMode="numeric", autoComplete="off", placeholder="default")


def _text(name: str) -> Any:
    return dcc.Input(id=f"rp-{name}", type="text", autoComplete="off", placeholder=HINTS[name])


def _area(label: str, name: str) -> Any:
    return control(label, f"rp-{name}", dcc.Textarea(id=f"rp-{name}", placeholder=HINTS[name], rows=4, spellCheck=False))


def register(app: Dash, book: RunBook) -> None:
    """Choose, send, see the command, start."""

    def choices(_: str | None, sent: dict[str, str] | None, __: int | None, picked: str | None) -> Any:
        return offered(book, sent or {}, picked)

    app.callback(
        Output("rp-trace", "options"),
        Output("rp-trace", "value"),
        Output("rp-only", "children"),
        Output("rp-start", "disabled"),
        Output("rp-again", "disabled"),
        Input("url", "pathname"),
        Input("rp-sent", "data"),
        Input("rp-again", "n_intervals"),
        State("rp-trace", "value"),
    )(choices)

    def receive(contents: str | None, name: str | None, sent: dict[str, str] | None) -> Any:
        return (no_update, no_update) if contents is None else take(book, contents, name or "trace", sent or {})

    app.callback(
        Output("rp-sent", "data"),
        Output("rp-checked", "children"),
        Input("rp-upload", "contents"),
        State("rp-upload", "filename"),
        State("rp-sent", "data"),
        prevent_initial_call=True,
    )(receive)
    _register_profiles(app, book)
    _register_start(app, book)


def _register_profiles(app: Dash, book: RunBook) -> None:
    def fitted(_: str | None, contents: str | None, name: str | None) -> Any:
        return profiles(book, contents, name or "profile")

    app.callback(
        Output("rp-profile", "options"),
        Output("rp-profile", "value"),
        Output("rp-profile-said", "children"),
        Input("url", "pathname"),
        Input("rp-profile-upload", "contents"),
        State("rp-profile-upload", "filename"),
    )(fitted)


def _register_start(app: Dash, book: RunBook) -> None:
    form = [(f"rp-{name}", "value") for name in FIELDS]

    def preview(*values: Any) -> tuple[str, str]:
        given = dict(zip(FIELDS, values, strict=True))
        return command_line(book, given), remarks(book, given)

    app.callback(Output("rp-command", "children"), Output("rp-notes", "children"), *(Input(*each) for each in form))(preview)

    def start(clicks: int | None, *values: Any) -> Any:
        return begin(book, dict(zip(FIELDS, values, strict=True))) if clicks else no_update

    app.callback(
        Output("rp-said", "children"), Input("rp-start", "n_clicks"), *(State(*each) for each in form), prevent_initial_call=True
    )(start)


def offered(book: RunBook, sent: dict[str, str], picked: str | None) -> Any:
    """What may be picked, what is picked, why nothing can be started, whether nothing can, and whether there is nothing to wait
    for: while somebody writes nobody knows which traces there are, and where there are none one may come. What has just been
    sent is picked."""
    traces, held = loaded_traces(book)
    listed = [{"value": f"upload:{key}", "label": f"{name}, just sent"} for key, name in reversed(sent.items())]
    listed += [{"value": f"trace:{each.name}", "label": f"{each.name}, {count(each.requests)} requests"} for each in traces]
    there = [each["value"] for each in listed]
    chosen = there[0] if sent and (picked is None or not picked.startswith("upload:")) else picked if picked in there else None
    only = "This dashboard is read-only: it starts nothing." if book.read_only else f"waiting: {held}" if held else ""
    return listed, chosen or (there[0] if there else None), only, book.read_only, bool(listed) and not held


def profiles(book: RunBook, contents: str | None, name: str) -> tuple[Any, Any, str]:
    """Which profiles may be picked, the one that was just sent, and what there is to say of it."""
    if contents is None:
        return profiles_options(book), no_update, ""
    if book.read_only:
        return no_update, no_update, "This dashboard is read-only: it takes no files."
    try:
        kept = keep_profile(book.store, decoded(contents, name, MOST_PROFILE), name)
    except (TracekitError, ConfigError) as error:
        return no_update, no_update, f"Not taken: {spoken(error)}"
    return profiles_options(book), kept.key, f"{name}: {kept.told}. It can be chosen here and on What if from now on."


def take(book: RunBook, contents: str, name: str, sent: dict[str, str]) -> tuple[Any, Any]:
    """Store and check a file: what is known of the files sent, and what there is to say of this one."""
    if book.read_only:
        return no_update, html.P("This dashboard is read-only: it takes no files.", className="notice")
    try:
        upload = keep(uploads_folder(book), contents, name)
        report = checked(upload)
    except TracekitError as error:
        return no_update, html.P(spoken(error), className="notice", role="alert")
    usable = bool(report["usable"])
    return ({**sent, upload.key: upload.path.name} if usable else no_update), quarantine(upload.path.name, report)


def quarantine(name: str, report: dict[str, Any]) -> Any:
    """What was read of a file, and each kind of row that will not be replayed. Values of rows are not shown."""
    dropped = report["rows_dropped"]
    read = f"{name}: read as {report['format']}, {count(report['rows_kept'])} of {count(report['rows_read'])} rows over"
    parts: list[Any] = [html.P(f"{read} {seconds(report['span_ns'] / 1e9)}.", className="summary")]
    if not report["usable"]:
        parts = [html.P(str(report["refused"]), className="notice", role="alert"), *(parts if report["rows_read"] else [])]
    if dropped:
        rows = [[reason, count(rows)] for reason, rows in dropped.items()]
        parts.append(data_table(("Left out because", "Rows"), rows, caption="Quarantine: rows that are not replayed", numeric=1))
        bad = [[str(each["line"]), each["column"] or "", each["reason"]] for each in report["bad_rows"]]
        parts.append(
            html.Details([html.Summary("The first of them"), data_table(("Line", "Column", "Why"), bad, caption="", numeric=9)])
        )
    parts += [html.P(text, className="hint") for text in report["warnings"]]
    return html.Div(parts, role="group", **aria("What the file holds"))


def command_line(book: RunBook, form: dict[str, Any]) -> str:
    """The same from the shell, or what is wrong with the form."""
    try:
        return "From the shell: " + shlex.join(["tracekit", *words_of(book, form)])
    except (TracekitError, ConfigError) as error:
        return f"Not yet: {spoken(error)}" if form.get("trace") else ""


def remarks(book: RunBook, form: dict[str, Any]) -> str:
    """What of a pasted command line counts for nothing here, or differs from the profile; nothing where nothing can be said."""
    try:
        order = order_of(book, form)
        notes = policy_notes(order.policy, order.sets, profile_word(book.store, order.profile))
    except (TracekitError, ConfigError):
        return ""
    return f"Of this policy: {'; '.join(notes)}." if notes else ""


def begin(book: RunBook, form: dict[str, Any]) -> Any:
    """Start it; where it can be watched, or why it was not started."""
    try:
        job = start_job(book, "replay", words_of(book, form))
    except (TracekitError, ConfigError) as error:
        return f"Not started: {spoken(error)}"
    live = dcc.Link("watch it live", href=f"/timeline?run={job}")
    return [f"Started as job {job}: ", live, " or see ", dcc.Link("all jobs", href="/jobs"), "."]

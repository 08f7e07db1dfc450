"""What if traffic doubles, prompts grow, an engine fails, the hardware changes? A question of capacity asked here runs as a job;
its answer is kept and shown: attainment by rate, the knee, replicas, cost, and what of it is extrapolated."""

from __future__ import annotations

import shlex
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update, set_props

from dashboards.address import Address, parse_address
from dashboards.markup import aria, control
from dashboards.ordering import profiles_options
from dashboards.pages.what_if_answer import answer_of
from dashboards.palette import THEMES
from dashboards.queries import LATEST, RunBook
from dashboards.spoken import spoken
from dashboards.what_if_form import FACTORS, FIELDS, choices, kinds_of, words_of
from dashboards.what_if_rows import verdict_of
from dashboards.words import count
from dashboards.work import UNDER_WAY, acts_on, do_to_job, start_job
from tracekit.capacities import Capacity, list_capacities, load_capacity
from tracekit.capacity_orders import hardware_known
from tracekit.errors import TracekitError
from tracekit.jobs import JobStatus, list_jobs
from tracekit.orders import ConfigError

__all__ = ["layout", "register", "render"]

EVERY_MS = 1500
LISTED = 50
HIDDEN = {"display": "none"}
HINTS = {
    "slo": "the run's; ttft=500ms,tpot=50ms", "target": "90%", "windows": "4", "price": "no cost without",
    "policy": "empty: of the run, else vLLM's defaults. Or paste: vllm serve MODEL --max-num-seqs 128 ..., or TOML",
    "more": "KNOB=VALUE, separated by spaces: max_num_seqs=128 kv_cache_dtype=fp8 lose=1",
    "others": "one a line, as below --what-if: rate_scale=2 fleet.replicas=2 fleet.router=least_tokens",
    "new-slo": "as above", "new-price": "as above", "burst": "0: even, 2: burstier",
}  # fmt: skip
LABELS = {"slo": "SLO", "target": "Share that must attain it", "windows": "Windows of the trace", "price": "Price per card-hour"}
WIDTHS = {"slo": "280px", "target": "170px", "windows": "150px", "price": "150px"}
_OUTPUTS = (
    ("wi-list", "options"), ("wi-list", "value"), ("wi-said", "children"), ("wi-error", "children"), ("wi-bar", "children"),
    ("wi-cancel", "style"), ("wi-resume", "style"), ("wi-body", "children"), ("wi-drawn", "data"),
)  # fmt: skip


def layout() -> Any:
    answers = dcc.Dropdown(id="wi-list", clearable=False, placeholder="no answer yet")
    buttons = [html.Button("Cancel", id="wi-cancel", type="button", style=HIDDEN),
               html.Button("Go on", id="wi-resume", type="button", style=HIDDEN),
               html.Span(id="wi-acted", role="status", className="quiet")]  # fmt: skip
    return html.Div(
        [
            html.H1("What if"),
            html.Details([html.Summary("Ask a question"), *_form()], id="wi-ask", open=False, className="ask"),
            html.P(id="wi-started", role="status", className="summary"),
            html.Div([control("Answer", "wi-list", answers, style={"minWidth": "min(420px, 100%)"})], className="controls"),
            html.Div(id="wi-bar"),
            html.Div(buttons, className="ways"),
            html.P("Loading …", id="wi-said", className="verdict", role="status"),
            html.P(id="wi-error", className="notice", role="alert"),
            html.Div(id="wi-body"),
            dcc.Interval(id="wi-tick", interval=EVERY_MS),
            dcc.Interval(id="wi-again", interval=EVERY_MS, disabled=True),
            dcc.Store(id="wi-drawn"),
            dcc.Store(id="wi-moved"),
        ]
    )


def _form() -> list[Any]:
    trace = dcc.Dropdown(id="wi-trace", placeholder="none yet", clearable=False)
    profile = dcc.Dropdown(id="wi-profile", placeholder="of the run, else the H100's")
    hardware = dcc.Dropdown(id="wi-hardware", placeholder="as it is")
    factors = [_field(name, label, "160px", numeric=name != "mix") for name, (_, label) in FACTORS.items()]
    burst = ("Bursts: the same requests in the same order over the same time, the gap before each to this power: 0 spaces them"
             " evenly, 1 leaves them, 2 makes short gaps shorter and long ones longer. Mix: chat:2,batch:0.5 is twice as many"
             " requests of the class or tenant chat, half as many of batch, and the others as they are.")  # fmt: skip
    return [
        html.P(id="wi-only", className="notice"),
        html.H2("1. What runs today"),
        html.Div([control("Trace, or a run of it", "wi-trace", trace, style={"minWidth": "min(420px, 100%)"}),
                  control("Profile", "wi-profile", profile)], className="controls"),
        html.Div([_field(name, LABELS[name], width) for name, width in WIDTHS.items()], className="controls"),
        html.Div([_area("Policy", "policy")], className="controls areas"),
        html.H2("2. What would be different"),
        html.Div([*factors, control("Hardware", "wi-hardware", hardware, style={"minWidth": "260px"}),
                  _field("new-slo", "Its SLO", "200px"), _field("new-price", "Its price", "130px")],
                 className="controls"),
        html.P(burst, className="hint"),
        html.Div([_area("More of the same scenario", "more"), _area("Other scenarios", "others")], className="controls areas"),
        html.Div([html.Button("Find out", id="wi-start", type="button", className="button")], className="ways"),
        html.P(id="wi-command", className="hint"),
    ]  # fmt: skip


def _field(name: str, label: str, width: str, *, numeric: bool = False) -> Any:
    return control(label, f"wi-{name}", _text(name, numeric=numeric), style={"minWidth": width})


def _text(name: str, *, numeric: bool = False) -> Any:
    kind: Any = "decimal" if numeric else "text"
    return dcc.Input(id=f"wi-{name}", type="text", autoComplete="off", placeholder=HINTS.get(name, "as it is"), inputMode=kind)


def _area(label: str, name: str) -> Any:
    return control(label, f"wi-{name}", dcc.Textarea(id=f"wi-{name}", placeholder=HINTS[name], rows=3, spellCheck=False))


def register(app: Dash, book: RunBook) -> None:
    """The address names a run to ask about and an answer, or the job that finds it."""
    form = [(f"wi-{name}", "value") for name in FIELDS]

    _register_choices(app, book)

    def preview(*values: Any) -> str:
        return command_line(book, dict(zip(FIELDS, values, strict=True)))

    app.callback(Output("wi-command", "children"), *(Input(*each) for each in form))(preview)

    def start(clicks: int | None, search: str | None, *values: Any) -> Any:
        if not clicks:
            return no_update
        said, job = begin(book, dict(zip(FIELDS, values, strict=True)))
        if job is not None:
            set_props("url", {"search": parse_address(search).search(capacity=job)})
        return said

    app.callback(Output("wi-started", "children"), Input("wi-start", "n_clicks"), State("url", "search"),
                 *(State(*each) for each in form), prevent_initial_call=True)(start)  # fmt: skip
    _register_answer(app, book)


def _register_choices(app: Dash, book: RunBook) -> None:
    def offered(search: str | None, _: int | None, picked: str | None) -> Any:
        address = parse_address(search)
        listed, first, held = choices(book, address.run)
        asks: Any = no_update
        if ctx.triggered_id != "wi-again":
            asks = address.capacity is None and (address.run != LATEST or not list_capacities(book.store, 1))
        only = "This dashboard is read-only: it starts nothing." if book.read_only else f"waiting: {held}" if held else ""
        there = picked if picked in [each["value"] for each in listed] else first
        hardware = [{"value": value, "label": name} for value, name in hardware_known(book.store)]
        return listed, there, only, book.read_only, asks, profiles_options(book), hardware, bool(listed) and not held

    app.callback(
        Output("wi-trace", "options"), Output("wi-trace", "value"), Output("wi-only", "children"), Output("wi-start", "disabled"),
        Output("wi-ask", "open"), Output("wi-profile", "options"), Output("wi-hardware", "options"),
        Output("wi-again", "disabled"), Input("url", "search"), Input("wi-again", "n_intervals"), State("wi-trace", "value"),
    )(offered)  # fmt: skip

    def kinds(picked: str | None) -> str:
        return ",".join(f"{name}:1" for name in kinds_of(book, picked)) or "no classes in this trace"

    app.callback(Output("wi-mix", "placeholder"), Input("wi-trace", "value"))(kinds)


def _register_answer(app: Dash, book: RunBook) -> None:
    def show(search: str | None, theme: str | None, _: int | None, __: Any, drawn: Any) -> tuple[Any, ...]:
        return render(book, search, theme if theme in THEMES else "light", drawn)

    app.callback([Output(*each) for each in _OUTPUTS], Input("url", "search"), Input("theme", "data"),
                 Input("wi-tick", "n_intervals"), Input("wi-acted", "children"), State("wi-drawn", "data"))(show)  # fmt: skip

    def pick(value: str | None, search: str | None, drawn: Any) -> Any:
        if value and drawn and value != drawn[0]:
            set_props("url", {"search": parse_address(search).search(capacity=value)})
        return no_update

    app.callback(Output("wi-moved", "data"), Input("wi-list", "value"), State("url", "search"), State("wi-drawn", "data"),
                 prevent_initial_call=True)(pick)  # fmt: skip

    def act(_: int | None, __: int | None, search: str | None) -> Any:
        job = _job_of(book, parse_address(search))
        if not ctx.triggered_id or job is None:
            return no_update
        return do_to_job(book, "cancel" if ctx.triggered_id == "wi-cancel" else "resume", job.id)[0]

    app.callback(Output("wi-acted", "children"), Input("wi-cancel", "n_clicks"), Input("wi-resume", "n_clicks"),
                 State("url", "search"), prevent_initial_call=True)(act)  # fmt: skip


def command_line(book: RunBook, form: dict[str, Any]) -> str:
    """The same from the shell, or what is wrong with the form."""
    try:
        return "From the shell: " + shlex.join(["tracekit", *words_of(book, form)])
    except (TracekitError, ConfigError) as error:
        return f"Not yet: {spoken(error)}" if form.get("trace") else ""


def begin(book: RunBook, form: dict[str, Any]) -> tuple[str, str | None]:
    """Start it: what to say, and the job; or why it was not started."""
    try:
        job = start_job(book, "capacity", words_of(book, form))
    except (TracekitError, ConfigError) as error:
        return f"Not started: {spoken(error)}", None
    return f"Started as job {job}: its answer comes below, and stays when this page is closed.", job


def render(book: RunBook, search: str | None, theme: str, drawn: Any = None) -> tuple[Any, ...]:
    """What the page shows for an address, in the order of ``_OUTPUTS``. ``drawn``: the mark of what it shows already."""
    address = parse_address(search)
    listed = list_capacities(book.store, LISTED)
    options = [{"value": each.key, "label": _title(each)} for each in listed]
    job = _job_of(book, address)
    if job is not None and (job.result or {}).get("capacity") is None:
        return options, None, *_under_way(book, job)
    ref = str((job.result or {})["capacity"]) if job is not None else address.capacity or "last"
    try:
        document = load_capacity(book.store, ref)
    except TracekitError as error:
        nothing = "Nothing has been asked yet: say above what would be different." if address.capacity is None else ""
        return options, None, nothing, "" if nothing else spoken(error), None, HIDDEN, HIDDEN, None, None
    mark = [document["capacity"], document["answered_at"], theme]
    if mark == drawn:
        return options, mark[0], *[no_update] * 3, HIDDEN, HIDDEN, no_update, no_update
    return options, mark[0], verdict_of(document), "", None, HIDDEN, HIDDEN, list(answer_of(document, THEMES[theme])), mark


def _title(each: Capacity) -> str:
    asked = "; ".join(each.asked) or "as it is"
    return f"{each.key[:8]} · {each.trace} · {asked if len(asked) < 100 else asked[:99] + '…'} · {each.answered_at[:16]}"


def _job_of(book: RunBook, address: Address) -> JobStatus | None:
    """The job that the address names; where it names nothing, a question that is being answered now."""
    jobs = [job for job in list_jobs(book.store.folder) if job.kind == "capacity"]
    if address.capacity is None:
        busy = [job for job in jobs if job.state in UNDER_WAY]
        return busy[-1] if busy else None
    return next((job for job in jobs if job.id == address.capacity), None)


def _under_way(book: RunBook, job: JobStatus) -> tuple[Any, ...]:
    """Said, error, bar, buttons, body, mark of a question without an answer yet."""
    row, can = job.progress or {}, acts_on(book, job)
    buttons = ({} if "cancel" in can else HIDDEN, {} if "resume" in can else HIDDEN)
    if job.state not in UNDER_WAY:
        why = str((job.result or {}).get("error") or "")
        said = {"lost": "killed: what it has replayed is kept", "cancelled": "stopped: what it has replayed is kept"}
        return "", f"Job {job.id} was {said.get(job.state, job.state)}. {why}".strip(), None, *buttons, None, None
    share = min(1.0, row["done"] / row["total"]) if row.get("total") else 0.0
    done = f"{count(row['done'])} of about {count(row['total'])} replays, {row['note']}" if row else "reading the trace"
    bar = html.Progress(value=str(round(share, 3)), max="1", **aria(f"Job {job.id}: {100 * share:.0f} % done"))
    return f"Finding out: {done}.", "", html.Div(bar, className="how-far"), *buttons, None, None

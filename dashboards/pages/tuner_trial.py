"""One trial of a study: its numbers, and the way to its Verdict and Timeline. A search keeps outcomes only, so a trial is
replayed with every event when it is first opened, as a job."""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag
from dash import Dash, Input, Output, State, dcc, html, no_update

from dashboards.address import Address, parse_address
from dashboards.palette import GRID_THEME
from dashboards.queries import RunBook
from dashboards.spoken import spoken
from dashboards.study_jobs import study_named
from dashboards.words import percent, seconds, short
from dashboards.work import UNDER_WAY, start_job
from tracekit.errors import TracekitError, UsageError
from tracekit.experiments.knobs import knob_text
from tracekit.jobs import JobStatus, list_jobs
from tracekit.studies import Study, Trial, trial_run_name

__all__ = ["columns_of", "register_trial", "render_trial", "trial_grid"]

_FIGURE = {"function": "params.value == null || params.value === '' ? '-' : d3.format(',.4~g')(params.value)"}
_SHARE = {"function": "params.value == null ? '-' : d3.format('.1%')(params.value)"}
GRID_OPTIONS = {
    "rowSelection": {"mode": "singleRow", "checkboxes": False, "enableClickSelection": True},
    "animateRows": False,
    "theme": {"function": GRID_THEME},
}


def trial_grid() -> Any:
    """The grid of all trials."""
    return dag.AgGrid(
        id="tn-grid",
        columnDefs=[],
        rowData=[],
        columnSize="autoSize",
        getRowId="params.data.id",
        defaultColDef={"sortable": True, "filter": False, "resizable": True, "suppressHeaderMenuButton": True},
        dashGridOptions=GRID_OPTIONS,
        style={"height": 420},
    )


def columns_of(study: Study) -> list[dict[str, Any]]:
    """The grid's columns: outcome first, then the knobs."""
    first = study.objectives[0]
    plain = [("trial", "Trial", None), ("state", "State", None), ("value", f"{first.name}, {first.unit}", _FIGURE),
             ("attainment", "SLO met", _SHARE), ("ttft_p99", "TTFT P99, s", _FIGURE), ("tpot_p99", "TPOT P99, s", _FIGURE),
             ("longest_gap_p99", "Longest gap P99, s", _FIGURE), ("windows", "Windows", None)]  # fmt: skip
    plain += [(f"k{at}", knob.name, None) for at, knob in enumerate(study.knobs)]
    plain += [("role", "Role", None), ("reason", "Why it failed", None)]
    return [{"field": field, "headerName": name, **({"valueFormatter": form} if form else {})} for field, name, form in plain]


def register_trial(app: Dash, book: RunBook) -> None:
    """The button that replays a trial."""

    def begin(clicks: int | None, search: str | None) -> Any:
        if not clicks:
            return no_update
        return start(book, search)

    app.callback(
        Output("tn-started", "children"), Input("tn-replay", "n_clicks"), State("url", "search"), prevent_initial_call=True
    )(begin)


def start(book: RunBook, search: str | None) -> str:
    """Start the replay of the trial that an address names, unless one is at it; what to say."""
    address = parse_address(search)
    try:
        study = study_named(book, address.study)
        trial = next((each for each in study.trials if each.number == address.trial and each.state != "fail"), None)
        if trial is None:
            raise UsageError(f"study {study.key}: trial {address.trial}: there is none that can be replayed")
        job = _job_of(book, study, trial)
        if job is not None and job.state in UNDER_WAY:
            return f"job {job.id} is at it"
        words = ["trial", study.key, str(trial.number), "--db", str(book.store.path.resolve())]
        return f"started as job {start_job(book, 'trial', words)}"
    except TracekitError as error:
        return spoken(error)


def render_trial(book: RunBook, study: Study, address: Address) -> Any:
    """The chosen trial: its figures, and where to look at it, or the button that makes its run."""
    if address.trial is None:
        return None
    trial = next((each for each in study.trials if each.number == address.trial), None)
    if trial is None:
        return html.P(f"Trial {address.trial}: no such trial has ended in this study.", className="notice")
    knobs = ", ".join(f"{name} = {knob_text(value)}" for name, value in trial.point.items())
    return html.Section(
        [html.H3(f"Trial {trial.number}" + (f", the {trial.role}" if trial.role else "")), html.P(html.Code(knobs)),
         html.P(_figures(study, trial), className="summary"), *_ways(book, study, trial)],
        className="card",
    )  # fmt: skip


def _figures(study: Study, trial: Trial) -> str:
    first = study.objectives[0]
    if trial.state == "fail":
        return f"It failed: {trial.reason}."
    value = "no value" if trial.estimate is None else f"{first.name} {short(trial.estimate, 4)} {first.unit}"
    if trial.state == "pruned":
        value = f"pruned after {trial.windows} of {len(study.windows)} windows, judged to come to {value}"
    met = "" if trial.attainment is None else f", {percent(trial.attainment)} met their SLO"
    tails = ", ".join(
        f"{name} {seconds(tail / 1e9)}"
        for key, name in (("ttft_p99", "TTFT P99"), ("tpot_p99", "TPOT P99"), ("longest_gap_p99", "longest gap P99"))
        if (tail := trial.tails_ns.get(key)) is not None
    )
    return f"{value[0].upper()}{value[1:]}{met}. In its worst window: {tails or 'no latencies'}."


def _ways(book: RunBook, study: Study, trial: Trial) -> list[Any]:
    if trial.state == "fail":
        return []
    name = trial_run_name(study.key, trial.number)
    run = _run_called(book, name)
    links = html.Div(id="tn-started", role="status")
    if run is not None:
        places = (("Its Verdict", "/verdict"), ("Its Timeline", "/timeline"), ("Its requests", "/requests"))
        buttons = [dcc.Link(text, href=path + Address(run=run).search(), className="button") for text, path in places]
        base = _run_called(book, trial_run_name(study.key, 0))
        if base is not None and trial.number != 0:
            beside = Address(run=base, compare=run).search()
            buttons.append(dcc.Link("Beside the current policy", href="/compare" + beside, className="button"))
        return [html.Div(buttons, className="ways"), links]
    job = _job_of(book, study, trial)
    if job is not None and job.state in UNDER_WAY:
        done = job.progress or {}
        share = f": {done['done']:,.0f} of {done['total']:,.0f} {done['unit']}" if done.get("total") else ""
        live = dcc.Link("Watch its Timeline", href="/timeline" + Address(run=name).search(), className="button")
        return [html.P(f"It is being replayed{share}.", className="status"), html.Div(live, className="ways"), links]
    why = "" if job is None or job.state == "finished" else f" The last try {job.state}: {(job.result or {}).get('error', '')}"
    again = html.Button("Replay this trial with every event", id="tn-replay", type="button", disabled=book.read_only)
    command = html.Code(f"tracekit trial {study.key[:8]} {trial.number}", className="flags")
    hint = html.P(f"A search keeps outcomes only: its Verdict and Timeline need one more replay.{why}", className="hint")
    return [hint, html.Div([again, html.Span("or", className="quiet"), command], className="ways"), links]


def _run_called(book: RunBook, name: str) -> str | None:
    """The number of the recorded run of that name."""
    try:
        row = book.recorded(name)
    except TracekitError:
        return None
    return None if row is None else str(row["run"])


def _job_of(book: RunBook, study: Study, trial: Trial) -> JobStatus | None:
    """The latest job that replays this trial."""
    wanted = ["trial", study.key, str(trial.number)]
    found = [job for job in list_jobs(book.store.folder) if job.kind == "trial" and job.argv[3:6] == wanted]
    return found[-1] if found else None

"""What stands under the heading while the run that is looked at is under way, or was left: how far it is, what can be done."""

from __future__ import annotations

from typing import Any, NamedTuple

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboards.address import parse_address
from dashboards.job_runs import is_job
from dashboards.markup import aria
from dashboards.queries import RunBook
from dashboards.spoken import spoken
from dashboards.words import percent
from dashboards.work import UNDER_WAY, acts_on, do_to_job
from tracekit.errors import LockedError, TracekitError
from tracekit.jobs import JobStatus, list_jobs
from tracekit.store import SpoolInfo

__all__ = ["LIVE_MS", "QUIET_MS", "Live", "live_of", "live_row", "live_strip", "register_live"]

LIVE_MS, QUIET_MS = 1500, 5000
"""How often the frame asks again: while something is under way, and otherwise."""


class Live(NamedTuple):
    """``state``: starting, running, committing, killed, left, or how the job ended without a run. ``share`` of its requests, 0 to
    1, where known. ``job``: its id; ``can``: cancel or resume."""

    state: str
    said: str
    share: float | None
    job: str | None
    can: tuple[str, ...]


def live_row() -> Any:
    """The strip before anything is known."""
    parts = [
        html.Div(id="live", className="live", role="group", **aria("The run under way")),
        html.Button("Pause this page", id="pause", type="button", style={"display": "none"}),
        html.Span(id="live-acted", role="status", className="shared"),
    ]
    return html.Div(parts, className="live-row")


def live_of(book: RunBook, ref: str) -> Live | None:
    """``None``: the run is recorded, or there is none."""
    try:
        spool = book.spool(ref)
    except LockedError as error:
        return Live("starting", spoken(error), None, ref, _can(book, ref)) if is_job(ref) else None
    except TracekitError as error:
        return Live("ended", spoken(error), None, ref, _can(book, ref)) if is_job(ref) else None
    return None if spool is None else _of_spool(book, spool)


def _can(book: RunBook, ref: str) -> tuple[str, ...]:
    """What may be done to the job that an address names; to none, nothing."""
    found = next((job for job in list_jobs(book.store.folder) if job.id == ref), None)
    return () if found is None else acts_on(book, found)


def _of_spool(book: RunBook, spool: SpoolInfo) -> Live:
    done, total = spool.rows.get("outcomes", 0), spool.run.get("requests")
    far = f"{done:,} of {total:,} requests have ended" if total else f"{done:,} requests have ended"
    share = min(1.0, done / total) if total else None
    job = _job_of(book, spool)
    if spool.alive:
        state = "committing" if spool.complete else "running"
        can = acts_on(book, job) if job is not None and job.state in UNDER_WAY and not spool.complete else ()
        return Live(state, far, share, None if job is None else job.id, can)
    state = "left" if spool.complete else "killed"
    kept = f"its process is gone; {far}, and what was shown is kept"
    if job is None:
        return Live(state, kept, share, None, ())
    if job.state in UNDER_WAY:  # started again: another spool is its own
        return Live(state, f"{kept}; its job runs again", share, job.id, ())
    return Live(state, kept, share, job.id, acts_on(book, job))


def _job_of(book: RunBook, spool: SpoolInfo) -> JobStatus | None:
    """The job that writes or wrote a spool: by its process, or, once it runs again as another, by what was seen before."""
    found = list_jobs(book.store.folder)
    seen = book.job_of(spool.folder.name)
    return next((job for job in reversed(found) if job.pid == spool.pid or job.id == seen), None)


def live_strip(live: Live | None) -> tuple[list[Any], str]:
    """The strip and its class."""
    if live is None:
        return [], "live"
    under_way = live.state in ("starting", "running", "committing")
    parts: list[Any] = [html.Strong("● live" if under_way else f"■ {live.state}"), html.Span(live.said)]
    if live.share is not None and under_way:
        parts.insert(
            1, html.Progress(value=f"{live.share:.3f}", max="1", **aria(f"{percent(live.share)} of the requests have ended"))
        )
    for act in live.can:
        name = {"type": "live-act", "act": act, "job": live.job}
        parts.append(html.Button({"cancel": "Cancel", "resume": "Resume"}[act], id=name, type="button"))
    if live.job is not None:
        parts.append(dcc.Link("its job", href="/jobs"))
    return parts, f"live shown {live.state}"


def register_live(app: Dash, book: RunBook) -> None:
    """The strip follows the address and the clock; its buttons act on the job, and the view goes on with what it makes."""

    def show(search: str | None, _: int | None, __: Any) -> Any:
        live = live_of(book, parse_address(search).run)
        strip, name = live_strip(live)
        return strip, name, QUIET_MS if live is None else LIVE_MS, {"display": "none"} if live is None else {}

    app.callback(
        Output("live", "children"),
        Output("live", "className"),
        Output("live-tick", "interval"),
        Output("pause", "style"),
        Input("url", "search"),
        Input("live-tick", "n_intervals"),
        Input("live-acted", "children"),
    )(show)

    def act(clicks: list[int | None], search: str | None) -> Any:
        pressed = ctx.triggered_id
        if not any(clicks) or not isinstance(pressed, dict):
            return no_update, no_update
        job, what = str(pressed.get("job")), str(pressed.get("act"))
        said, done = do_to_job(book, what, job)
        again = parse_address(search).search(run=job) if done and what == "resume" else no_update
        return said, again

    app.callback(
        Output("live-acted", "children"),
        Output("url", "search", allow_duplicate=True),
        Input({"type": "live-act", "act": ALL, "job": ALL}, "n_clicks"),
        State("url", "search"),
        prevent_initial_call=True,
    )(act)
    _register_pause(app)


def _register_pause(app: Dash) -> None:
    """Pausing needs no server: pages look at it when the clock asks."""
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("tracekit", "pause"),
        Output("paused", "data"),
        Output("pause", "children"),
        Output("pause", "aria-pressed"),
        Input("pause", "n_clicks"),
    )

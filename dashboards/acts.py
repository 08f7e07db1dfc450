"""What a verdict lets one start: the run again with a finding's change, and a search from the run's policy.

A page says which run and which finding; what is changed is read from the verdict here, never taken from the page.
"""

from __future__ import annotations

from typing import Any

from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboards.address import Address, parse_address
from dashboards.queries import RunBook
from dashboards.spoken import spoken
from dashboards.verdicts import Card, cards_of, read_verdict
from dashboards.work import start_job
from tracekit.errors import TracekitError, UsageError
from tracekit.orders import ConfigError, again_words, tune_words

__all__ = ["change_button", "register_acts", "replay_change", "tune_button", "tune_from"]

TRIALS = 60


def change_button(card: Card) -> list[Any]:
    """For a finding with a change that can be replayed."""
    if card.advice is None or not card.advice.sets:
        return []
    name = {"type": "vd-act", "act": "replay", "finding": card.id}
    return [
        html.Button("Replay this change", id=name, type="button", title=f"The same requests with {', '.join(card.advice.sets)}")
    ]


def tune_button() -> Any:
    name = {"type": "vd-act", "act": "tune", "finding": ""}
    told = "searches settings that serve the SLO better, from this run's policy on, and proves them on other windows of the trace"
    button = html.Button("Tune from here", id=name, type="button")
    return html.Div([button, html.Span(f" {told}", className="hint")], className="ways")


def register_acts(app: Dash, book: RunBook) -> None:
    def act(clicks: list[int | None], search: str | None) -> Any:
        pressed = ctx.triggered_id
        if not any(clicks) or not isinstance(pressed, dict):
            return no_update
        ref = parse_address(search).run
        try:
            if pressed.get("act") == "replay":
                return replay_change(book, ref, str(pressed.get("finding")))
            return tune_from(book, ref)
        except (TracekitError, ConfigError) as error:
            return f"Not started: {spoken(error)}"

    app.callback(
        Output("vd-acted", "children"),
        Input({"type": "vd-act", "act": ALL, "finding": ALL}, "n_clicks"),
        State("url", "search"),
        prevent_initial_call=True,
    )(act)


def replay_change(book: RunBook, ref: str, finding: str) -> list[Any]:
    """Start the run again with what a finding of its verdict advises. Errors: ``UsageError``, ``LockedError``."""
    found = read_verdict(book, ref)
    card = next((card for card in cards_of(found.document) if card.id == finding), None)
    if card is None or not change_button(card) or card.advice is None:
        raise UsageError("this verdict has no such finding with a change that can be replayed; look at it again")
    words = again_words(found.run, card.advice.sets, db=book.store.path.absolute(), name=f"run {found.run}, {card.advice.change}")
    job = start_job(book, "replay", words)
    beside = dcc.Link("Compare the two runs", href="/compare" + Address(run=str(found.run), compare=job).search())
    return [*_started(job, f"run {found.run} with {card.advice.change}"), " ", beside, ": it waits for the replay."]


def tune_from(book: RunBook, ref: str) -> list[Any]:
    """Start a search from a recorded run. Errors: ``UsageError`` (a run under way, one without SLO), ``LockedError``."""
    row = book.recorded(ref)
    if row is None:
        raise UsageError("this run is under way: wait until it has been committed")
    job = start_job(book, "tune", tune_words(book.store, int(row["run"]), trials=TRIALS))
    watch = dcc.Link("Watch the search", href="/tuner" + Address(study=job).search())
    return [*_started(job, f"a search from run {row['run']}"), " ", watch, ": its trials and its answer appear there."]


def _started(job: str, what: str) -> list[Any]:
    return [f"Started as job {job}: {what}. ", dcc.Link("See it among the jobs", href="/jobs"), "."]

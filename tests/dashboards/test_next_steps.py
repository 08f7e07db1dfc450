"""What leads on from page to page, and the verdict's own figures, by value."""

from __future__ import annotations

import time
from typing import Any

import pytest
from dash import no_update

from dashboards.expected_rows import expected_rows, expected_said
from dashboards.frame import render_frame
from dashboards.pages import compare, compare_more, verdict
from dashboards.pages.runs import lead_of
from dashboards.queries import RunBook
from dashboards.run_rows import RunRow, RunTable
from dashboards.verdicts import cards_of
from dashboards.work import list_work
from tests.dashboards.runs import recorded, spooled
from tests.dashboards.test_pages import text_of
from tracekit.jobs import Job
from tracekit.store import Store


def row(ref: str, **more: Any) -> RunRow:
    about = {"name": None, "trace": "chat", "state": "finished", "live": False, "began": "", "engine": "sim", "profile": None}
    return RunRow(ref=ref, requests=200, **{**about, **more})


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ((row("3", attainment=0.9, ttft_p99_s=2.5),), ("10.0 % of its requests missed", "2.5 s or longer", "Why was it slow?")),
        ((row("3", attainment=1.0),), ("All its requests met their SLO.", "What does its verdict say?")),
        ((row("3"), row("2", attainment=0.5)), ("The latest is run 3, of chat.", "Why was it slow?")),
        ((row("spool", live=True), row("2", name="night", attainment=0.5)), ("run 2 (night)", "/verdict?run=2", "50.0 %")),
    ],
)
def test_the_list_of_runs_leads_to_the_latest_verdict(rows: tuple[RunRow, ...], wanted: tuple[str, ...]) -> None:
    text = text_of(lead_of(RunTable(rows, 0, None)))
    assert all(each in text for each in wanted), text


def test_nothing_recorded_leads_nowhere() -> None:
    assert lead_of(RunTable((row("spool", live=True),), 0, None)) is None


def test_a_finding_on_another_page_leads_back(store: Store) -> None:
    book = RunBook(store.path)
    number = recorded(store)
    for page in ("/timeline", "/requests", "/tail"):
        chips = text_of(render_frame(book, page, f"?run={number}&t=1-2&f=QUEUE_SEATS&req=4")[2])
        assert "Back to the verdict" in chips and f"/verdict?run={number}&f=QUEUE_SEATS" in chips
    assert "Back to" not in text_of(render_frame(book, "/verdict", f"?run={number}&f=QUEUE_SEATS")[2])
    assert "Back to" not in text_of(render_frame(book, "/timeline", f"?run={number}")[2])


def test_a_comparison_waits_for_a_run_under_way(store: Store) -> None:
    number, book = recorded(store), RunBook(store.path)
    sink = spooled(store, "other")
    waiting = compare.render(book, f"?run={number}&cmp=other", "light")
    assert "under way" in waiting[-4] and waiting[-1] is False and waiting[4] is no_update  # the address keeps what it waits for
    again = compare.render(book, f"?run={number}&cmp=other", "light", again=True)
    assert [each for each in again if each is not no_update] == [waiting[-4], "", False]  # nothing is drawn anew meanwhile
    sink.close()
    assert compare.render(book, f"?run={number}", "light")[-1] is True
    gone = compare.render(book, f"?run={number}&cmp=99", "light")
    assert gone[-3] and gone[-1] is True


def test_a_verdict_that_cannot_be_made_is_said_beside_two_runs_and_not_waited_for(store: Store) -> None:
    """Runs of an older version have no setup, so nobody can diagnose them. It is looked for as long as nobody knows."""
    numbers, book = [recorded(store), recorded(store)], RunBook(store.path)
    ended, end = False, time.monotonic() + 120
    while not ended and time.monotonic() < end:  # each look takes as long as a page waits
        said, ended = compare_more.render_causes(book, "?run={}&cmp={}".format(*numbers))
    assert "cannot be told" in text_of(said) and "without what it takes" in text_of(said) and ended


MADE = [({"experiment": 3}, "/experiments?exp=3"), ({"run": 2}, "/verdict?run=2"), ({}, None)]


@pytest.mark.parametrize(("result", "look"), MADE)
def test_a_finished_job_leads_to_what_it_made(result: dict[str, int], look: str | None, store: Store) -> None:
    recorded(store)
    job = Job.create(store.folder, "experiment", {"argv": ["tracekit", "experiment"]})
    job.begin()
    job.finish({"exit_code": 0, **result})
    (row,) = list_work(RunBook(store.path))
    assert (row.state, row.look) == ("finished", look)


EXPECTED = {
    "by": "a model of the engine", "load": 0.5,
    "kinds": [{"kind": "decode", "expected_s": 10.0, "actual_s": 30.0}, {"kind": "waiting", "expected_s": 8.0, "actual_s": 2.0},
              {"kind": "transfer_wait", "expected_s": 0.0, "actual_s": 0.01}],
    "unnamed": [],
}  # fmt: skip


def test_where_time_should_go_stands_beside_where_it_went() -> None:
    assert expected_rows(EXPECTED) == [
        ["answering, token by token", "10 s", "30 s", "+20 s"],
        ["waiting for the engine's turn", "8 s", "2 s", "-6 s"],
    ]
    assert "50.0 % of the engine's time. Nothing of the difference" in expected_said(EXPECTED)
    effect = {"kind": "slow iterations", "what": "iterations are slow", "over_s": 9.0, "share_of_time": 0.3,
              "where": {"t0_s": 4.0, "t1_s": 6.5, "iterations_top": [], "requests_top": []}}  # fmt: skip
    unnamed = {**EXPECTED, "unnamed": [effect]}
    assert "1 part of the difference has no name yet" in expected_said(unnamed)
    shown = text_of(list(verdict.expected_part(unnamed, "?run=1")))
    assert "No name yet: iterations are slow (30.0 % of all" in shown and "/timeline?run=1&t=4-6.5" in shown
    assert list(verdict.expected_part(None, "?run=1")) == []


def test_evidence_of_another_replay_says_how_to_get_it() -> None:
    one = {"metric": "kv max", "value": 0.5, "threshold": None, "unit": "of KV", "note": "with x 2",
           "sql": "SELECT 1 FROM iterations WHERE run = {run}", "replay": None}  # fmt: skip
    other = {**one, "replay": "tracekit replay --from-run {run} --set x=2"}
    moved = {**one, "sql": None}
    finding = {"id": "A", "name": "a", "under": None, "what": "", "excess_s": 1.0, "share_of_excess": 1.0, "confidence": "high",
               "because": "", "measure": "ttft", "classes": [], "evidence": [one, other, moved], "not": [], "recommend": [],
               "tried": [], "where": {"t0_s": 0.0, "t1_s": 1.0, "requests_top": []}}  # fmt: skip
    own, replayed, kept = (each[3] for each in cards_of({"findings": [finding]})[0].evidence)
    assert own == one["sql"]
    assert replayed == f"{other['replay']}; then, RUN being the run that it makes: SELECT 1 FROM iterations WHERE run = RUN"
    assert kept == "with x 2"



"""The Tuner page by value: what is said of a study whose trials are known, how a study stands, and a real one opened."""

from __future__ import annotations

import json
import shutil
from typing import Any

import numpy as np
import pytest
from dash import no_update

from benchmarks.page_studies import made_study, many_rows, trial_row
from dashboards.address import Address, parse_address
from dashboards.pages import tuner
from dashboards.pages.tuner_answer import answer_of
from dashboards.pages.tuner_trial import render_trial, start
from dashboards.palette import DARK, LIGHT
from dashboards.queries import RunBook
from dashboards.study_figures import front_figure, history_figure, levels_figure, shares_figure, steps_figure
from dashboards.study_rows import (
    best_of,
    effects_of,
    front_of,
    gains_of,
    history_of,
    levels_of,
    steps_of,
)
from dashboards.study_ways import trial_rows, ways_of
from dashboards.study_words import describe_front, describe_gains, describe_history, describe_steps, standing
from dashboards.ways_figure import ways_data, ways_figure
from dashboards.work import list_work
from tests.dashboards.runs import in_a_killed_process
from tracekit.jobs import Job, list_jobs
from tracekit.store import Store
from tracekit.studies import Study, load_study

GAIN = {"n": 3, "requests": 900, "base": 1.0, "level": 1.5, "base_attainment": 0.4, "level_attainment": 0.6, "estimate": 0.5,
        "low": 0.2, "high": 0.8, "verdict": "better"}  # fmt: skip
ANSWER: dict[str, Any] = {
    "recommended": True, "why": "it is better", "flags": "--max-num-batched-tokens 2048", "sets": ["max_num_batched_tokens=2048"],
    "changes": [{"knob": "max_num_batched_tokens", "old": 8192, "new": 2048, "derived": False}], "no_search": None,
    "winner": {"point": {"max_num_batched_tokens": 2048, "max_num_seqs": 128, "order.by": "engine"}, "value": 3.0, "trial": 2},
    "neighbours": [{"knob": "max_num_batched_tokens", "step": -1, "level": 1024, "ratio": 0.8, "cliff": True},
                   {"knob": "max_num_seqs", "step": 1, "level": 256, "ratio": 0.99, "cliff": False}],
    "gain": GAIN, "gain_over_defaults": None, "importance": {"max_num_batched_tokens": 0.7, "max_num_seqs": 0.3},
    "ablation": {"plus": [{"knob": "max_num_batched_tokens", "level": 2048, "gain": {**GAIN, "estimate": 0.4}, "reason": None}],
                 "minus": [{"knob": "max_num_batched_tokens", "level": 8192, "gain": None, "reason": "its KV does not fit"}]},
    "robustness": [{"case": "rate x1.2", "gain": {**GAIN, "estimate": -0.1, "low": -0.3, "high": 0.1}}],
    "also": [{"trace": "tuesday", "gain": {**GAIN, "estimate": None, "low": None, "high": None}}],
    "findings": [{"id": "QUEUE_SEATS"}], "findings_after": [], "losers": {"won": 30, "lost": 2, "n": 900, "groups": [
        {"kind": "class", "name": "chat", "before": 0.9, "after": 0.8, "n": 100}]},
}  # fmt: skip


def point(budget: int, seats: int, order: str = "engine") -> dict[str, Any]:
    return {"max_num_batched_tokens": budget, "max_num_seqs": seats, "order.by": order}


ROWS = [
    trial_row(0, 1.0, point(8192, 256), role="current policy"),
    trial_row(1, 2.0, point(4096, 256)),
    trial_row(2, 3.0, point(2048, 128)),
    trial_row(3, 2.5, point(1024, 64, "shortest_first"), state="pruned"),
    trial_row(4, None, point(1024, 256)),
    trial_row(5, 9.0, point(1024, 128), feasible=False),
]


@pytest.fixture
def study(store: Store) -> Study:
    made_study(store, ROWS, answer=ANSWER)
    return load_study(store, "last")


def shown(part: Any) -> str:
    return json.dumps(part, default=lambda each: each.to_plotly_json())


def test_the_history_and_the_best_so_far(study: Study) -> None:
    found = history_of(study)
    assert found.trial.tolist() == [0, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(found.value, [1, 2, 3, 2.5, np.nan, 9])
    assert found.best.tolist() == [1, 2, 3, 3, 3, 3]  # the last one breaks a constraint
    assert found.current == 1.0
    best = best_of(study)
    assert best is not None and best.number == 2
    assert describe_history(found) == (
        "The best goodput is 3 requests/s, reached at trial 2 of 6; the current policy (trial 0) has 1 requests/s."
    )


def test_the_front_is_what_nobody_beats_and_the_region_is_the_slo_s(study: Study) -> None:
    front = front_of(study)
    assert front is not None
    assert front.names == ("TTFT P99, worst window", "TPOT P99, worst window") and front.units == ("s", "s")
    assert front.limits == (1.05, 0.06)
    assert front.trial.tolist() == [0, 1, 2, 5]
    np.testing.assert_allclose(front.x, [1.0, 1.01, 1.02, 1.05])
    assert front.front.tolist() == [True, False, False, False]  # equal in the second figure, better in the first
    assert front.inside.tolist() == [True, True, True, False]  # the last breaks a constraint
    assert describe_front(front).startswith(
        "3 of 4 completed trials lie within the SLO and the constraints (TTFT P99, worst window ≤ 1.05 s and TPOT P99,"
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_front_against_every_pair(store: Store, seed: int) -> None:
    rows = many_rows(120, seed)
    for row in rows:  # ties
        row["tails_ns"] = {name: round(value / 2e8) * 2e8 for name, value in row["tails_ns"].items()}
    made_study(store, rows)
    front = front_of(load_study(store, "last"))
    assert front is not None
    for i in range(len(front.trial)):
        beaten = (front.x <= front.x[i]) & (front.y <= front.y[i]) & ((front.x < front.x[i]) | (front.y < front.y[i]))
        assert front.front[i] == (not beaten.any())


def test_two_objectives_are_the_front_s_axes(store: Store) -> None:
    objectives = [{"name": "goodput", "direction": "maximize", "unit": "requests/s"},
                  {"name": "cost", "direction": "minimize", "unit": "per million tokens"}]  # fmt: skip
    rows = [trial_row(n, 1.0, point(1024, 64)) for n in range(3)]
    for row, values in zip(rows, ([1, 5], [2, 6], [1.5, 7]), strict=True):
        row["values"] = values
    made_study(store, rows, objectives=objectives)
    front = front_of(load_study(store, "last"))
    assert front is not None and front.upwards == (True, False) and front.limits == (None, None)
    assert front.front.tolist() == [True, True, False]


def test_levels_steps_gains_and_effects(study: Study) -> None:
    budget, seats, order = levels_of(study)
    assert (budget.best, budget.n) == ((2.5, 3.0, 2.0, 1.0), (1, 1, 1, 1))  # infeasible and failed ones are not counted
    assert (budget.chosen, budget.current) == (1, 3)
    assert seats.median == (2.5, 3.0, 1.5)
    assert order.best == (3.0, 2.5)
    steps = steps_of(study)
    assert [(s.knob, s.level, s.cliff) for s in steps] == [
        ("max_num_batched_tokens", "1024", True),
        ("max_num_seqs", "256", False),
    ]
    assert describe_steps(steps).startswith("A cliff beside it: max_num_batched_tokens = 1024 (-20.0 %).")
    gains = gains_of(study)
    assert [(e.group, e.label, e.estimate, e.reason) for e in gains] == [
        ("held out", "over the current policy", 0.5, None),
        ("held out", "over the engine's defaults", None, "not known"),
        ("other conditions", "rate x1.2", -0.1, None),
        ("other traces", "tuesday", None, "the current policy met nothing"),
    ]
    assert describe_gains(gains) == (
        "held out, over the current policy: +50.0 % (20.0 % to 80.0 %), n 3 windows. Worse: rate x1.2."
    )
    assert [(e.label, e.estimate, e.reason) for e in effects_of(study)] == [
        ("max_num_batched_tokens=2048", 0.4, None),
        ("max_num_batched_tokens=8192", None, "its KV does not fit"),
    ]


def test_the_lines_and_what_the_browser_brushes_over(study: Study) -> None:
    ways = ways_of(study)
    assert ways is not None
    assert ways.trial.tolist() == [5, 2, 3, 1, 0]  # by value; without the failed one
    assert [axis.name for axis in ways.axes] == ["max_num_batched_tokens", "max_num_seqs", "order.by", "goodput, requests/s"]
    np.testing.assert_allclose(ways.place[1], [1 / 3, 0.5, 0.0, 2 / 8])
    assert ways.chosen == 1 and ways.best.tolist() == [True, False, False, False, False]
    data = ways_data(ways)
    assert data["place"][0] == [0.0, 0.3333, 0.0, 0.6667, 1.0] and data["best"] == 1


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_the_figures_are_small_plain_and_without_webgl(store: Store, theme: Any) -> None:
    made_study(store, many_rows(2000), answer=ANSWER)
    found = load_study(store, "last")
    front, ways = front_of(found), ways_of(found)
    assert front is not None and ways is not None
    drawn = [
        history_figure(history_of(found), theme), front_figure(front, theme), steps_figure(steps_of(found), theme),
        levels_figure(levels_of(found), "requests/s", theme), ways_figure(ways, theme),
        shares_figure(ANSWER["importance"], theme),
    ]  # fmt: skip
    for figure in drawn:
        text = json.dumps(figure)
        assert len(text) < 700_000
        assert {trace["type"] for trace in figure["data"]} <= {"scatter", "bar"}
        assert figure["layout"]["paper_bgcolor"] == theme.paper


def test_how_a_study_stands(store: Store) -> None:
    running = Job.create(store.folder, "tune", {"argv": ["tracekit", "tune", "x"]})
    running.begin()
    running.progress(3, 60, unit="trials", eta_s=42.0)
    folder = made_study(store, ROWS[:3], job=running.id, trials=60)
    assert standing(load_study(store, "last")) == (
        "Searching: 3 of 60 trials, about 42 s left. 3 complete. Best so far: trial 2, 3 requests/s."
    )
    (running.folder / "progress.jsonl").write_text(  # the search has ended before its sixty trials, as --minutes has it
        '{"done": 12, "total": 160, "unit": "replays", "note": "the neighbours of the best", "eta_s": 90.0}\n'
    )
    assert standing(load_study(store, "last")) == (
        "The search has ended with 3 of 60 trials; the neighbours of the best: 12 of 160 replays, about 90 s left. 3 complete."
        " Best so far: trial 2, 3 requests/s."
    )
    (row,) = list_work(RunBook(store.path))
    assert row.said == "12 of 160 replays, about 90 s left (the neighbours of the best)"
    running.finish({"exit_code": 130, "cancelled": True})
    assert standing(load_study(store, "last")).startswith(
        f"Stopped after 3 of 60 trials; tracekit jobs resume {running.id} goes on where it stopped."
    )
    running.finish({"exit_code": 5, "error": "internal error: x"})
    assert "Failed after 3 of 60 trials: internal error: x; tracekit jobs resume" in standing(load_study(store, "last"))
    (running.folder / "result.json").unlink()
    in_a_killed_process(running.begin)
    assert standing(load_study(store, "last")).startswith("Killed: its process is gone. 3 of 60 trials are kept; tracekit jobs")
    (folder / "answer.json").write_text(json.dumps({"no_search": "overload", "recommended": False, "why": "overload"}))
    running.finish({"exit_code": 0})
    assert standing(load_study(store, "last")) == "Nothing was searched: overload."


def test_the_page_is_drawn_and_not_sent_twice(store: Store, study: Study) -> None:
    book = RunBook(store.path)
    answer = tuner.render(book, "", "light")
    options, value, said, error, panel, answered, body, columns, sent, mark, stop, resume = answer
    assert [each["value"] for each in options] == [value] == [study.key]
    assert said.startswith("Finished: 6 of 6 trials. 4 complete, 1 pruned, 1 failed.") and error == "" and panel is None
    assert "--max-num-batched-tokens 2048" in shown(answered) and "QUEUE_SEATS (gone)" in shown(answered)
    text = shown(body)
    for name in ("tn-gains", "tn-ablation", "tn-history", "tn-front", "tn-steps", "tn-levels", "tn-shares", "tn-ways"):
        assert f'"{name}"' in text and f'"{name}-said"' in text, name
    assert "NaN" not in text
    assert sent["rows"] == trial_rows(study) and [row["trial"] for row in sent["rows"]] == list(range(6))
    assert {"k0", "k1", "k2", "value", "ttft_p99"} <= {column["field"] for column in columns}
    again = tuner.render(book, "?trial=2&br=0:0-0.5", "light", json.loads(json.dumps(mark)))
    assert again[5] is no_update and again[6:10] == (no_update,) * 4 and again[2] == said
    assert (stop, resume) == (tuner.HIDDEN, tuner.HIDDEN)
    assert tuner.render(book, "", "dark", mark)[6] is not no_update
    assert tuner.render(book, "?study=ffff", "light")[3].startswith("study ffff: no such study; expected the key of one")


def test_a_trial_says_its_figures_and_how_to_open_it(store: Store, study: Study) -> None:
    book = RunBook(store.path)
    complete = shown(render_trial(book, study, Address(trial=2)))
    assert "Goodput 3 requests/s, 50.0 % met their SLO. In its worst window: TTFT P99 1.02 s" in complete
    assert "tracekit trial 01234567 2" in complete and "tn-replay" in complete
    assert "Pruned after 3 of 3 windows, judged to come to goodput 2.5" in shown(render_trial(book, study, Address(trial=3)))
    failed = shown(render_trial(book, study, Address(trial=4)))
    assert "It failed: its KV does not fit." in failed and "tn-replay" not in failed
    assert "no such trial" in shown(render_trial(book, study, Address(trial=77)))
    assert "trial None: there is none that can be replayed" in start(book, "?study=0123")
    assert start(RunBook(store.path, read_only=True), "?trial=2").startswith("this dashboard is read-only; from the shell: ")
    assert "there is none that can be replayed" in start(book, "?trial=4")
    assert [job.kind for job in list_jobs(store.folder)] == ["tune"]


def test_no_study_yet(store: Store) -> None:
    said = tuner.render(RunBook(store.path), "", "light")[3]
    assert "has no study yet" in said and "Tune from here" in said


def test_an_address_of_a_trial_and_a_brush() -> None:
    view = Address(study="0123abcd", trial=7, brush="0:0-0.5,3:0.9-1", experiment=4, capacity="c1")
    assert parse_address(view.search()) == view
    assert view.search() == "?study=0123abcd&trial=7&br=0:0-0.5,3:0.9-1&exp=4&cap=c1"
    assert parse_address("?study=../x&trial=-1&br=0:a-b&cap=%2e%2e").ignored == ("study", "trial", "br", "cap")


def test_a_search_can_be_named_by_its_job_before_its_study_is_there(store: Store) -> None:
    book = RunBook(store.path)
    job = Job.create(store.folder, "tune", {"argv": ["/bin/true"]})
    job.begin()
    for search in ("", f"?study={job.id}"):
        said, error, *_, stop, resume = tuner.render(book, search, "light")[2:]
        assert said.startswith(f"Starting: job {job.id} reads the trace") and error == ""
        assert (stop, resume) == ({}, tuner.HIDDEN)
    (row,) = list_work(book)
    assert row.look == f"/tuner?study={job.id}"
    job.finish({"exit_code": 2, "error": "--slo: ttft=x: not a time"})
    failed = tuner.render(book, f"?study={job.id}", "light")
    assert failed[2] == f"Job {job.id} ended before its first trial: --slo: ttft=x: not a time." and failed[-1] == {}
    made_study(store, ROWS[:2], job=job.id)
    assert tuner.render(book, f"?study={job.id}", "light")[1] == "0123456789abcdef"
    assert "no such study" in tuner.render(book, "?study=20200101-000000-abcdef", "light")[3]


def test_an_answer_of_fewer_trials_is_said_to_be_one(store: Store) -> None:
    """While its study goes on, and when more trials are there than it is of."""
    job = Job.create(store.folder, "tune", {"argv": ["/bin/true"]})
    job.begin()
    told = {"complete": 8, "pruned": 3, "failed": 1}
    made_study(store, many_rows(40)[:12], job=job.id, trials=40, answer={**ANSWER, "trials": told})

    def said() -> str:
        return shown(list(answer_of(load_study(store, "last"))))

    assert "The answer of the first 12 trials; a new one follows when the search has ended." in said()
    job.finish({"exit_code": 0})
    assert "The answer of the first" not in said()
    folder = store.folder / "tune" / "0123456789abcdef"
    (folder / "answer.json").write_text(json.dumps({**ANSWER, "trials": {"complete": 5, "pruned": 0, "failed": 0}}))
    assert "The answer of the first 5 trials; there are more now." in said()


def test_without_an_answer_the_page_says_why_and_what_leads_to_one(store: Store) -> None:
    job = Job.create(store.folder, "tune", {"argv": ["/bin/true"]})
    job.begin()
    rows = [trial_row(0, 1.0, ROWS[0]["point"], feasible=False), trial_row(1, None, ROWS[1]["point"])]
    folder = made_study(store, rows, job=job.id, target=0.95)

    def answered() -> str:
        return shown(list(answer_of(load_study(store, "last"))))

    assert "No answer yet: it comes when" in answered()
    job.finish({"exit_code": 130, "cancelled": True})
    assert "No answer: the search ended before one was found. Go on with the search" in answered()
    job.finish({"exit_code": 0})
    assert "(--search-only)" in answered()
    nothing = {"recommended": False, "no_search": None, "why": "no trial completed within the constraints"}
    (folder / "answer.json").write_text(json.dumps(nothing))
    told = answered()
    assert "NO CHANGE RECOMMENDED" in told and "Of 2 trials 1 failed: its KV does not fit; 1 serve fewer within the SLO" in told
    assert "than the 95.0 % asked for, 50.0 % at most. What may help: a looser SLO" in told
    shutil.rmtree(job.folder)
    (folder / "answer.json").unlink()
    assert "the same tracekit tune command goes on" in answered()


def test_a_search_is_stopped_and_goes_on_from_the_page(store: Store) -> None:
    job = Job.create(store.folder, "tune", {"argv": ["/bin/true"]})
    job.begin()
    made_study(store, ROWS[:2], job=job.id, trials=9)
    book, reader = RunBook(store.path), RunBook(store.path, read_only=True)
    assert tuner.render(book, "", "light")[-2:] == ({}, tuner.HIDDEN)
    assert tuner.render(reader, "", "light")[-2:] == (tuner.HIDDEN, tuner.HIDDEN)
    assert "read-only" in tuner.act(reader, "", "tn-stop") and not job.cancelled()
    assert tuner.act(book, "", "tn-stop") == "asked to stop" and job.cancelled()
    assert "is running; expected a job that has ended" in tuner.act(book, "", "tn-resume")
    job.finish({"exit_code": 130, "cancelled": True})
    assert tuner.render(book, "", "light")[-2:] == (tuner.HIDDEN, {})
    assert tuner.act(book, "", "tn-resume") == "started again"
    (row,) = [row for row in list_work(book) if row.id == job.id]
    assert row.look == "/tuner?study=01234567"

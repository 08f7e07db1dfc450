"""What a study leaves for others to read, and a trial replayed as a run: the same figures as the search had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.test_tune import SMALL, folder_of, study_of
from tracekit.cli.main import main
from tracekit.errors import UsageError
from tracekit.jobs import list_jobs
from tracekit.store import Store, load_run, sql
from tracekit.studies import list_studies, load_study, read_trials, trial_run_name
from tuner import replay_trial, tune
from tuner.cells import CELLS, CellFile
from tuner.trial_log import TrialLog


@pytest.fixture(scope="module")
def db(bursts: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trial") / "a.duckdb"
    tune(bursts, db=path, **SMALL)
    return path


def cells(db: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["result"] for line in (folder_of(db) / CELLS).read_text().splitlines() if line]


def test_the_log_has_every_trial_as_the_study_has_it(db: Path) -> None:
    study, found = study_of(db), load_study(Store(db), "last")
    assert [trial.number for trial in found.trials] == list(range(8))
    for own, trial in zip(study.trials(), found.trials, strict=True):
        assert (own.number, own.state.name.lower(), own.params) == (trial.number, trial.state, dict(trial.point))
        assert tuple(own.values or ()) == trial.values
        assert trial.estimate == (own.values[0] if trial.state == "complete" else own.user_attrs["full_value"])
    assert (found.key, found.wanted, found.state, found.trace) == (study.plan.key(), 8, "finished", "bursts")
    assert [(o.name, o.direction, o.unit) for o in found.objectives] == [("goodput", "maximize", "requests/s")]
    assert {knob.name: knob.levels for knob in found.knobs} == {knob.name: knob.levels for knob in study.plan.space.knobs}
    assert found.answer is not None and found.answer["study"] == found.key
    assert [each.key for each in list_studies(Store(db))] == [found.key]
    worst = max(cell["figures"]["ttft_p99"] for cell in cells(db)[:3])
    assert found.trials[0].tails_ns["ttft_p99"] == worst


def test_two_commands_of_one_study_log_each_trial_once(db: Path, tmp_path: Path) -> None:
    """Whoever comes second sees what the first has written, and a line that was cut short is written again."""
    study, logs = study_of(db), [TrialLog(tmp_path) for _ in range(2)]
    for log in logs:
        log.follow(study)
    text = (tmp_path / "trials.jsonl").read_text()
    assert [json.loads(line)["number"] for line in text.splitlines()] == list(range(8))
    (tmp_path / "trials.jsonl").write_text(text[:-5])
    for log in (*logs, TrialLog(tmp_path)):
        log.follow(study)
    assert [trial.number for trial in read_trials(tmp_path)] == list(range(8))
    assert (tmp_path / "trials.jsonl").read_text().count('"number": 7') <= 2


def test_a_log_that_was_cut_short_is_completed_and_a_torn_line_is_not_there(bursts: str, db: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.duckdb"
    tune(bursts, db=other, **{**SMALL, "trials": 5})
    log = folder_of(other) / "trials.jsonl"
    log.write_bytes(log.read_bytes()[:-40])
    assert len(read_trials(log.parent)) == 4
    tune(bursts, db=other, **SMALL)
    assert [trial.number for trial in read_trials(log.parent)] == list(range(8))
    plain = {trial.number: (trial.state, trial.values, trial.tails_ns) for trial in read_trials(folder_of(db))}
    assert {trial.number: (trial.state, trial.values, trial.tails_ns) for trial in read_trials(log.parent)} == plain


def test_a_trial_replayed_has_the_figures_that_the_search_had(db: Path) -> None:
    store, found = Store(db), load_study(Store(db), "last")
    trial = next(each for each in reversed(found.trials) if each.state == "complete")
    met = 0
    for window in (1, 2, 3):
        run = replay_trial(found.key[:6], trial.number, window=window, db=db).run
        row = load_run(store, run)
        met += round(row["matrix"]["slo"]["attainment"]["share"] * row["matrix"]["slo"]["attainment"]["n"])
        assert row["name"] == trial_run_name(found.key, trial.number, window)
        assert row["events"] == "full" and row["iterations"] > 0
    seconds = sum(window["end_ns"] - window["begin_ns"] for window in found.windows) / 1e9
    assert met / seconds == pytest.approx(trial.values[0], rel=1e-9)


def test_every_trial_is_replayed_on_the_window_that_the_current_policy_served_worst_and_once(db: Path) -> None:
    store, found = Store(db), load_study(Store(db), "last")
    one, two = (replay_trial("last", number, db=db).run for number in (0, 2))
    slices = [load_run(store, run)["slice"] for run in (one, two)]
    assert slices[0] == slices[1]
    base = CellFile(folder_of(db) / CELLS)
    assert len(base)
    shares = [cell["met"] / cell["n"] for cell in cells(db)[:3]]
    worst = found.windows[shares.index(min(shares))]
    assert slices[0]["window_ns"] == [worst["begin_ns"], worst["end_ns"]]
    before = len(sql(store, "SELECT run FROM runs").rows)
    again = replay_trial("last", 2, db=db)
    assert again.run == two and len(sql(store, "SELECT run FROM runs").rows) == before
    assert replay_trial("last", 2, db=db, fresh=True).run == before + 1
    assert {(job.kind, job.state) for job in list_jobs(store.folder)} == {("tune", "finished"), ("trial", "finished")}


def test_the_command_and_its_refusals(db: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trial", "last", "0", "--db", str(db), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "finished"
    for arguments, said in (
        (["last", "99"], "trial 99: no such trial has ended; there are 8"),
        (["nosuch", "0"], "study nosuch: no such study; expected the key of one, as "),
        (["last", "0", "--window", "4"], "--window 4: expected 1 to 3"),
    ):
        assert main(["trial", *arguments, "--db", str(db)]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1, error
    with pytest.raises(UsageError, match="no study yet"):
        replay_trial("last", 0, db=db.parent / "none.duckdb")

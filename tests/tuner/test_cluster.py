"""A study on a real PostgreSQL, started here: workers share it, a killed one loses nothing, a second command joins in."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from tests.tuner.workers import workers
from tracekit.errors import UsageError
from tracekit.store import Store
from tracekit.store.files import read_json
from tuner import tune
from tuner.plan import TunePlan
from tuner.postgres import PostgresCells, PostgresClaims, check_url
from tuner.study import open_study, study_name

SMALL: dict[str, Any] = {"slo": "stall=60ms", "windows": 2, "holdout": 2, "trials": 6, "workers": 2}
pytestmark = pytest.mark.slow


def trials_of(db: Path, storage: str) -> list[Any]:
    (folder,) = (Store(db).folder / "tune").iterdir()
    document = read_json(folder / "plan.json")
    assert document is not None
    return open_study(TunePlan.from_dict(document), folder, storage).trials()


def test_two_workers_share_a_database_and_a_killed_one_loses_no_trial(bursts: str, tmp_path: Path, postgres: str) -> None:
    killed: list[int] = []

    def kill_one(done: int, _total: int, note: str) -> None:
        children = workers()
        if note.startswith("best so far") and done >= 1 and not killed and children:
            killed.append(children[0])
            os.kill(killed[0], signal.SIGKILL)

    db = tmp_path / "a.duckdb"
    found = tune(bursts, db=db, storage=postgres, progress=kill_one, **SMALL)
    assert killed and not (next((Store(db).folder / "tune").iterdir()) / "study.journal").exists()
    trials = trials_of(db, postgres)
    assert [trial.number for trial in trials] == list(range(6))
    assert all(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in trials)
    assert len({tuple(trial.params.items()) for trial in trials}) == 6
    assert found.document["trials"]["failed"] == 0


def test_another_machine_joins_the_same_study(bursts: str, tmp_path: Path, postgres: str) -> None:
    """The same command with a database and files of its own: the trials that are there count, whoever carried them out."""
    first, second = tmp_path / "a.duckdb", tmp_path / "elsewhere.duckdb"
    options = {**SMALL, "workers": 1, "seed": 5}
    tune(bursts, db=first, storage=postgres, **{**options, "trials": 3})
    joined = tune(bursts, db=second, storage=postgres, **options)
    trials = trials_of(second, postgres)
    assert [trial.number for trial in trials] == list(range(6))
    assert sum(joined.document["trials"][state] for state in ("complete", "pruned", "failed")) == 6
    assert any("3 of 6 trials are there from before" in line for line in joined.lines)
    assert joined.replayed < joined.document["replays"]  # what the first has replayed is in the database


def test_one_machine_searches_and_another_answers(bursts: str, tmp_path: Path, postgres: str) -> None:
    """The one that answers replays nothing of the search; begun afresh, the database has forgotten all of it."""
    options = {**SMALL, "workers": 1, "seed": 7, "trials": 3, "holdout": 0}
    searched = tune(bursts, db=tmp_path / "a.duckdb", storage=postgres, search_only=True, **options)
    assert searched.document["trials"]["complete"] + searched.document["trials"]["pruned"] == 3
    assert "the same command without --search-only answers" in searched.text and "winner" not in searched.document
    answered = tune(bursts, db=tmp_path / "b.duckdb", storage=postgres, **options)
    assert answered.document["winner"]["value"] >= searched.document["best"] * 0.98
    assert answered.document["study"] == searched.document["study"]
    folder = next((Store(tmp_path / "b.duckdb").folder / "tune").iterdir())
    document = read_json(folder / "plan.json")
    assert document is not None
    plan = TunePlan.from_dict(document)
    before = len(PostgresCells(postgres, study_name(plan)))
    again = tune(bursts, db=tmp_path / "b.duckdb", storage=postgres, fresh=True, **{**options, "trials": 2})
    assert sum(again.document["trials"][state] for state in ("complete", "pruned", "failed")) == 2
    assert 0 < len(PostgresCells(postgres, study_name(plan))) <= before
    assert 0 < again.replayed <= len(PostgresCells(postgres, study_name(plan)))  # some are proved by another's replay


def test_a_database_that_is_not_there_is_one_line(bursts: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the database cannot be reached") as refused:
        tune(bursts, db=tmp_path / "a.duckdb", storage="postgresql://nobody@127.0.0.1:1/none", **SMALL)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("url", ["postgres://u:hunter2@h/db", "mysql://u:hunter2@h/db", "u:hunter2@h/db"])
def test_a_password_in_a_url_that_is_refused_is_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_url(url)
    assert "hunter2" not in str(refused.value) and "postgresql://" in str(refused.value)


def test_one_command_looks_for_the_answer_at_a_time(postgres: str) -> None:
    one, other = (PostgresClaims(postgres, "a study") for _ in range(2))
    waits, order = threading.Event(), list[str]()

    def second() -> None:
        with other.answering(waits.set):
            order.append("second")

    with one.answering(lambda: pytest.fail("nobody else is at it")):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(60)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]

"""A study on a real Ray, started here: its workers see no database file, a killed one loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from optuna.trial import TrialState

from tests.tuner.servers import HERE, eventually, need, own_database, running_ray
from tracekit.errors import UsageError
from tracekit.store import Store
from tracekit.store.files import read_json
from tuner import tune
from tuner.plan import TunePlan
from tuner.study import open_study

SLO = "stall=60ms"
SMALL: dict[str, Any] = {"slo": SLO, "windows": 2, "holdout": 2, "trials": 8, "workers": 2, "executor": "ray"}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ray() -> Iterator[tuple[str, psutil.Process]]:
    with running_ray() as found:
        yield found


def workers_of(head: psutil.Process) -> list[psutil.Process]:
    """The study's workers: what Ray calls the processes of our actor."""
    return [each for each in head.children(recursive=True) if "".join(each.cmdline()).startswith("ray::RayWorker")]


def trials_of(db: Path, storage: str | None) -> list[Any]:
    (folder,) = (Store(db).folder / "tune").iterdir()
    document = read_json(folder / "plan.json")
    assert document is not None
    return open_study(TunePlan.from_dict(document), folder, storage).trials()


def whole(trials: list[Any], n: int) -> None:
    assert [trial.number for trial in trials] == list(range(n))
    assert all(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in trials)
    assert len({tuple(trial.params.items()) for trial in trials}) == n


@pytest.mark.parametrize("which", [0, -1], ids=["the oldest", "the youngest"])
def test_a_study_in_files_survives_the_death_of_a_worker(
    which: int, bursts: str, tmp_path: Path, ray: tuple[str, psutil.Process]
) -> None:
    """It dies with -9 amid a trial, or, being the youngest of two that start one after the other, before it has begun. What one
    process alone then says of these trials is the same, and takes no replay more."""
    killed: list[int] = []

    def kill_one(done: int, _total: int, note: str) -> None:
        if note.startswith("best so far") and done >= 2 and not killed:
            killed.append(workers_of(ray[1])[which].pid)
            os.kill(killed[0], signal.SIGKILL)

    db = tmp_path / "a.duckdb"
    found = tune(bursts, db=db, address=ray[0], progress=kill_one, **SMALL)
    assert killed and found.document["winner"]["value"] > 0
    whole(trials_of(db, None), 8)
    assert not workers_of(ray[1])
    again = tune(bursts, db=db, **{**SMALL, "workers": 1, "executor": "local"})
    assert again.replayed == 0 and again.document["winner"] == found.document["winner"]


def test_a_study_in_a_database_needs_no_file_that_a_worker_could_see(
    bursts: str, tmp_path: Path, ray: tuple[str, psutil.Process], postgres: str
) -> None:
    """While it searches, the trace's database and the study's folder are away: the trace came with the worker, once. Standard
    output has the document and nothing else, though a worker is killed and Ray has something to say about it."""
    storage = own_database(postgres)
    db, away = tmp_path / "a.duckdb", tmp_path / "away"
    command = [sys.executable, "-m", "tracekit.cli.main", "tune", bursts, "--slo", SLO, "--windows", "2", "--holdout", "2",
               "--trials", "8", "--workers", "2", "--executor", "ray", "--address", ray[0],
               "--db", str(db), "--json"]  # fmt: skip
    environment = {**os.environ, "TRACEKIT_STORAGE": storage, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def alive(found: Any) -> Any:
        assert child.poll() is None, child.communicate()[1].decode()
        return found

    placed = eventually(lambda: alive(workers_of(ray[1])), "a worker is placed")
    eventually(lambda: alive(len(trials_in(storage)) >= 3), "three trials have begun")
    db.rename(away)
    os.kill(placed[0].pid, signal.SIGKILL)
    eventually(lambda: alive(len(trials_in(storage, "COMPLETE", "PRUNED")) >= 6), "trials end without the database file")
    away.rename(db)
    out, err = child.communicate(timeout=300)
    assert child.returncode == 0, err.decode()
    assert storage not in out.decode() + err.decode()
    document = json.loads(out)
    assert document["winner"]["value"] > 0 and document["trials"]["failed"] == 0
    whole(trials_of(db, storage), 8)
    assert not (next((Store(db).folder / "tune").iterdir()) / "cells.jsonl").exists()


def trials_in(url: str, *states: str) -> list[Any]:
    """Numbers of the trials in a database."""
    import psycopg

    with psycopg.connect(url) as connection:
        try:
            return connection.execute("SELECT number FROM trials" + (" WHERE state::text = ANY(%s)" if states else ""),
                                      [list(states)] if states else None).fetchall()  # fmt: skip
        except psycopg.errors.UndefinedTable:
            return []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"address": f"{HERE}:1"}, "nothing answers there"),
        ({"address": "nowhere"}, "expected HOST:PORT"),
        ({"executor": "dask"}, "expected local or ray"),
        ({"executor": "local", "address": f"{HERE}:6379"}, "expected --executor ray with it"),
    ],
)
def test_what_cannot_be_is_one_line(options: dict[str, Any], expected: str, bursts: str, tmp_path: Path) -> None:
    need("ray", "Ray (the extra cluster)")
    with pytest.raises(UsageError, match=expected) as refused:
        tune(bursts, db=tmp_path / "a.duckdb", **{**SMALL, **options})
    assert "\n" not in str(refused.value)



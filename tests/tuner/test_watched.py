"""How far a study is, stage by stage: what is counted, of how many, and the time left by the stage's own pace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.test_tune import SMALL, cells_of, told
from tracekit.cli.main import main
from tracekit.jobs import Job, cancel, list_jobs
from tracekit.store import Store
from tuner import tune, watched
from tuner.watched import Watched


class Followed:
    """A display: each stage with what was told of it."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int, list[tuple[int, int, str]]]] = []

    def stage(self, unit: str, done: int = 0) -> None:
        self.stages.append((unit, done, []))

    def __call__(self, done: int, total: int, note: str) -> None:
        self.stages[-1][2].append((done, total, note))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]


def test_the_time_left_is_of_the_stage_and_not_of_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(watched.time, "monotonic", lambda: now[0])
    monkeypatch.setattr("tracekit.jobs.PROGRESS_EVERY_S", -1.0)
    job, said, display = Job.create(tmp_path, "tune", {}), list[str](), Followed()
    one = Watched(job, display, said.append)
    one.begin("trials", 50)
    one.tell(50, 60, "best so far 3")
    now[0] = 110.0
    one.tell(52, 60, "best so far 4")
    one.stage("the neighbours")
    file = list(range(7))
    look = one.looking(file, 4)
    assert not look()
    file.append(7)
    assert not look()  # too early to look again
    now[0] = 120.0
    assert not look()
    file += range(9)  # others put more there than was asked for
    now[0] = 130.0
    assert not look()
    assert [(row["done"], row["total"], row["unit"], row["note"], row["eta_s"]) for row in rows_of(job.folder)] == [
        (50, 60, "trials", "best so far 3", None), (52, 60, "trials", "best so far 4", 40.0),
        (0, 4, "replays", "the neighbours", None), (1, 4, "replays", "the neighbours", 30.0),
        (4, 4, "replays", "the neighbours", 0.0),
    ]  # fmt: skip
    assert said == ["replaying the neighbours"]
    assert [(unit, there, len(found)) for unit, there, found in display.stages] == [("trials", 50, 2), ("replays", 0, 3)]
    cancel(tmp_path, job.id)
    assert look()
    with pytest.raises(KeyboardInterrupt):
        one.stop()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_study_says_how_many_of_the_answers_replays_are_done(workers: int, bursts: str, tmp_path: Path) -> None:
    display, db = Followed(), tmp_path / "a.duckdb"
    found = tune(bursts, db=db, progress=display, **{**SMALL, "workers": workers})
    stages = [(unit, rows) for unit, _, rows in display.stages if rows]
    units = [unit for unit, _ in stages]
    assert units[0] == "replays" and units[-1] == "trials" and units.count("trials") == 2
    assert stages[-1][1] == [(8, 8, stages[-1][1][0][2])] and stages[-1][1][0][2].startswith("best so far ")
    noted = {}
    for unit, rows in stages:
        done, totals, notes = ({row[at] for row in rows} for at in range(3))
        assert [row[0] for row in rows] == sorted(row[0] for row in rows) and len(totals) == 1 and max(done) <= max(totals)
        if unit == "replays":
            (note,) = notes
            noted[note] = noted.get(note, 0) + max(totals)
            assert workers == 2 or done == set(range(1, max(totals) + 1))
    notes = list(noted)
    assert notes[0] == "the current policy" and "the neighbours of the best configurations" in notes
    assert notes[-1] == "the winner and each change alone on the windows held out"
    assert workers == 2 or sum(noted.values()) <= len(cells_of(db))
    (job,) = list_jobs(Store(db).folder)
    assert job.progress is not None and (job.progress["unit"], job.progress["done"]) == ("trials", 8)
    assert {row["unit"] for row in rows_of(Store(db).folder / "jobs" / job.id)} == {"trials", "replays"}
    assert found.document["winner"]


def test_an_answer_that_is_under_way_can_be_stopped_and_goes_on_where_it_was(bursts: str, tmp_path: Path) -> None:
    db, whole = tmp_path / "a.duckdb", tune(bursts, db=tmp_path / "b.duckdb", **SMALL)

    def stops(done: int, total: int, note: str) -> None:
        if note.startswith("the neighbours") and done == 3:
            cancel(Store(db).folder, "last")

    with pytest.raises(KeyboardInterrupt):
        tune(bursts, db=db, progress=stops, **SMALL)
    before = cells_of(db)
    assert [job.state for job in list_jobs(Store(db).folder)] == ["cancelled"]
    again = tune(bursts, db=db, **SMALL)
    assert again.replayed + len(before) <= len(cells_of(db)) == len(set(cells_of(db)))
    assert told(again.document) == told(whole.document)


def test_a_running_job_says_what_it_is_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = tmp_path / "a.duckdb"
    job = Job.create(Store(db).folder, "tune", {"argv": ["tracekit", "tune", "x"]})
    job.begin()
    job.progress(12, 160, unit="replays", note="the neighbours", eta_s=150.0)
    assert main(["jobs", "show", "last", "--db", str(db)]) == 0
    assert "progress  12 of 160 replays, 2.5 min left (the neighbours)\n" in capsys.readouterr().out
    assert main(["jobs", "list", "--db", str(db)]) == 0  # a line for each job has no room for it
    assert "  12 of 160 replays, 2.5 min left  tracekit tune x" in capsys.readouterr().out
    job.finish({"exit_code": 0})
    assert main(["jobs", "show", "last", "--db", str(db)]) == 0
    assert "progress  12 of 160 replays\n" in capsys.readouterr().out

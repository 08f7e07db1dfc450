"""Jobs with real processes: followed, cancelled, killed, resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tracekit.errors import UsageError
from tracekit.jobs import Job, JobStatus, cancel, list_jobs, resume, show

ROOT = Path(__file__).parents[2]

WORK = """
import sys, time
from tracekit.jobs import Job
job = Job.adopt()
assert Job.adopt() is None
count = int(sys.argv[1])
print("at work", flush=True)
for done in range(count + 1):
    job.progress(done, count, unit="requests", note="replay")
    if job.cancelled():
        job.finish({"exit_code": 130, "error": "cancelled"})
        sys.exit(130)
    time.sleep(0.01)
job.finish({"exit_code": 0, "run": 7})
"""


def launch(folder: Path, count: int) -> Job:
    job = Job.create(folder, "replay", {"who": "ui"})
    job.start_detached([sys.executable, "-c", WORK, str(count)], cwd=ROOT)
    return job


def wait_until(folder: Path, job: Job, enough: Callable[[JobStatus], bool]) -> JobStatus:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        status = show(folder, job.id)
        if enough(status):
            return status
        time.sleep(0.02)
    raise AssertionError(f"still {show(folder, job.id)}")


def test_a_detached_job_is_followed_to_its_result(tmp_path: Path) -> None:
    job = launch(tmp_path, 100)
    status = wait_until(tmp_path, job, lambda s: s.progress is not None and 0 < s.progress["done"] < 100)
    assert (status.state, status.kind, status.who, status.argv[0]) == ("running", "replay", "ui", sys.executable)
    assert status.progress is not None
    assert (status.progress["total"], status.progress["unit"], status.progress["note"]) == (100, "requests", "replay")
    assert 0 < status.progress["eta_s"] < 20
    status = wait_until(tmp_path, job, lambda s: s.state != "running")
    assert status.state == "finished"
    assert status.result is not None
    assert (status.result["exit_code"], status.result["run"]) == (0, 7)
    assert status.progress is not None
    assert (status.progress["done"], status.progress["eta_s"]) == (100, 0.0)
    assert status.log == ["at work"]
    assert len((job.folder / "progress.jsonl").read_text().splitlines()) < 15


def test_a_cancelled_job_stops_by_itself_and_can_be_resumed(tmp_path: Path) -> None:
    job = launch(tmp_path, 1500)
    wait_until(tmp_path, job, lambda s: s.progress is not None)
    with pytest.raises(UsageError, match="is running"):
        resume(tmp_path, job.id)
    cancel(tmp_path, job.id)
    assert wait_until(tmp_path, job, lambda s: s.state != "running").state == "cancelled"
    assert resume(tmp_path, job.id).state == "running"
    assert [status.id for status in list_jobs(tmp_path)] == [job.id]
    cancel(tmp_path, job.id, force=True)
    assert wait_until(tmp_path, job, lambda s: s.state != "running").state == "cancelled"


def test_a_killed_job_is_lost_and_runs_again_when_resumed(tmp_path: Path) -> None:
    job = launch(tmp_path, 40)
    status = wait_until(tmp_path, job, lambda s: s.progress is not None)
    assert status.pid is not None
    os.kill(status.pid, signal.SIGKILL)
    assert wait_until(tmp_path, job, lambda s: s.state != "running").state == "lost"
    resume(tmp_path, "last")
    assert wait_until(tmp_path, job, lambda s: s.state != "running").state == "finished"


def test_a_pid_given_to_another_process_is_not_the_job(tmp_path: Path) -> None:
    job = Job.create(tmp_path, "replay", {})
    job.begin()
    assert show(tmp_path, job.id).state == "running"
    note = job.folder / "pid.json"
    note.write_text(note.read_text().replace('"mark": "', '"mark": "x'))
    assert show(tmp_path, job.id).state == "lost"


def test_the_job_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from tracekit.jobs import Job
Job.create(Path(sys.argv[1]), "replay", {{}}).start_detached([sys.executable, "-c", {WORK!r}, "60"])
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, timeout=20)
    (status,) = list_jobs(tmp_path)
    assert status.state == "running"
    assert wait_until(tmp_path, Job(tmp_path / "jobs" / status.id), lambda s: s.state != "running").state == "finished"


def test_states_follow_from_what_is_in_the_folder(tmp_path: Path) -> None:
    expected = {"finished": {"exit_code": 1}, "failed": {"exit_code": 3, "error": "x"}, "cancelled": {"exit_code": 130}}
    for state, result in expected.items():
        job = Job.create(tmp_path, "replay", {})
        job.begin()
        job.finish(result)
        assert show(tmp_path, job.id).state == state
    queued = Job.create(tmp_path, "replay", {"argv": ["x"]})
    assert show(tmp_path, "last").state == "queued"
    assert cancel(tmp_path, queued.id).state == "cancelled"
    assert len(list_jobs(tmp_path)) == 4
    code = "import sys; from pathlib import Path; from tracekit.jobs import Job; Job.create(Path(sys.argv[1]), 'x', {})"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, timeout=20)
    assert show(tmp_path, "last").state == "lost"


def test_last_is_the_one_created_last(tmp_path: Path) -> None:
    """However quickly one follows the other: most of these share a millisecond with their neighbour."""
    created = []
    for _ in range(40):
        created.append(Job.create(tmp_path, "replay", {"argv": ["x"]}).id)
        assert show(tmp_path, "last").id == created[-1]
    assert [status.id for status in list_jobs(tmp_path)] == created


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such job"):
        show(tmp_path, "nothing")
    job = Job.create(tmp_path, "replay", {})
    with pytest.raises(UsageError, match="cannot be started"):
        job.start_detached([str(tmp_path / "absent")])
    assert show(tmp_path, job.id).state == "failed"
    other = Job.create(tmp_path, "replay", {})
    other.finish({"exit_code": 3})
    with pytest.raises(UsageError, match="no command line"):
        resume(tmp_path, other.id)


def test_few_notes_are_written_and_the_first_and_the_last_of_a_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast they come. Whoever follows never takes what is counted now for what was counted before."""
    monkeypatch.setattr("tracekit.jobs.PROGRESS_EVERY_S", 3600.0)
    job = Job.create(tmp_path, "tune", {})
    for unit, there, total in (("replays", 0, 4), ("trials", 2, 8), ("replays", 0, 3)):
        for done in range(there, total + 1):
            job.progress(done, total, unit=unit, since=there)
    rows = [json.loads(line) for line in (job.folder / "progress.jsonl").read_text().splitlines()]
    assert [(row["done"], row["unit"]) for row in rows] == [
        (0, "replays"), (4, "replays"), (2, "trials"), (8, "trials"), (0, "replays"), (3, "replays"),
    ]  # fmt: skip
    assert [row["eta_s"] for row in rows] == [None, 0.0, None, 0.0, None, 0.0]


def test_a_torn_progress_line_is_passed_over(tmp_path: Path) -> None:
    job = Job.create(tmp_path, "replay", {})
    job.begin()
    assert show(tmp_path, job.id).progress is None
    job.progress(5, 5)
    with (job.folder / "progress.jsonl").open("ab") as file:
        file.write(b'{"t": 1, "don')
    progress = show(tmp_path, job.id).progress
    assert progress is not None
    assert progress["done"] == 5


def test_a_foreground_job_is_cheap(tmp_path: Path) -> None:
    Job.create(tmp_path, "replay", {"argv": sys.argv}).begin()
    spent = []
    for _ in range(20):
        began = time.process_time()
        job = Job.create(tmp_path, "replay", {"argv": sys.argv})
        job.begin()
        job.finish({})
        spent.append(time.process_time() - began)
    assert min(spent) < 0.005
    began = time.process_time()
    for done in range(10_000):
        job.progress(done, 10_000)
    assert time.process_time() - began < 0.1


def test_old_ended_jobs_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.jobs.KEPT", 5)
    running = Job.create(tmp_path, "replay", {})
    running.begin()
    for _ in range(12):
        Job.create(tmp_path, "replay", {}).finish({})
    ids = [status.id for status in list_jobs(tmp_path)]
    assert len(ids) < 10
    assert running.id in ids

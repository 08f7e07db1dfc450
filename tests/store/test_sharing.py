"""Several processes on one database: nobody starves, nobody sees a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.store.events import filled_spool
from tracekit.errors import LockedError
from tracekit.store import Store, commit_run, list_runs, sql

ROOT = Path(__file__).parents[2]

READER = """
import sys
from tracekit.store import Store, sql
store = Store(sys.argv[1])
reads = seen = 0
print("ready", flush=True)
while seen < int(sys.argv[2]):
    seen = sql(store, "SELECT count(*) FROM runs").rows[0][0]
    events = sql(store, "SELECT count(*) FROM spans").rows[0][0]
    assert events >= 10 * seen, (events, seen)
    reads += 2
print(reads)
"""

WRITER = """
import sys, time
from tracekit.store import Store
with Store(sys.argv[1]).write("a long load") as con:
    con.execute("CREATE TABLE half (a INTEGER)")
    print("writing", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_four_readers_back_to_back_do_not_starve_a_writer(store: Store) -> None:
    commit_run(store, filled_spool(store), {})
    readers = [start(READER, store.path, 6) for _ in range(4)]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
    waits = []
    for _ in range(5):
        time.sleep(0.2)
        began = time.monotonic()
        commit_run(store, filled_spool(store), {})
        waits.append(time.monotonic() - began)
    for reader in readers:
        out, err = reader.communicate(timeout=30)
        assert (reader.returncode, err) == (0, "")
        assert int(out) >= 6
    assert max(waits) < 4.5  # a starved writer waits for the readers' whole six seconds
    assert len(list_runs(store)) == 6


def test_writers_take_turns(store: Store) -> None:
    code = """
import sys
from pathlib import Path
from tests.store.events import filled_spool
from tracekit.store import Store, commit_run
store = Store(Path(sys.argv[1]))
for _ in range(4):
    commit_run(store, filled_spool(store), {})
"""
    writers = [start(code, store.path) for _ in range(3)]
    for writer in writers:
        err = writer.communicate(timeout=40)[1]
        assert writer.returncode == 0
        assert all(line.startswith("waiting for") for line in err.splitlines())
    assert [run["run"] for run in list_runs(store)] == list(range(1, 13))
    assert sql(store, "SELECT run, count(*) FROM spans GROUP BY run ORDER BY run").rows == [(r, 10) for r in range(1, 13)]


def test_waiting_is_said_after_a_second_and_ends_in_one_line(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    commit_run(store, filled_spool(store), {})
    writer = start(WRITER, store.path, 2.0)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    impatient = Store(store.path, wait_s=0.2)
    for ask in (lambda: list_runs(impatient), lambda: commit_run(impatient, filled_spool(impatient), {})):
        with pytest.raises(LockedError) as error:
            ask()
        assert f"process {writer.pid} (a long load" in str(error.value)
        assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""
    assert len(list_runs(store)) == 1
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert f"process {writer.pid} (a long load" in said
    writer.wait(10)


def test_a_killed_writer_frees_its_turn_and_leaves_nothing(store: Store) -> None:
    commit_run(store, filled_spool(store), {})
    writer = start(WRITER, store.path, 60)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    assert store.intent.announced() is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    began = time.monotonic()
    assert sql(store, "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'half'").rows == [(0,)]
    commit_run(store, filled_spool(store), {})
    assert time.monotonic() - began < 10.0
    assert len(list_runs(store)) == 2


def test_a_foreign_program_that_holds_the_file_is_named(store: Store) -> None:
    commit_run(store, filled_spool(store), {})
    code = "import duckdb, sys, time; con = duckdb.connect(sys.argv[1]); print('open', flush=True); time.sleep(60)"
    other = start(code, store.path)
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    impatient = Store(store.path, wait_s=0.1)
    for ask in (lambda: list_runs(impatient), lambda: commit_run(impatient, filled_spool(impatient), {})):
        with pytest.raises(LockedError, match=f"process {other.pid}"):
            ask()
    other.kill()
    other.wait()


def test_threads_of_one_process_share_the_database(store: Store) -> None:
    commit_run(store, filled_spool(store), {})
    failures: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                assert len(list_runs(store)) >= 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        time.sleep(0.1)
        commit_run(store, filled_spool(store), {})
    done.set()
    for thread in threads:
        thread.join(20)
    assert failures == []
    assert len(list_runs(store)) == 4

"""kill -9 at any moment: the database opens, earlier runs are whole, the started run is whole or can be recovered."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow  # noqa: F401  loaded before the forks, so that a child's time is spooling and committing
import pytest

import tracekit.store.recovery
from replay_engine.tables import TABLES
from tests.store.events import event_rows, filled_spool
from tracekit.errors import UsageError
from tracekit.jobs import Job
from tracekit.resumed import committed_before, note_spool
from tracekit.store import (
    EarlyCommit,
    SpoolSink,
    Store,
    commit_run,
    discard,
    find_spools,
    list_runs,
    load_run,
    recover,
    run_rows,
    spools_there,
    sql,
)
from tracekit.store.spool import remove_spool

ROUNDS = 100
ROWS = 2000


def forked(work: Callable[[], object]) -> int:
    """Run ``work`` in a child process (forked, for speed: one that imports anew would take minutes for all rounds)."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def one_run(store: Store, name: str) -> None:
    sink = SpoolSink(store.spool_folder, {"name": name})
    for first in range(0, ROWS, ROWS // 20):
        for table in TABLES:
            sink.append(table, event_rows(table, ROWS // 20, first))
        time.sleep(0.002)  # the run itself
    row = {"name": name, "matrix": {"rows": ROWS}}
    if len(name) % 2:
        commit_run(store, sink, row)
        return
    sink.close()
    with EarlyCommit(store, sink) as early:
        time.sleep(0.005)  # matrix and verdict
        early.finish(row, {})


def state_of(store: Store) -> dict[int, tuple[str, list[int], str | None]]:
    """Per run: state, rows per table, matrix, in one look."""
    counts = ", ".join(f"(SELECT count(*) FROM {table} e WHERE e.run = r.run)" for table in TABLES)
    rows = sql(store, f"SELECT run, state, [{counts}], matrix FROM runs r").rows
    return {run: (state, counted, matrix) for run, state, counted, matrix in rows}


def timed(store: Store) -> float:
    began = time.monotonic()
    os.waitpid(forked(lambda: one_run(store, "first")), 0)
    return time.monotonic() - began


def test_a_hundred_kills(store: Store) -> None:
    rng = random.Random(20)
    length = min(timed(store) for _ in range(3))
    whole = {run["run"] for run in list_runs(store)}
    assert whole == {1, 2, 3}
    fates = {"whole": 0, "recovered": 0, "completed": 0, "not begun": 0}
    for round_number in range(ROUNDS):
        name = f"round {round_number}"
        pid = forked(lambda name=name: one_run(store, name))
        time.sleep(rng.uniform(0, length * 1.1))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        spools = find_spools(store)
        if spools:
            (spool,) = spools
            assert (spool.alive, spool.run["name"]) == (False, name)
            recover(store, spool)
            assert list(store.spool_folder.glob("[!.]*")) == []
        runs = state_of(store)
        assert whole <= set(runs)
        added = set(runs) - whole
        assert len(added) == bool(added)
        for run in added:
            state, counts, matrix = runs[run]
            if spools and not spools[0].complete:
                fates["recovered"] += 1
                assert (state, counts, matrix) == ("interrupted", [spools[0].rows[table] for table in TABLES], None)
            else:
                fates["completed" if spools else "whole"] += 1
                assert (state, counts, matrix) == ("finished", [ROWS] * len(TABLES), '{"rows": 2000}')
        assert added or not spools
        fates["not begun"] += not added
        whole |= added
    assert min(fates["whole"], fates["completed"], fates["recovered"]) > 0, fates
    counts = run_rows(store)
    assert [counts[run] for run in (1, 2, 3)] == [dict.fromkeys(TABLES, ROWS)] * 3
    with duckdb.connect(str(store.path)) as con:  # a plain shell opens it too
        assert con.execute("SELECT count(*) FROM runs").fetchall() == [(len(whole),)]


def test_a_kill_while_the_database_is_made_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    rng = random.Random(3)
    for number in range(12):
        store = Store(tmp_path / f"{number}.duckdb")
        pid = forked(lambda store=store: one_run(store, "x"))
        time.sleep(rng.uniform(0, 0.12))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for spool in find_spools(store):
            recover(store, spool)
        commit_run(store, filled_spool(store), {"name": "after"})
        assert list_runs(store)[-1]["name"] == "after"


def test_a_run_under_way_is_not_touched(store: Store) -> None:
    sink = filled_spool(store)
    (found,) = find_spools(store)
    assert (found.alive, found.pid, found.complete) == (True, os.getpid(), False)
    for act in (lambda: recover(store, found), lambda: discard(found)):
        with pytest.raises(UsageError, match="still runs"):
            act()
    commit_run(store, sink, {})
    assert find_spools(store) == []


def left_spool(store: Store, *, complete: bool = False, torn: bool = False) -> None:
    def work() -> None:
        sink = filled_spool(store, "left", 9)
        if torn:
            with (sink.folder / "iterations.rows").open("ab") as file:
                file.write(b"torn")
        if complete:
            sink.finish({"name": "left", "state": "finished", "matrix": {"a": 1}})

    os.waitpid(forked(work), 0)


def test_an_interrupted_run_keeps_its_whole_rows(store: Store) -> None:
    left_spool(store, torn=True)
    (spool,) = find_spools(store)
    assert spool.rows == dict.fromkeys(TABLES, 9)
    row = load_run(store, recover(store, spool))
    assert (row["state"], row["name"], row["engine"], row["iterations"], row["matrix"]) == ("interrupted", "left", "sim", 9, None)
    with pytest.raises(UsageError, match="no longer there"):
        recover(store, spool)


def test_a_complete_spool_becomes_the_run_it_was(store: Store) -> None:
    left_spool(store, complete=True)
    (spool,) = find_spools(store)
    row = load_run(store, recover(store, spool))
    assert (row["state"], row["matrix"]) == ("finished", {"a": 1})


def test_a_spool_killed_after_its_commit_is_not_offered_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    left_spool(store, complete=True)
    (spool,) = find_spools(store)
    monkeypatch.setattr("tracekit.store.commit.remove_spool", lambda folder: None)  # the kill: commit, but no removal
    recover(store, spool)
    monkeypatch.undo()
    assert spool.folder.exists()
    assert find_spools(store) == []
    assert not spool.folder.exists()
    assert sql(store, "SELECT count(*) FROM runs").rows == [(1,)]


@pytest.mark.parametrize("complete", [True, False])
def test_a_job_begun_again_takes_over_the_whole_run_that_it_left(store: Store, complete: bool) -> None:
    job, lines = Job.create(store.folder, "replay", {}), list[str]()
    assert committed_before(store, job, lines.append) is None
    left_spool(store, complete=complete)
    note_spool(job, find_spools(store)[0].folder.name)
    taken = committed_before(store, job, lines.append)
    if not complete:  # it is replayed from its beginning; what it left can be recovered as what it is
        assert taken is None and len(find_spools(store)) == 1 and not lines
        return
    assert taken == {"run": 1, "state": "finished", "matrix": {"a": 1}} == committed_before(store, job, lines.append)
    assert find_spools(store) == [] and len(list_runs(store)) == 1
    assert lines == ["run 1 was recorded before the job's process ended: nothing is replayed again"] * 2


@pytest.mark.parametrize("step", ["read_header", "read_json", "spool_rows", "is_alive"])
def test_a_spool_that_goes_while_it_is_looked_at_is_not_told_by_halves(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Pages look all the time, and a commit removes its spool between two of the files that they read."""
    filled_spool(store).close()
    (folder,) = store.spool_folder.iterdir()
    taken = getattr(tracekit.store.recovery, step)

    def and_gone(*arguments: object) -> object:
        found = taken(*arguments)
        remove_spool(folder)
        return found

    assert len(spools_there(store)) == 1
    monkeypatch.setattr(tracekit.store.recovery, step, and_gone)
    assert spools_there(store) == []


def test_a_discarded_spool_is_gone(store: Store) -> None:
    left_spool(store)
    discard(find_spools(store)[0])
    assert tracekit.store.recovery.find_spools(store) == []
    assert not store.exists()

"""What pages read: recorded runs once, running ones incrementally, and never in a writer's way."""

from __future__ import annotations

import numpy as np
import pytest

from dashboards.columns import COLUMNS, Columns
from dashboards.queries import LATEST, RunBook
from tests.dashboards.runs import CONSTANTS, a_writer_at_work, frame_of, in_a_killed_process, iteration_rows, recorded, spooled
from tracekit.errors import LockedError, UsageError
from tracekit.store import SpoolSink, Store, commit_run, discard, find_spools, recover, remove_runs, spools_there


def same(frame: object, rows: np.ndarray) -> bool:
    whole = frame_of(rows)
    return all(np.array_equal(frame[name], whole[name]) for name in COLUMNS)  # type: ignore[index]


def test_a_recorded_run_is_read_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(store, "first", 500)
    book = RunBook(store.path)
    view = book.view(str(run))
    assert (view.ref, view.state, view.live, view.events) == ("1", "finished", False, "full")
    assert (view.budget, view.kv_total) == ({0: 1024}, {0: 1000})
    assert same(view.frames[0], iteration_rows(500))

    def refused(*_: object) -> None:
        raise AssertionError("the database was opened again")

    monkeypatch.setattr(Store, "read", refused)
    assert book.view("first").ref == "1"
    assert [each.ref for each in book.catalogue().runs] == ["1"]


def test_runs_are_found_by_number_name_spool_and_last(store: Store) -> None:
    recorded(store, "a")
    recorded(store, "b")
    recorded(store, "a")
    book = RunBook(store.path)
    assert [each.ref for each in book.catalogue().runs] == ["3", "2", "1"]
    assert [book.view(ref).ref for ref in ("1", "2", "a", "b", LATEST)] == ["1", "2", "3", "2", "3"]
    with pytest.raises(UsageError, match=r"run 9: no such run in .*; the latest is 3"):
        book.view("9")
    sink = spooled(store, "now")
    assert [book.view(ref).ref for ref in ("now", sink.name, LATEST)] == [sink.name] * 3
    assert [each.ref for each in book.catalogue().runs] == [sink.name, "3", "2", "1"]
    with pytest.raises(UsageError, match="no such run"):
        book.view(f"../spool/{sink.name}")


def test_a_run_under_way_is_followed_and_never_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = spooled(store, "live", 100)
    read: list[int] = []
    actual = np.fromfile
    monkeypatch.setattr(np, "fromfile", lambda *a, **k: read.append(len(got := actual(*a, **k))) or got)
    book = RunBook(store.path)
    first = book.view("live")
    assert (first.state, first.live) == ("running", True)
    assert "12 of 40 requests ended" in first.message
    assert same(first.frames[0], iteration_rows(100))
    sink.append("iterations", iteration_rows(50, 100))
    with (sink.folder / "iterations.rows").open("ab") as file:
        file.write(b"half a row")
    assert same(book.view("live").frames[0], iteration_rows(150))
    assert same(first.frames[0], iteration_rows(100))
    book.view("live")
    assert sum(read) == 150


def test_a_run_that_ends_is_taken_over_as_it_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = spooled(store, "live", 300)
    book = RunBook(store.path)
    book.view("live")
    sink.finish({"name": "live", "iterations": 300})
    assert (book.view("live").state, book.view("live").live) == ("committing", True)
    commit_run(store, sink, {"name": "live", "events": "full", "iterations": 300})
    opened = []
    monkeypatch.setattr("dashboards.queries.read_run", lambda *a: opened.append(a))
    view = book.view(sink.name)
    assert (view.ref, view.state, view.live, opened) == ("1", "finished", False, [])
    assert same(view.frames[0], iteration_rows(300))
    monkeypatch.undo()
    fresh = RunBook(store.path).view("1")
    assert all(np.array_equal(fresh.frames[0][name], view.frames[0][name]) for name in COLUMNS)
    assert (fresh.budget, fresh.kv_total) == (view.budget, view.kv_total)


def test_a_run_that_was_not_seen_to_its_end_is_read_from_the_database(store: Store) -> None:
    sink = spooled(store, "live", 100)
    book = RunBook(store.path)
    book.view("live")
    sink.append("iterations", iteration_rows(200, 100))
    commit_run(store, sink, {"name": "live", "events": "full", "iterations": 300})
    assert same(book.view(sink.name).frames[0], iteration_rows(300))


def test_a_killed_run_says_how_to_recover_it(store: Store) -> None:
    in_a_killed_process(lambda: spooled(store, "left", 70))
    book = RunBook(store.path)
    view = book.view(LATEST)
    (spool,) = find_spools(store)
    assert (view.state, view.live) == ("killed", False)
    assert f"tracekit runs recover {spool.folder.name} --db {store.path}" in view.message
    assert same(view.frames[0], iteration_rows(70))
    recover(store, spool)
    again = book.view(spool.folder.name)
    assert (again.ref, again.state) == ("1", "interrupted")
    assert same(again.frames[0], iteration_rows(70))


def test_a_run_that_ended_but_was_killed_before_its_commit(store: Store) -> None:
    in_a_killed_process(lambda: spooled(store, "left", 70).finish({"name": "left", "requests": 40}))
    view = RunBook(store.path).view("left")
    assert view.state == "left"
    assert "ended but not committed" in view.message
    assert "tracekit runs recover" in view.message


def test_a_discarded_run_is_said_to_be(store: Store) -> None:
    recorded(store, "other")
    in_a_killed_process(lambda: spooled(store, "left"))
    book = RunBook(store.path)
    name = book.view("left").ref
    discard(find_spools(store)[0])
    with pytest.raises(UsageError, match="discarded"):
        book.view(name)


def test_nothing_there_yet(store: Store) -> None:
    book = RunBook(store.path)
    assert book.catalogue().runs == ()
    for ref in (LATEST, "3"):
        with pytest.raises(UsageError, match="holds no runs yet"):
            book.view(ref)
    recorded(store)
    assert book.view(LATEST).ref == "1"


def test_a_removed_run_is_gone_and_its_number_does_not_come_back(store: Store) -> None:
    recorded(store, "a", 10)
    recorded(store, "b", 20)
    book = RunBook(store.path)
    book.view("2")
    remove_runs(store, [2])
    with pytest.raises(UsageError, match="run 2: no such run"):
        book.view("2")
    recorded(store, "c", 30)
    assert len(book.view(LATEST).frames[0]["iteration"]) == 30


def test_a_database_that_is_replaced_is_another_one(store: Store) -> None:
    recorded(store, "a", 10)
    book = RunBook(store.path)
    assert len(book.view("1").frames[0]["iteration"]) == 10
    store.path.unlink()
    recorded(store, "b", 20)
    assert len(book.view("1").frames[0]["iteration"]) == 20


def test_while_a_writer_is_at_work_what_was_read_stays_and_the_rest_waits(store: Store) -> None:
    recorded(store, "seen", 10)
    recorded(store, "unseen", 20)
    sink = spooled(store, "live", 30)
    book = RunBook(store.path)
    book.view("seen")
    fresh = RunBook(store.path)
    with a_writer_at_work(store):
        assert len(book.view("seen").frames[0]["iteration"]) == 10
        assert len(book.view("live").frames[0]["iteration"]) == 30
        assert [each.ref for each in book.catalogue().runs] == [sink.name, "2", "1"]
        with pytest.raises(LockedError, match="a long load"):
            book.view("unseen")
        assert fresh.view(LATEST).state == "running"
        assert "a long load" in str(fresh.catalogue().note)
        with pytest.raises(LockedError):
            fresh.view("seen")
    assert len(book.view("unseen").frames[0]["iteration"]) == 20
    assert fresh.catalogue().note is None


@pytest.mark.parametrize("events", ["outcomes", "none"])
def test_a_run_without_iterations(store: Store, events: str) -> None:
    run = recorded(store, "lean", 0, events)
    view = RunBook(store.path).view(str(run))
    assert (view.events, view.frames) == (events, {})
    spooled(store, "lean and live", 0, events)
    live = RunBook(store.path).view(LATEST)
    assert (live.state, live.events, live.frames) == ("running", events, {})


def test_replicas_are_told_apart(store: Store) -> None:
    run = recorded(store, "fleet", 90)
    with store.write("make it a fleet") as con:
        con.execute("UPDATE iterations SET replica = iteration % 3, kv_total = 1000 + iteration % 3")
    view = RunBook(store.path).view(str(run))
    assert sorted(view.frames) == [0, 1, 2]
    assert view.kv_total == {0: 1000, 1: 1001, 2: 1002}
    for replica, frame in view.frames.items():
        assert frame["iteration"].tolist() == list(range(replica, 90, 3))


def test_replicas_of_a_run_under_way_are_told_apart(store: Store) -> None:
    rows = iteration_rows(90)
    layout = np.dtype([("replica", "<i2"), *rows.dtype.descr])
    tagged = np.zeros(90, layout)
    for name in rows.dtype.names or ():
        tagged[name] = rows[name]
    tagged["replica"] = rows["iteration"] // 10 % 3
    sink = SpoolSink(store.spool_folder, {"name": "fleet"}, constants=CONSTANTS, layouts={"iterations": layout})
    book = RunBook(store.path)
    for part in (tagged[:25], tagged[25:]):
        sink.append("iterations", part)
        view = book.view("fleet")
    assert {replica: len(frame["iteration"]) for replica, frame in view.frames.items()} == {0: 30, 1: 30, 2: 30}
    assert view.frames[1]["iteration"].tolist() == [*range(10, 20), *range(40, 50), *range(70, 80)]
    assert view.budget == {0: 1024, 1: 1024, 2: 1024}


def test_the_least_looked_at_goes_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        recorded(store, name, 10)
    monkeypatch.setattr("dashboards.queries.KEPT_BYTES", 2 * Columns().bytes)
    book = RunBook(store.path)
    for ref in ("1", "2", "1", "3"):
        book.view(ref)
    assert len(book._kept._values) == 2
    opened = []
    monkeypatch.setattr("dashboards.queries.read_run", lambda *a: opened.append(a))
    book.view("1")
    book.view("3")
    assert opened == []


def test_looking_at_spools_changes_nothing(store: Store) -> None:
    assert spools_there(store) == []
    in_a_killed_process(lambda: spooled(store, "left"))
    before = sorted(store.folder.rglob("*"))
    assert [spool.run["name"] for spool in spools_there(store)] == ["left"]
    assert sorted(store.folder.rglob("*")) == before
    assert not store.exists()

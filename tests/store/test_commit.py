"""What goes into the spool comes out of the tables, value by value."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replay_engine.tables import ENUMS, NULLABLE, TABLES
from tests.store.events import CONSTANTS, event_rows, filled_spool
from tracekit.errors import InputError, UsageError
from tracekit.store import EarlyCommit, SpoolSink, Store, commit_run, find_spools, list_runs, load_run, read_spool, sql


def expected(table: str, name: str, value: Any) -> Any:
    """What the store shows for a row's value."""
    names = ENUMS.get((table, name))
    if names is not None:
        return names[int(value)]
    if name in NULLABLE[table] and (value != value or value == -1):
        return None
    return value.item()


@pytest.mark.parametrize("table", list(TABLES))
def test_every_column_arrives_by_value(store: Store, table: str) -> None:
    sink = filled_spool(store, count=40)
    run = commit_run(store, sink, {"name": "x"})
    shown = sql(store, f"SELECT * FROM {table}")
    rows = event_rows(table, 40)
    assert len(shown.rows) == 40
    assert shown.columns[:2] == ["run", "replica"]
    for got, row in zip(shown.rows, rows, strict=True):
        have = dict(zip(shown.columns, got, strict=True))
        assert (have["run"], have["replica"]) == (run, row["replica"] if "replica" in rows.dtype.names else 0)
        assert {n: have[n] for n in rows.dtype.names} == {n: expected(table, n, row[n]) for n in rows.dtype.names}
        for name, value in CONSTANTS.get(table, {}).items():
            assert have[name] == value
    if table == "iterations":
        assert {row[shown.columns.index("padded_tokens")] for row in shown.rows} == {None}


def test_a_commit_that_begins_early_writes_the_same(store: Store, tmp_path: Path) -> None:
    wanted = {"outcomes": {"counted": np.arange(40) % 2 == 0, "tenant": [f"t{n % 3}" for n in range(40)]}}
    other = Store(tmp_path / "other.duckdb")
    assert commit_run(store, filled_spool(store, count=40), {"name": "x"}, wanted) == 1
    sink = filled_spool(other, count=40)
    sink.close()
    with EarlyCommit(other, sink) as early:
        assert early.finish({"name": "x"}, wanted) == 1
    for table in TABLES:
        assert sql(other, f"SELECT * FROM {table}").rows == sql(store, f"SELECT * FROM {table}").rows
    assert not sink.folder.exists()


@pytest.mark.parametrize("row", [None, {"no column": 1}])
def test_a_commit_that_is_left_before_its_end_writes_nothing(store: Store, row: dict[str, Any] | None) -> None:
    """Interrupted, or given what the store refuses: no run, the database free, and the spool there to be recovered."""
    sink = filled_spool(store, count=40)
    sink.close()
    with pytest.raises((KeyboardInterrupt, ValueError)), EarlyCommit(store, sink) as early:
        if row is None:
            raise KeyboardInterrupt
        early.finish(row, {})
    assert list_runs(store) == []
    assert [spool.run["name"] for spool in find_spools(store)] == ["x"]
    with store.write("somebody else"):
        pass


def test_a_commit_that_fails_in_its_thread_says_why(store: Store) -> None:
    sink = filled_spool(store, count=40)
    sink.close()
    rows = sink.folder / "iterations.rows"
    with pytest.raises(InputError, match="cannot be committed"), EarlyCommit(store, sink) as early:
        early.finish({"name": "x"}, {"outcomes": {"counted": np.ones(3, np.bool_)}})
    assert rows.exists()
    assert list_runs(store) == []


def test_more_rows_than_one_piece_keep_their_order(store: Store) -> None:
    sink = SpoolSink(store.spool_folder, {})
    for first in range(0, 300_000, 50_000):
        sink.append("prefill_entries", event_rows("prefill_entries", 50_000, first))
    commit_run(store, sink, {})
    with store.read() as con:
        column = con.sql("SELECT iteration FROM prefill_entries").to_arrow_table()["iteration"].to_numpy()
    assert np.array_equal(column, np.arange(300_000))


def test_seconds_views_divide_by_a_billion(store: Store) -> None:
    commit_run(store, filled_spool(store), {})
    ns = sql(store, "SELECT start_ns, duration_ns FROM iterations ORDER BY iteration").rows
    seconds = sql(store, "SELECT start_s, duration_s FROM iterations_s ORDER BY iteration").rows
    assert seconds == [(a / 1e9, b / 1e9) for a, b in ns]
    columns = sql(store, "SELECT * FROM outcomes_s").columns
    assert "ttft_s" in columns
    assert not any(name.endswith("_ns") for name in columns)


def test_values_by_request_are_looked_up_for_each_outcome(store: Store) -> None:
    sink = SpoolSink(store.spool_folder, {})
    sink.append("outcomes", event_rows("outcomes", 3)[::-1].copy())
    lookup = {"tenant": ["a", None, "c"], "slo_met": np.array([True, False, True])}
    commit_run(store, sink, {}, {"outcomes": lookup})
    rows = sql(store, 'SELECT request, tenant, "class", slo_met FROM outcomes').rows
    assert rows == [(2, "c", None, True), (1, None, None, False), (0, "a", None, True)]


def test_runs_row_comes_back_whole(store: Store) -> None:
    row = {
        "name": "base",
        "trace": 4,
        "trace_name": "conv",
        "started_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2))),
        "wall_s": 1.5,
        "engine": "sim",
        "profile": "h100",
        "policy": {"max_num_seqs": 8},
        "slo": None,
        "events": "full",
        "seed": 7,
        "requests": 10,
        "iterations": 10,
        "command": "tracekit replay",
        "matrix": {"ttft": [1, None, "é"]},
        "tracekit_version": "0",
        "slice": {"window_ns": [0, 5], "limit": None},
        "setup": {"profile": "name = \"p\""},
    }
    run = commit_run(store, filled_spool(store), row)
    have = load_run(store, run)
    assert have.pop("spool")
    assert have == row | {"run": 1, "state": "finished", "started_at": datetime(2026, 1, 2, 1, 4, 5)}
    assert list_runs(store)[0]["name"] == "base"
    assert sql(store, "SELECT matrix->'ttft'->>2 FROM runs").rows == [("é",)]


def test_the_spool_is_gone_and_no_wal_is_left(store: Store, tmp_path: Path) -> None:
    commit_run(store, filled_spool(store), {})
    assert list(store.spool_folder.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.duckdb", "t.duckdb.d"]


def test_the_file_is_in_the_declared_storage_format(store: Store) -> None:
    commit_run(store, filled_spool(store), {})
    with duckdb.connect(str(store.path)) as con:
        tags = con.execute("SELECT tags FROM duckdb_databases() WHERE database_name = 't'").fetchall()[0][0]
    assert tags["storage_version"].startswith("v1.2.0")


def test_unknown_columns_and_broken_codes_change_nothing(store: Store) -> None:
    commit_run(store, filled_spool(store), {})
    with pytest.raises(ValueError, match="nonsense"):
        commit_run(store, filled_spool(store), {"nonsense": 1})
    sink = SpoolSink(store.spool_folder, {})
    rows = event_rows("spans", 3)
    rows["phase"] = 99
    sink.append("iterations", event_rows("iterations", 3))
    sink.append("spans", rows)
    with pytest.raises(InputError, match="cannot be committed"):
        commit_run(store, sink, {})
    assert sql(store, "SELECT count(*) FROM iterations").rows == [(10,)]
    assert len(list_runs(store)) == 1


def test_outcomes_level_records_outcomes_only(store: Store) -> None:
    sink = SpoolSink(store.spool_folder, {}, events="outcomes")
    for table in TABLES:
        sink.append(table, event_rows(table, 5))
    commit_run(store, sink, {})
    assert sql(store, "SELECT (SELECT count(*) FROM outcomes), (SELECT count(*) FROM iterations)").rows == [(5, 0)]
    with pytest.raises(UsageError, match="expected one of none, outcomes, full"):
        SpoolSink(store.spool_folder, {}, events="some")


def test_a_reader_sees_whole_rows_while_the_run_goes_on(store: Store) -> None:
    sink = SpoolSink(store.spool_folder, {"name": "live"})
    assert len(read_spool(sink.folder, "spans")) == 0
    sink.append("spans", event_rows("spans", 7))
    with (sink.folder / "spans.rows").open("ab") as file:
        file.write(b"half a row")
    seen = read_spool(sink.folder, "spans")
    assert np.array_equal(seen, event_rows("spans", 7))
    header = json.loads((sink.folder / "header.json").read_text())
    assert header["run"]["name"] == "live"


def test_append_does_not_keep_the_callers_buffer(store: Store) -> None:
    sink = SpoolSink(store.spool_folder, {})
    buffer = event_rows("spans", 4)
    sink.append("spans", buffer)
    buffer["request"] = 77
    sink.append("spans", buffer[:1])
    assert read_spool(sink.folder, "spans")["request"].tolist() == [0, 1, 2, 3, 77]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 5000), max_size=6), values=st.integers(-(2**62), 2**62))
def test_any_cut_into_appends_gives_the_same_table(store: Store, cuts: list[int], values: int) -> None:
    rows = event_rows("iterations", 5000)
    rows["prefill_qk"] = values
    sink = SpoolSink(store.spool_folder, {})
    edges = [0, *sorted(cuts), 5000]
    for low, high in pairwise(edges):
        sink.append("iterations", rows[low:high])
    run = commit_run(store, sink, {})
    got = sql(
        store,
        "SELECT count(*), sum(iteration), count(head_request), count(DISTINCT prefill_qk), any_value(prefill_qk),"
        f" count(DISTINCT head_refused_by) FROM iterations WHERE run = {run}",
    ).rows
    assert got == [(5000, 5000 * 4999 // 2, 5000 - 1667, 1, values, 17)]

"""Runs: numbers, names, removal, queries, and what doctor sees."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from tests.store.events import filled_spool
from tracekit.errors import InputError, UsageError
from tracekit.store import (
    Store,
    commit_run,
    database,
    database_size,
    doctor,
    list_runs,
    load_run,
    remove_runs,
    resolve_run,
    run_rows,
    schema,
    sql,
)


def commit(store: Store, name: str, count: int = 10) -> int:
    return commit_run(store, filled_spool(store, name, count), {"name": name})


def test_a_run_is_found_by_number_last_and_name(store: Store) -> None:
    for name in ("base", "wide", "base", "4711"):
        commit(store, name)
    assert [resolve_run(store, text) for text in ("1", "last", "base", "wide", "4711")] == [1, 4, 3, 2, 4]
    with pytest.raises(UsageError, match="names like it: base"):
        resolve_run(store, "bass")
    with pytest.raises(UsageError, match="the latest is 4"):
        resolve_run(store, "99")


def test_removed_runs_are_gone_and_their_numbers_stay_used(store: Store) -> None:
    for name in ("a", "b", "c"):
        commit(store, name, 20)
    gone = remove_runs(store, [1, 3])
    assert (gone.runs, gone.events) == ([1, 3], 2 * len(schema.EVENT_TABLES) * 20)
    assert [run["name"] for run in list_runs(store)] == ["b"]
    assert run_rows(store) == {2: dict.fromkeys(schema.EVENT_TABLES, 20)}
    assert commit(store, "d") == 4
    with pytest.raises(UsageError, match="run 3: no such run"):
        remove_runs(store, [2, 3])
    assert len(list_runs(store)) == 2


def test_removing_a_large_run_gives_space_back(store: Store) -> None:
    commit(store, "small")
    commit(store, "large", 300_000)
    before = database_size(store)
    gone = remove_runs(store, [2])
    after = database_size(store)
    assert gone.freed_bytes == before["file_bytes"] - after["file_bytes"]
    assert gone.freed_bytes + gone.reusable_bytes > before["file_bytes"] // 2


def test_sql_reads_and_cannot_write(store: Store) -> None:
    commit(store, "a")
    result = sql(store, "SELECT count(*) AS n, 'x' AS t FROM spans")
    assert (result.columns, result.types, result.rows) == (["n", "t"], ["BIGINT", "VARCHAR"], [(10, "x")])
    for query in ("DELETE FROM spans", "SELECT nothing FROM spans", "SELEC 1", ""):
        if query:
            with pytest.raises(UsageError) as error:
                sql(store, query)
            assert "\n" not in str(error.value)
    assert sql(store, "SELECT count(*) FROM spans").rows == [(10,)]


def test_no_database_is_one_line(store: Store) -> None:
    for ask in (lambda: list_runs(store), lambda: resolve_run(store, "last"), lambda: sql(store, "SELECT 1")):
        with pytest.raises(UsageError, match="no such database"):
            ask()
    with pytest.raises(UsageError, match="no such folder"), Store("/nowhere/at/all.duckdb").write("x"):
        pass


def test_files_that_are_not_ours_are_refused_and_left_alone(tmp_path: Path) -> None:
    junk = tmp_path / "junk.duckdb"
    junk.write_bytes(b"not a database at all" * 1000)
    other = tmp_path / "other.duckdb"
    with duckdb.connect(str(other)) as con:
        con.execute("CREATE TABLE runs (a INTEGER)")
    newer = Store(tmp_path / "newer.duckdb")
    with newer.write("x") as con:
        con.execute("UPDATE meta SET value = '999' WHERE key = 'schema_version'")
    expected = {"junk": "not a DuckDB database", "other": "not one of tracekit's", "newer": "newer than this program"}
    for name, words in expected.items():
        store = Store(tmp_path / f"{name}.duckdb")
        before = store.path.read_bytes()
        with pytest.raises((InputError, UsageError), match=words), store.read():
            pass
        with pytest.raises((InputError, UsageError), match=words), store.write("x"):
            pass
        assert store.path.read_bytes() == before


def test_an_unknown_run_has_no_row(store: Store) -> None:
    commit(store, "a")
    with pytest.raises(UsageError, match="run 5: no such run"):
        load_run(store, 5)


def test_writing_rolls_back_on_an_exception(store: Store) -> None:
    commit(store, "a")
    with pytest.raises(duckdb.Error), store.write("x") as con:
        con.execute("DELETE FROM runs; SELECT nothing")
    assert len(list_runs(store)) == 1
    with pytest.raises(RuntimeError, match="already writes"), store.write("x"), store.read():
        pass


def test_doctor_tells_without_waiting_or_failing(store: Store) -> None:
    facts = doctor(store)
    assert facts["database"]["exists"] is False
    assert facts["installed"]["duckdb"] == duckdb.__version__
    commit(store, "a")
    left = filled_spool(store, "under way")
    facts = doctor(store)
    assert facts["database"]["schema_version"] == facts["database"]["schema_expected"]
    assert facts["database"]["readable"] is True
    assert [(spool["name"], spool["alive"]) for spool in facts["spools"]] == [("under way", True)]
    assert set(facts["missing"]) <= {"torch", "triton", "optuna", "dash", "ray", "psycopg"}
    with store.write("a long load"):
        facts = doctor(store)
    assert facts["database"]["readable"] is False
    assert facts["database"]["locked_by"]["what"] == "a long load"
    json.dumps(facts)
    left.close()
    assert "a long load" in facts["problems"][0]


def test_an_older_file_is_brought_up_to_date_by_whoever_opens_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(store, "old")
    steps = (*schema.MIGRATIONS, lambda con: con.execute("ALTER TABLE runs ADD COLUMN cost DOUBLE"))
    monkeypatch.setattr(schema, "MIGRATIONS", steps)
    monkeypatch.setattr(schema, "SCHEMA_VERSION", len(steps))
    monkeypatch.setattr(database, "SCHEMA_VERSION", len(steps))
    reopened = Store(store.path)
    assert sql(reopened, "SELECT name, cost FROM runs").rows == [("old", None)]
    assert commit(reopened, "new") == 2


def test_a_new_file_has_what_an_old_one_grows_into(store: Store) -> None:
    """Steps that a new file leaves out change nothing in it."""
    shape = "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal"
    commit(store, "new")
    with duckdb.connect(str(store.path)) as con:
        before = con.execute(shape).fetchall()
        for step in schema.MIGRATIONS:
            if step in schema._LATER:
                step(con)
        assert con.execute(shape).fetchall() == before


@pytest.mark.parametrize("version", range(6, 11))
def test_a_file_from_before_a_column_of_the_split_has_it_afterwards(store: Store, version: int) -> None:
    """The view speaks of columns that a file of any earlier version lacks, with the view as it was or without it."""
    commit(store, "old")
    with duckdb.connect(str(store.path)) as con:
        con.execute("DROP VIEW iterations_split; DROP VIEW iterations_s")
        con.execute("ALTER TABLE iterations DROP COLUMN decode_longest_tokens")
        if version > 8:
            con.execute("CREATE VIEW iterations_split AS SELECT i.*, runs.name FROM iterations AS i JOIN runs USING (run)")
        con.execute(f"UPDATE meta SET value = '{version}' WHERE key = 'schema_version'")
    reopened = Store(store.path)
    counts = "SELECT count(*), count(decode_longest_tokens) FROM iterations"
    (rows, told), *_ = sql(reopened, counts).rows
    assert rows > 0 and told == 0
    assert sql(reopened, "SELECT count(kv_ns) FROM iterations_split").rows is not None
    assert commit(reopened, "new") == 2


def test_rows_of_an_older_file_stay_and_new_ones_fit(store: Store) -> None:
    """A file from before decisions, reasons for them, and a few columns."""
    commit(store, "old")
    with duckdb.connect(str(store.path)) as con:
        for table in ("outcomes", "preemptions", "decisions", "spans", "iterations", "prefill_entries"):
            con.execute(f"DROP VIEW IF EXISTS {table}_s")
        con.execute("DROP TABLE decisions; DROP TYPE decision_kind")
        con.execute("ALTER TABLE preemptions DROP COLUMN link_ns; ALTER TABLE preemptions DROP COLUMN kind")
        con.execute("DROP TYPE preemption_kind")
        con.execute("ALTER TABLE outcomes ALTER reason TYPE VARCHAR; DROP TYPE outcome_reason")
        con.execute("CREATE TYPE outcome_reason AS ENUM "
                    "('none', 'prompt_too_long', 'no_progress', 'client_cancelled', 'interrupted')")  # fmt: skip
        con.execute("ALTER TABLE outcomes ALTER reason TYPE outcome_reason")
        con.execute("UPDATE meta SET value = '1' WHERE key = 'schema_version'")
        before = con.execute("SELECT * FROM outcomes ORDER BY request").fetchall()
    reopened = Store(store.path)
    assert sql(reopened, "SELECT * FROM outcomes ORDER BY request").rows == before
    assert sql(reopened, "SELECT count(*), count(kind), count(link_s) FROM preemptions_s").rows == [(10, 0, 0)]
    assert commit(reopened, "new") == 2
    counts = sql(reopened, "SELECT run, count(kind), sum(link_ns) FROM preemptions GROUP BY run ORDER BY run").rows
    assert counts == [(1, 0, None), (2, 10, sum(n * 3 + 5 for n in range(10)))]
    assert sql(reopened, "SELECT count(*), max(reason) FROM decisions WHERE decision = 'reject'").rows == [(2, "queue_requests")]
    columns = sql(reopened, "SELECT data_type FROM duckdb_columns() WHERE table_name = 'outcomes' AND column_name = 'degraded'")
    assert columns.rows == [("BOOLEAN",)]

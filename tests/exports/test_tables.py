"""Tables of a run read back from the files, and what becomes of files: whole or not there, never replaced unasked."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest

from tests.exports.conftest import Runs
from tracekit.errors import UsageError
from tracekit.exports.destination import whole_file, whole_folder
from tracekit.exports.export import export
from tracekit.store.schema import EVENT_TABLES


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("which", ["preempting", "pools"])
def test_what_is_read_back_is_the_run(runs: Runs, tmp_path: Path, kind: str, which: str) -> None:
    run = getattr(runs, which)
    report = export(str(run), to=kind, out=tmp_path / "out", db=runs.path)
    files = {path.stem: path for path in (tmp_path / "out").iterdir()}
    assert set(files) == set(report.figures["rows"])
    with runs.store.read() as con:
        for table in EVENT_TABLES:
            rows = con.execute(f"SELECT * FROM {table} WHERE run = ?", [run]).fetchall()
            assert bool(rows) == (table in files)
            if not rows:
                continue
            assert report.figures["rows"][table] == len(rows)
            kept = con.sql(f"SELECT * FROM {table} WHERE run = {run}")
            reader = f"read_csv('{files[table]}', header = true, all_varchar = true)" if kind == "csv" else f"'{files[table]}'"
            back = con.sql(f"SELECT * FROM {reader}")
            assert back.columns == kept.columns
            text = ", ".join(f'"{name}"::VARCHAR' for name in kept.columns)
            assert sorted(map(repr, con.sql(f"SELECT {text} FROM back").fetchall())) == sorted(
                map(repr, con.sql(f"SELECT {text} FROM kept").fetchall())
            )


def test_one_table_is_one_file(runs: Runs, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    out = tmp_path / "o.parquet"
    export(str(runs.tight), to="parquet", tables=["outcomes"], out=out, db=runs.path)
    assert duckdb.sql(f"SELECT count(*) FROM '{out}'").fetchall() == [(160,)]
    export(str(runs.tight), to="csv", tables=["outcomes"], out="-", db=runs.path)
    lines = capfdbinary.readouterr().out.splitlines()
    assert lines[0].startswith(b"run,replica,") and len(lines) > 160


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"to": "csv", "tables": ["nothing"]}, "no such table"),
        ({"to": "csv", "out": "-"}, "one stream"),
        ({"to": "perfetto", "tables": ["outcomes"]}, "means nothing"),
        ({"to": "markdown", "window": "1s:2s"}, "means nothing"),
        ({"to": "perfetto", "window": "1s"}, "FROM:TO"),
        ({"to": "perfetto", "window": "2s:1s"}, "ends before"),
        ({"to": "perfetto", "window": "9000s:9001s"}, "nothing to draw"),
        ({"to": "xls"}, "no such format"),
        ({"to": "perfetto", "out": "no/such/folder/x"}, "no such folder"),
        ({"to": "perfetto", "out": "."}, "there already"),
    ],
)
def test_what_cannot_be_is_said(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=reason):
        export("tight", db=runs.path, **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["perfetto", "markdown", "vllm-args", "csv"])
def test_nothing_is_replaced_unasked(runs: Runs, tmp_path: Path, to: str) -> None:
    out = tmp_path / "there"
    export("tight", to=to, out=out, db=runs.path)
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*")}
    with pytest.raises(UsageError, match="--force"):
        export("tight", to=to, out=out, db=runs.path)
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*")} == before
    export("tight", to=to, out=out, db=runs.path, force=True)
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*")} == {path.relative_to(tmp_path) for path in before}


def test_a_folder_with_other_things_is_never_replaced(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(UsageError, match="no export wrote"):
        export("tight", to="csv", out=tmp_path / "mine", db=runs.path, force=True)
    with pytest.raises(UsageError, match="a folder"):
        export("tight", to="markdown", out=tmp_path / "mine", db=runs.path, force=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "all of it"


@pytest.mark.parametrize("force", [False, True])
def test_an_error_midway_leaves_what_was_there(tmp_path: Path, force: bool) -> None:
    out, folder = tmp_path / "file", tmp_path / "folder"
    if force:
        out.write_text("old")
        folder.mkdir()
        (folder / "a.csv").write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(out, force=force) as stream:
        stream.write(b"half")
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), whole_folder(folder, frozenset({"a.csv"}), force=force) as part:
        (part / "a.csv").write_text("half")
        raise ZeroDivisionError
    left = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == ({"file": "old", "a.csv": "old"} if force else {})


@pytest.mark.parametrize("force", [False, True])
def test_a_kill_midway_leaves_what_was_there(tmp_path: Path, force: bool) -> None:
    out = tmp_path / "file"
    if force:
        out.write_text("old")
    child = os.fork()
    if child == 0:
        with whole_file(out, force=force) as stream:
            stream.write(b"half")
            stream.flush()
            os._exit(9)
    os.waitpid(child, 0)
    assert (out.read_text() if force else out.exists()) == ("old" if force else False)
    with whole_file(out, force=force) as stream:
        stream.write(b"whole")
    assert out.read_bytes() == b"whole"


def test_what_came_into_being_meanwhile_stays(tmp_path: Path) -> None:
    out, folder = tmp_path / "file", tmp_path / "folder"
    with pytest.raises(UsageError, match="meanwhile"), whole_file(out) as stream:
        stream.write(b"late")
        out.write_text("somebody else's")
    with pytest.raises(UsageError, match="meanwhile"), whole_folder(folder, frozenset()):
        folder.write_text("somebody else's")
    assert out.read_text() == folder.read_text() == "somebody else's"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}

"""``load``, ``traces`` and ``synth`` from outside, on files made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracekit.cli.main import main


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    rows = [f"{i},{100 + i},{10 + i}" for i in range(20)]
    Path("good.csv").write_text("arrival,input_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    Path("mixed.csv").write_text("arrival,input_tokens,output_tokens\n" + "\n".join([*rows, "x,1,1", "9,,\x1b1"]) + "\n")
    Path("bad.csv").write_text("arrival,input_tokens,output_tokens\nx,1,1\ny,1,1\n")
    return "a.duckdb"


def test_load_reconciles_and_lists(db: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "mixed.csv", "--db", db]) == 0
    out = capfd.readouterr().out
    assert "22 read = 20 kept + 2 dropped" in out
    assert "line 22" in out
    assert "\x1b" not in out
    assert main(["load", "good.csv", "--name", "mine", "--db", db, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["schema"] == "tracekit.load/1"
    assert report["rows_read"] == report["rows_kept"] == 20
    assert main(["load", "good.csv", "--db", db]) == 0
    assert "loaded before" in capfd.readouterr().out
    assert main(["traces", "--db", db, "--json"]) == 0
    listed = json.loads(capfd.readouterr().out)["traces"]
    assert [(t["name"], t["requests"], t["dropped"]) for t in listed] == [("mixed", 20, 2), ("mine", 20, 0)]
    assert main(["traces", "--db", db]) == 0
    assert "mine" in capfd.readouterr().out


def test_mapped_columns(db: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("odd.csv").write_text("when,p,o\n" + "".join(f"{i * 1000},{i + 1},5\n" for i in range(4)))
    mapped = ["--map", "arrival=when:ms", "--map", "input_tokens=p", "--map", "output_tokens=o"]
    assert main(["load", "odd.csv", *mapped, "--db", db, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert (report["rows_kept"], report["span_ns"]) == (4, 3_000_000_000)


@pytest.mark.parametrize("name", ["bad.csv", "no-such.csv"])
def test_unusable_input_is_3(db: str, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["load", name, "--db", db]) == 3
    err = capfd.readouterr().err
    assert err.startswith(f"tracekit: {name}")
    assert err.count("\n") == 1


def test_an_empty_database_has_no_traces(db: str, capfd: pytest.CaptureFixture[str]) -> None:
    from tracekit.store import Store

    with Store(db).write("make it"):
        pass
    assert main(["traces", "--db", db]) == 0
    assert "no traces yet" in capfd.readouterr().out

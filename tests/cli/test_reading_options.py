"""``--arrival``, ``--cached`` and ``synth --servegen`` from outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracekit.cli.main import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lengths.csv").write_text("num_prefill_tokens,num_decode_tokens\n" + "40,5\n" * 30)
    Path("cached.csv").write_text("arrival_s,prompt_tokens,completion_tokens,cached_tokens\n" + "1,40,5,60\n" * 3)
    Path("c-trace.csv").write_text("0,1.0,1.0,Gamma,1,1\n600,0,,,,\n")
    Path("c.json").write_text('{"0": {"input_tokens": "{9: 1.0}", "output_tokens": "{3: 1.0}"}}')


def test_lengths_only(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "lengths.csv"]) == 3
    err = capfd.readouterr().err
    assert "lengths.csv: no arrival times" in err
    assert "--arrival poisson:rate=5" in err
    assert err.count("\n") == 1
    assert main(["load", "lengths.csv", "--arrival", "poisson:rate=2,cv=3,seed=4", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert (report["rows_kept"], report["arrival_kind"]) == (30, "generated")
    assert main(["replay", "lengths.csv", "--arrival", "poisson:rate=2", "--json", "--events", "none"]) == 0
    assert json.loads(capfd.readouterr().out)["run"]
    assert main(["describe", "lengths.csv", "--arrival", "poisson:rate=2", "--json"]) == 0
    capfd.readouterr()
    assert main(["load", "lengths.csv", "--arrival", "sometimes"]) == 2
    assert main(["replay", "lengths", "--arrival", "poisson:rate=9"]) == 2
    assert "loaded already" in capfd.readouterr().err


def test_cached_tokens_beside_the_input(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "cached.csv"]) == 3
    assert "--cached outside" in capfd.readouterr().err
    assert main(["load", "cached.csv", "--cached", "outside"]) == 0
    capfd.readouterr()
    assert main(["sql", "SELECT DISTINCT input_tokens FROM requests", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["rows"] == [[100]]


def test_a_servegen_client(capfd: pytest.CaptureFixture[str]) -> None:
    made = ["synth", "t.jsonl", "--servegen", "c-trace.csv", "c.json", "--seconds", "300", "--seed", "2", "--json"]
    assert main(made) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["requests"] == pytest.approx(300, abs=60)
    assert main(["load", "c-trace.csv"]) == 3
    assert "synth --servegen" in capfd.readouterr().err
    assert main([*made, "--prefix", "groups=1 tokens=16"]) == 2
    assert main(["synth", "t.jsonl", "--start", "5"]) == 2
    assert "expected synth OUT --servegen TRACE DATASET" in capfd.readouterr().err

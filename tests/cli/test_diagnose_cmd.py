"""``replay`` ends with the verdict, ``diagnose`` proves it, and both say the same as the recorded findings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracekit.cli.main import main
from tracekit.jobs import list_jobs
from tracekit.store import Store, sql
from tracekit.store.runs import remove_runs

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "demo_trace.jsonl.gz")
SEATS = ["--set", "max_num_seqs=3", "--slo", "ttft=500ms,tpot=50ms", "--engine", "sim", "--limit", "400"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.fixture
def db(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    path = str(tmp_path / "t.duckdb")
    code, out, _ = run(capsys, "replay", EXAMPLE, *SEATS, "--db", path)
    assert code == 0
    first, second, third = out.rstrip("\n").splitlines()[-3:]
    assert first.startswith("verdict: QUEUE_SEATS: ")
    assert second.startswith("change:  max_num_seqs 3 -> ") and "not replayed yet" in second
    assert third == f"more:    tracekit diagnose 1 --db {path} replays it and shows the evidence"
    return path


def test_the_change_is_proved_and_recorded(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "diagnose", "--db", db)
    assert code == 0
    assert out.startswith("QUEUE_SEATS: ") and "replayed   confirmed: " in out and "--max-num-seqs" in out
    assert "diagnosis 1 of run 1" in err
    rows = sql(Store(db), "SELECT rank, id, confirmed FROM findings ORDER BY rank").rows
    assert rows[:2] == [(0, None, None), (1, "QUEUE_SEATS", True)]
    assert [(job.kind, job.state) for job in list_jobs(Store(db).folder)] == [("replay", "finished"), ("diagnose", "finished")]
    assert run(capsys, "diagnose", "1", "--db", db)[2].count("diagnosis 1 of run 1") == 1  # the same again adds nothing
    assert run(capsys, "diagnose", "1", "--no-prove", "--db", db)[2].count("diagnosis 2 of run 1") == 1
    remove_runs(Store(db), [1])
    assert sql(Store(db), "SELECT count(*) FROM findings").rows == [(0,)]


def test_the_document_is_the_same_wherever_it_is_made(db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = str(tmp_path / "other.duckdb")
    for extra in ([], ["--name", "again"]):  # there it is the second run
        assert run(capsys, "replay", EXAMPLE, *SEATS, "--db", other, "--no-diagnose", *extra)[0] == 0
    one = run(capsys, "diagnose", "1", "--json", "--db", db)[1]
    again = run(capsys, "diagnose", "again", "--json", "--jobs", "1", "--db", other)[1]
    assert one == again
    document = json.loads(one)
    assert document["schema"] == "tracekit.verdict/1" and document["findings"][0]["confirmed_by_replay"] is True
    short = json.loads(run(capsys, "diagnose", "1", "--no-prove", "--limit-findings", "1", "--json", "--db", db)[1])
    assert len(short["findings"]) == 1 and short["findings"][0]["confirmed_by_replay"] is None


def test_the_verdict_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "t.duckdb")
    for arguments in (["--no-diagnose"], ["--events", "outcomes"]):
        out = run(capsys, "replay", EXAMPLE, "--limit", "60", "--engine", "sim", "--db", path, *arguments)[1]
        assert "verdict:" not in out
    told = json.loads(run(capsys, "replay", EXAMPLE, "--limit", "60", "--engine", "sim", "--db", path, "--json")[1])
    assert len(told["verdict"]) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["diagnose", "7"], 2, "no such run"),
        (["diagnose", "--prove", "lots"], 2, "--prove lots: expected a number of iterations, as 5M or 500k"),
        (["diagnose", "--prove", "0"], 2, "expected a number of iterations"),
        (["diagnose", "--limit-findings", "0"], 2, "--limit-findings"),
    ],
)
def test_mistakes_are_one_line(db: str, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str) -> None:
    found, out, err = run(capsys, *arguments, "--db", db)
    assert (found, out) == (code, "") and said in err and len(err.splitlines()) == 1

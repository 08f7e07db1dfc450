"""``synth`` from outside: the example, options, a spec, a recipe."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tracekit.cli.main import main
from tracekit.traces.load import read_trace

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(path: str) -> list[dict[str, object]]:
    with gzip.open(path) as data:
        return [json.loads(line) for line in data]


def test_without_options_it_is_the_example() -> None:
    assert main(["synth", "demo.jsonl.gz"]) == 0
    assert Path("demo.jsonl.gz").read_bytes() == (ROOT / "examples" / "demo_trace.jsonl.gz").read_bytes()


def test_options(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--requests", "300", "--arrival", "gamma:rate=10,cv=2", "--input", "uniform:10,20", "--output", "5"]
    assert main(["synth", "a.jsonl.gz", *words, "--max-tokens", "64", "--prefix", "groups=2 tokens=32", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["schema"], document["requests"]) == ("tracekit.synth/1", 300)
    made = rows("a.jsonl.gz")
    assert {row["output_tokens"] for row in made} == {5}
    assert {row["max_tokens"] for row in made} == {64}
    assert all(42 <= int(str(row["input_tokens"])) <= 52 for row in made)
    assert main(["synth", "b.jsonl.gz", "--lengths-from", "a.jsonl.gz", "--seconds", "20", "--arrival", "poisson:rate=4"]) == 0
    assert main(["load", "a.jsonl.gz", "--name", "mine"]) == 0
    assert main(["synth", "c.jsonl.gz", "--lengths-from", "mine", "--seconds", "20", "--arrival", "poisson:rate=4"]) == 0
    assert rows("b.jsonl.gz") == rows("c.jsonl.gz")
    pairs = {(row["input_tokens"], row["output_tokens"]) for row in rows("b.jsonl.gz")}
    assert pairs <= {(row["input_tokens"], row["output_tokens"]) for row in made}


def test_tenants_and_sessions_and_a_spec(capfd: pytest.CaptureFixture[str]) -> None:
    tenants = ["--tenant", "name=chat share=3 input=100", "--tenant", "name=bot share=1 prefix.groups=2 prefix.tokens=64"]
    words = ["--requests", "80", "--sessions", "turns=fixed:4 think=fixed:2", "--seed", "9"]
    assert main(["synth", "a.jsonl.gz", *tenants, *words]) == 0
    trace = read_trace("a.jsonl.gz")
    assert trace.extras is not None
    assert sorted(set(trace.extras["tenant"].to_pylist())) == ["bot", "chat"]
    assert len(set(trace.extras["session_id"].to_pylist())) == 20
    Path("s.toml").write_text('requests = 40\nseed = 4\ninput = 7\narrival = "poisson:rate=3"\n')
    assert main(["synth", "c.jsonl.gz", "--spec", "s.toml", "--requests", "20"]) == 0
    assert "seed 4" in capfd.readouterr().out
    assert [row["input_tokens"] for row in rows("c.jsonl.gz")] == [7] * 20


def test_a_recipe(capfd: pytest.CaptureFixture[str]) -> None:
    case = str(ROOT / "tests" / "data" / "cases" / "D13.yaml")
    assert main(["synth", "--recipe", case, "--out", "d13", "--json"]) == 0
    commands = json.loads(capfd.readouterr().out)["replay"]
    assert list(commands) == ["base", "cv 1", "evenly spaced", "budget 8192", "shortest first"]
    for command in commands.values():
        assert all(Path(word).is_file() for word in command.split() if word.startswith("d13/"))
    words = commands["budget 8192"].split()[1:]
    assert main([*words, "--limit", "50", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["state"] == "finished"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "no file to write"),
        (["--recipe", "r.yaml"], "no folder"),
        (["--recipe", "r.yaml", "--out", "d", "--requests", "5"], "requests does not go with it"),
        (["a.jsonl", "--arrival", "weekly"], "no such arrival process"),
        (["a.jsonl", "--tenant", "chat"], "expected name=value pairs"),
        (["a.jsonl", "--tenant", "nam=chat"], "unknown; expected one of name"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("r.yaml").write_text("seed: 1\n")
    assert main(["synth", *words]) == 2
    err = capfd.readouterr().err
    assert reason in err and err.count("\n") == 1

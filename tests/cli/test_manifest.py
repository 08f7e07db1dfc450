"""``replay --from manifest.json``: the same bytes again, elsewhere too, or which input differs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tracekit.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo_trace.jsonl.gz"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace, a database, and a run of a part of the trace under another policy."""
    folder = tmp_path_factory.mktemp("manifest")
    shutil.copy(DEMO, folder / "night.jsonl.gz")
    words = ["--limit", "250", "--rate-scale", "2", "--set", "max_num_seqs=16", "--slo", "ttft=500ms,tpot=50ms",
             "--window", "30s:", "--seed", "7", "--name", "first", "--warmup", "2s"]  # fmt: skip
    assert main(["replay", str(folder / "night.jsonl.gz"), "--db", str(folder / "a.duckdb"), *words]) == 0
    return folder


def run_files(folder: Path, db: str, run: int = 1) -> Path:
    return folder / f"{db}.d" / "runs" / str(run)


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_files(folder, "a.duckdb") / "manifest.json").read_text())
    return found


def test_the_manifest_says_what_decided_the_run(made: Path) -> None:
    found = manifest(made)
    assert found["trace"]["requests"] > 250, "the lead-in is replayed too"
    assert found["trace"]["files"][0]["sha256"] == found["trace"]["digest"]
    assert found["policy"]["document"]["scheduler"]["max_num_seqs"] == 16
    assert (found["seed"], found["slice"]["rate_scale"], found["slice"]["warmup_ns"]) == (7, 2.0, 2 * 10**9)
    assert found["slo"]
    assert set(found["versions"]) >= {"tracekit", "code", "python", "numpy", "scheduler"}
    assert found["host"]["cores"] >= 1


@pytest.mark.parametrize("where", ["the same database", "another one, the trace where it was", "another one, the trace moved"])
def test_the_same_bytes_come_out(made: Path, tmp_path: Path, where: str, capfd: pytest.CaptureFixture[str]) -> None:
    source = run_files(made, "a.duckdb")
    words = ["--from", str(source / "manifest.json")]
    if where == "the same database":
        words += ["--db", str(made / "a.duckdb")]
    else:
        words += ["--db", str(tmp_path / "b.duckdb")]
    if where.endswith("moved"):
        (tmp_path / "elsewhere").mkdir()
        shutil.copy(made / "night.jsonl.gz", tmp_path / "elsewhere" / "renamed.jsonl.gz")
        words += [str(tmp_path / "elsewhere" / "renamed.jsonl.gz")]
    capfd.readouterr()
    assert main(["replay", *words, "--json"]) == 0
    out, err = capfd.readouterr()
    assert "reproduced: the same bytes" in err
    run = json.loads(out)["run"]
    folder = made / "a.duckdb.d" if where == "the same database" else tmp_path / "b.duckdb.d"
    assert (folder / "runs" / str(run) / "verdict.json").read_bytes() == (source / "verdict.json").read_bytes()


def test_another_trace_is_refused_by_its_digest(made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.jsonl"
    rows = [{"arrival_ns": i * 10**8, "input_tokens": 9, "output_tokens": 4} for i in range(50)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = str(run_files(made, "a.duckdb") / "manifest.json")
    assert main(["replay", str(path), "--from", source, "--db", str(tmp_path / "b.duckdb")]) == 3
    assert "the input differs from the manifest's" in capfd.readouterr().err


def changed(made: Path, tmp_path: Path, change: dict[str, Any]) -> str:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest(made) | change))
    return str(path)


@pytest.mark.parametrize("part", ["profile", "policy"])
def test_a_changed_part_is_refused(made: Path, tmp_path: Path, part: str, capfd: pytest.CaptureFixture[str]) -> None:
    found = manifest(made)[part]
    if part == "profile":
        found["toml"] = found["toml"].replace("physics", "# physics", 1)
    else:
        found["document"]["scheduler"]["max_num_seqs"] = 17
    path = changed(made, tmp_path, {part: found})
    assert main(["replay", "--from", path, "--db", str(made / "a.duckdb")]) == 3
    assert f"the {part} was changed" in capfd.readouterr().err


def test_what_came_out_otherwise_is_told_with_the_input_that_differs(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = manifest(made)
    found["results"]["matrix"]["latency"] = "0" * 16
    found["results"]["verdict"] = "0" * 16
    found["versions"]["code"] = "1" * 16
    path = changed(made, tmp_path, found)
    assert main(["replay", "--from", path, "--db", str(made / "a.duckdb")]) == 1
    err = capfd.readouterr().err
    assert "not reproduced:" in err
    assert "matrix: latency\n" in err
    assert "verdict.json: 0000000000000000 in the manifest" in err
    assert "an input differs: code: 1111111111111111 in the manifest" in err
    assert "python:" not in err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--from", "{m}", "--limit", "5"], 2, "--limit: the manifest says it"),
        (["--from", "{m}", "--set", "max_num_seqs=4"], 2, "--set: the manifest says it"),
        (["--from", "{m}", "--map", "a=b"], 2, "--map: the manifest says it"),
        (["--from", "{m}", "--engine", "torch"], 2, "--engine torch: a manifest is replayed by the simulator"),
        (["--from", "nowhere.json"], 2, "no such file"),
        (["--from", "{trace}"], 3, "not a manifest"),
        ([], 2, "no trace; expected TRACE"),
    ],
)
def test_slips_are_told(made: Path, words: list[str], code: int, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    places = {"m": str(run_files(made, "a.duckdb") / "manifest.json"), "trace": str(made / "night.jsonl.gz")}
    assert main(["replay", *(word.format(**places) for word in words), "--db", str(made / "a.duckdb")]) == code
    assert said in capfd.readouterr().err


def test_a_manifest_that_lacks_a_part_is_one_line(made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole = manifest(made)
    for part in sorted(set(whole) - {"schema", "name", "command", "started_at", "host"}):
        path = tmp_path / f"{part}.json"
        path.write_text(json.dumps({key: value for key, value in whole.items() if key != part}))
        assert main(["replay", "--from", str(path), "--db", str(made / "a.duckdb")]) == 3, part
        err = capfd.readouterr().err
        assert "not a whole one" in err and err.count("\n") == 1, (part, err)


def test_a_real_engine_is_not_repeated(made: Path, tmp_path: Path) -> None:
    path = changed(made, tmp_path, {"engine": "torch"})
    assert main(["replay", "--from", path, "--db", str(made / "a.duckdb")]) == 2


def test_a_removed_run_takes_its_files_along(made: Path, tmp_path: Path) -> None:
    db = str(tmp_path / "c.duckdb")
    assert main(["replay", str(made / "night.jsonl.gz"), "--limit", "50", "--db", db]) == 0
    assert (run_files(tmp_path, "c.duckdb") / "manifest.json").is_file()
    assert main(["runs", "rm", "1", "--db", db]) == 0
    assert not run_files(tmp_path, "c.duckdb").exists()

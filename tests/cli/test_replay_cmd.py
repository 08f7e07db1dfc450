"""``replay`` from outside on the shipped example: what is printed, recorded, refused; then ``runs``, ``show``, ``explain``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tracekit.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
DEMO = str(ROOT / "examples" / "demo_trace.jsonl.gz")


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("replay") / "a.duckdb")
    assert main(["replay", DEMO, "--slo", "ttft=500ms,tpot=50ms", "--name", "base", "--db", path]) == 0
    return path


def run_json(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    capfd.readouterr()
    assert main([*arguments, "--json"]) == 0
    document: dict[str, object] = json.loads(capfd.readouterr().out)
    return document


def test_the_answer_is_one_document_and_the_same_again(db: str, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--slo", "ttft=500ms,tpot=50ms", "--db", db]
    again = run_json(capfd, "replay", "demo_trace", "--name", "again", *options)
    assert again["schema"] == "tracekit.run/1"
    shown = run_json(capfd, "show", "base", "--db", db)
    assert isinstance(again["matrix"], dict)
    assert isinstance(shown["matrix"], dict)
    for part in again["matrix"]:
        if part != "run":
            assert again["matrix"][part] == shown["matrix"][part], part


def test_both_ways_to_write_the_slo_agree(db: str, capfd: pytest.CaptureFixture[str]) -> None:
    words = run_json(capfd, "replay", "demo_trace", "--db", db, "--goodput", "ttft:500", "tpot:50")
    slo = run_json(capfd, "replay", "demo_trace", "--db", db, "--slo", "ttft=500ms,tpot=50ms")
    assert words["matrix"]["slo"] == slo["matrix"]["slo"]  # type: ignore[index]
    assert main(["replay", "demo_trace", "--db", db, "--goodput", "ttft:500", "--slo", "ttft=1s"]) == 2


def test_a_policy_changes_the_answer_and_says_what_it_ignores(db: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 8 --dtype auto"
    assert main(["replay", "demo_trace", "--policy", command, "--limit", "300", "--db", db]) == 0
    out, err = capfd.readouterr()
    assert "--dtype is ignored" in err
    assert "largest batch 8\n" in out
    policy = tmp_path / "tight.toml"
    policy.write_text("[scheduler]\nmax_num_seqs = 8\n")
    assert main(["replay", "demo_trace", "--policy", str(policy), "--limit", "300", "--set", "max_num_seqs=4", "--db", db]) == 0
    assert "largest batch 4\n" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--set", "max_num_seq=3"], 2, "did you mean max_num_seqs"),
        (["--set", "front_door.admit=all"], 2, "front_door.admit: unknown knob"),
        (["--set", "batching.mode=static", "--set", "async_scheduling=true"], 2, "a batch runs to its end"),
        (["--set", "order.by=plugin:nobodys"], 2, "plugin:nobodys: no such plugin"),
        (["--policy", "sglang --schedule-policy lpm"], 2, "longest prefix match"),
        (["--slo", "ttft=soon"], 2, "ttft"),
        (["--slo", "tfft=500ms"], 2, "ttft"),
        (["--window", "1:2:3"], 2, "--window"),
        (["--profile", "h10"], 2, "did you mean h100"),
        (["--policy", "nope.toml"], 2, "No such file"),
        (["--rate-scale", "0"], 2, "rate"),
        (["--warmup", "soon"], 2, "warmup"),
    ],
)
def test_a_wrong_option_is_one_line(
    db: str, options: list[str], code: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "demo_trace", *options, "--db", db]) == code
    out, err = capfd.readouterr()
    last = [line for line in err.splitlines() if line.startswith("tracekit: ")]
    assert len(last) == 1
    assert message in last[0]
    assert out == ""


def test_policies_stand_side_by_side(db: str, capfd: pytest.CaptureFixture[str]) -> None:
    for mode in ("static", "dynamic", "continuous"):
        sets = ["--set", f"batching.mode={mode}", "--set", "async_scheduling=false"]
        assert main(["replay", "demo_trace", "--limit", "200", *sets, "--name", mode, "--db", db]) == 0
    beside = run_json(capfd, "show", "static", "dynamic", "continuous", "--db", db)
    assert beside["schema"] == "tracekit.sidebyside/1"
    rows = {row["label"]: row for row in beside["rows"]}  # type: ignore[attr-defined]
    assert rows["Batching"]["values"] == ["static", "dynamic", "continuous"]
    static, dynamic, continuous = rows["TTFT P50"]["values"]
    assert min(static, dynamic) > continuous
    assert rows["Finished"]["values"] == [200, 200, 200]
    assert main(["show", "static", "continuous", "--markdown", "--db", db]) == 0
    assert "| Batching | static | continuous |" in capfd.readouterr().out


def test_priorities_can_be_the_larger_the_more_urgent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "p.jsonl"
    lines = [
        {"arrival": 0.001 * at, "input_tokens": 64, "output_tokens": 20, "priority": at % 2, "tenant": "ab"[at % 2]}
        for at in range(80)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    waits = []
    for larger in ("false", "true"):
        sets = ["--set", "order.by=priority", "--set", f"order.larger_first={larger}", "--set", "max_num_seqs=2"]
        out = run_json(capfd, "replay", str(trace), *sets, "--slo", "ttft=600ms", "--db", str(tmp_path / "p.duckdb"))
        waits.append(out["matrix"]["fairness"]["slo_least"]["tenant"])  # type: ignore[index]
    assert waits == ["b", "a"]


@pytest.mark.parametrize(
    "slip", [["--window", "10"], ["--window", "a:b"], ["--thin", "3"], ["--where", "output_tokens ="], ["--by", "tenant"]]
)
def test_a_slip_in_the_part_is_told_before_anything_is_loaded(
    slip: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trace, db = tmp_path / "t.csv", tmp_path / "a.duckdb"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,100,20\n")
    assert main(["replay", str(trace), *slip, "--db", str(db)]) == 2
    assert slip[0] in capfd.readouterr().err and not db.exists()
    assert main(["replay", str(trace), "--window", "0:2023-11-16T20:00", "--db", str(db)]) == 2  # of a trace without dates
    assert "no absolute times" in capfd.readouterr().err


def test_a_missing_trace_is_3(db: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "no-such-trace", "--db", db]) == 3
    assert "no-such-trace: no such file" in capfd.readouterr().err


def test_runs_and_the_story_of_a_request(db: str, capfd: pytest.CaptureFixture[str]) -> None:
    runs = run_json(capfd, "runs", "--db", db)["runs"]
    assert isinstance(runs, list)
    assert runs[0]["name"] == "base"
    assert (runs[0]["requests"], runs[0]["state"]) == (2000, "finished")
    story = run_json(capfd, "explain", "base", "7", "--db", db)
    assert str(story["schema"]).startswith("tracekit.explain/")
    assert main(["explain", "base", "7", "--db", db]) == 0
    assert "exact" in capfd.readouterr().out
    assert main(["explain", "base", "x", "--db", db]) == 2
    assert main(["explain", "base", "99999", "--db", db]) == 2
    assert main(["show", "base", "--markdown", "--db", db]) == 0
    assert "# Acceptance matrix" in capfd.readouterr().out
    jobs = run_json(capfd, "jobs", "--db", db)["jobs"]
    assert isinstance(jobs, list)
    assert jobs[0]["state"] == "finished"


def test_runs_are_removed(db: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "demo_trace", "--limit", "50", "--name", "short", "--db", db]) == 0
    gone = run_json(capfd, "runs", "rm", "short", "--db", db)
    assert gone["events"] > 0  # type: ignore[operator]
    assert main(["show", "short", "--db", db]) == 2


def test_what_a_kill_leaves_is_recovered(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    db = str(tmp_path / "k.duckdb")
    assert main(["synth", str(tmp_path / "long.jsonl"), "--requests", "20000", "--seed", "3"]) == 0
    assert main(["load", str(tmp_path / "long.jsonl"), "--db", db]) == 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tracekit.cli.main", "replay", "long", "--db", db]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    spool = Path(db + ".d") / "spool"
    deadline = time.monotonic() + 60
    while not any(file.stat().st_size for file in spool.glob("*/iterations.rows")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    facts = run_json(capfd, "doctor", "--db", db)
    assert len(facts["spools"]) == 1  # type: ignore[arg-type]
    recovered = run_json(capfd, "runs", "recover", "all", "--db", db)
    assert recovered["runs"] == [1]
    runs = run_json(capfd, "runs", "--db", db)["runs"]
    assert isinstance(runs, list)
    assert runs[0]["state"] == "interrupted"
    assert main(["show", "1", "--db", db]) == 2
    assert "no matrix" in capfd.readouterr().err


def test_ctrl_c_keeps_what_ran(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    db = str(tmp_path / "c.duckdb")
    assert main(["synth", str(tmp_path / "long.jsonl"), "--requests", "20000", "--seed", "3"]) == 0
    assert main(["load", str(tmp_path / "long.jsonl"), "--db", db]) == 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tracekit.cli.main", "replay", "long", "--db", db]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    spool = Path(db + ".d") / "spool"
    deadline = time.monotonic() + 60
    while not any(file.stat().st_size for file in spool.glob("*/iterations.rows")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    jobs = run_json(capfd, "jobs", "--db", db)["jobs"]
    assert isinstance(jobs, list)
    assert jobs[-1]["state"] == "cancelled"


def test_what_can_be_done_with_a_run_is_said_by_what_it_keeps(db: str, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert main(["replay", "demo_trace", "--limit", "20", "--db", db]) == 0
    assert f"REQUEST --db {db} tells the story of one request" in capfd.readouterr().err
    assert main(["replay", "demo_trace", "--limit", "20", "--events", "outcomes", "--db", db]) == 0
    said = capfd.readouterr().err
    assert f"--db {db} prints it again; stories of requests need --events full" in said
    assert "tracekit explain" not in said


def test_jobs_and_runs_are_listed_as_they_were_typed(db: str, capfd: pytest.CaptureFixture[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = ["replay", "demo_trace", "--limit", "5", "--name", "by hand", "--db", db]
    subprocess.run([sys.executable, "-m", "tracekit.cli.main", *words], env=environment, check=True, capture_output=True)
    capfd.readouterr()
    assert main(["jobs", "--db", db]) == 0
    assert f"  tracekit replay demo_trace --limit 5 --name 'by hand' --db {db}\n" in capfd.readouterr().out
    # the matrix says that a run's command stands in its row
    assert main(["runs", "--db", db]) == 0
    assert f"  tracekit replay demo_trace --limit 5 --name by hand --db {db}\n" in capfd.readouterr().out


def test_no_folder_is_made_for_a_database_that_is_misspelt(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", DEMO, "--limit", "5", "--db", str(tmp_path / "typo" / "a.duckdb")]) == 2
    assert (
        capfd.readouterr().err == f"tracekit: {tmp_path}/typo: no such folder; expected --db to name a path in an existing one\n"
    )
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("verb", ["load", "replay", "describe"])
@pytest.mark.parametrize("name", ["trace.csv", "trace.duckdb", "trace.json", "trace.parquet"])
@pytest.mark.parametrize("content", [b"", b"arrival,input_tokens,output_tokens\n0,10,5\n"])
def test_a_file_that_is_no_database_is_refused_and_stays(
    verb: str, name: str, content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A data file given as --db must not become a database in memory that is gone at the end."""
    path = tmp_path / name
    path.write_bytes(content)
    assert main([verb, "demo_trace" if verb == "describe" else DEMO, "--db", str(path)]) == 3
    reason = "not a DuckDB database" if content else "an empty file"
    out, err = capfd.readouterr()
    assert err.endswith(f"tracekit: {path}: {reason}; expected a DuckDB database, or a name that is free\n")
    assert out == "" and path.read_bytes() == content

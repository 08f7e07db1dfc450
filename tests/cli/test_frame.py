"""The command line from outside: exit codes, one-line errors, JSON, plain output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tracekit.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
LONG = "x" * 500


def tracekit(*arguments: str, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tracekit.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False)
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["replay"], 2, "tracekit: no trace; expected TRACE..., --from-run RUN"),
        (["experiment", "x"], 2, "tracekit: nothing given for --vary KNOB=A,B[,...] (see tracekit experiment --help)"),
        (["explain"], 2, "tracekit: nothing given for RUN (see tracekit explain --help)"),
        (["repla", "x"], 2, "No such command 'repla'. Did you mean 'replay'"),
        (["replay", "x", "--slo-ttft", "3"], 2, "No such option"),
        (["replay", "x", "--limit", "0"], 2, "tracekit: --limit: expected at least 1 (see"),
        (["replay", "x", "--limit", "many"], 2, "tracekit: --limit: expected a whole number (see"),
        (["replay", "x", "--rate-scale", "fast"], 2, "tracekit: --rate-scale: expected a number (see"),
        (["replay", "x", "--events", "most"], 2, "tracekit: --events: 'most': expected one of 'full', 'outcomes', 'none' (see"),
        (["replay", "x", "--db", "no-such-folder/x.duckdb"], 2, "no-such-folder: no such folder; expected --db"),
        (
            ["profiles", "show", "h10"],
            2,
            "profile h10: no such profile; did you mean h100 or h200 or a100?; a TOML file is taken",
        ),
        (["profiles", "show", "/"], 2, "profile /: no such file"),
        (["runs", "--db", "no-such.duckdb"], 2, "no-such.duckdb: no such database"),
        (["show", "last", "--db", "no-such.duckdb"], 2, "no such database"),
        (["sql", "select 1", "--db", "no-such.duckdb"], 2, "no such database"),
        (["jobs", "show", "last", "--db", "no-such.duckdb"], 2, "no such job"),
    ],
)
def test_a_mistake_is_one_line_and_its_code(
    arguments: list[str],
    code: int,
    message: str,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("of", ["{long}/absent.toml", "{long}/wrong.toml", "{long}/bytes.toml", "{long}/absent/out"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "{trace}", "--policy", "{file}"],
        ["replay", "{trace}", "--profile", "{file}"],
        ["profiles", "show", "{file}"],
        ["calibrate", "{file}"],
        ["calibrate", "{trace}", "--check", "h100", "--configs", "{file}"],
        ["tune", "--job", "{file}"],
        ["tune", "{trace}", "--slo", "ttft=1s", "--space", "{file}"],
        ["synth", "made.jsonl", "--spec", "{file}"],
        ["synth", "--recipe", "{file}", "--out", "made"],
        ["gate", "{trace}", "--gate", "ttft_p99<=1s", "--baseline", "{file}"],
        ["replay", "--from", "{file}"],
        ["load", "{file}"],
        ["anonymize", "{trace}", "--out", "{file}/x.jsonl"],
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else given,
)
def test_a_file_that_cannot_be_used_is_named_whole(
    arguments: list[str], of: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However deep it lies: of half a path nobody finds the file, nor what follows it in the line."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ("a-folder-with-a-long-name-" * 6) / ("and-another-in-it-" * 6)
    folder.mkdir(parents=True)
    (folder / "wrong.toml").write_text("wrong = [\n")
    (folder / "bytes.toml").write_bytes(b"\xff\xfe\x00 = 3")
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,10,2\n")
    file = of.format(long=folder)
    assert main([each.format(file=file, trace=trace) for each in arguments]) in (2, 3)
    err = capfd.readouterr().err
    assert str(folder) in err, err
    assert "Traceback" not in err


def test_an_error_is_json_when_asked(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "show", "h10", "--json"]) == 2
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert document["schema"] == "tracekit.error/1"
    assert document["exit_code"] == 2
    assert document["error"] in err


def test_help_and_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == main(["replay", "--help"]) == main(["--version"]) == 0
    out, err = capfd.readouterr()
    assert "tracekit 0." in out
    assert "--rate-scale" in out
    assert err == ""


def test_every_verb_says_in_one_line_what_it_does() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    words = [sys.executable, "-m", "tracekit.cli.main", "--help"]
    lines = subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()
    verbs = lines[lines.index("Commands:") + 1 :]
    assert len(verbs) >= 17
    for line in verbs:
        assert re.fullmatch(r"  [a-z]+ +[A-Z].*\.", line) and not line.endswith("..."), line


def test_an_internal_error_is_one_line_without_debug(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("the\nreason")

    monkeypatch.setattr("replay_engine.profile.list_profiles", broken)
    assert main(["profiles"]) == 5
    err = capfd.readouterr().err
    assert "internal error: RuntimeError: the reason" in err
    assert err.count("\n") == 1
    assert main(["profiles", "--debug"]) == 5
    assert "Traceback" in capfd.readouterr().err


def test_profiles_table_and_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles"]) == main(["profiles", "list"]) == 0
    out = capfd.readouterr().out
    assert out.count("h100-llama-3.1-8b") == 2
    assert "\x1b" not in out
    assert main(["profiles", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["schema"] == "tracekit.profiles/1"
    assert {p["aliases"][0] for p in document["profiles"]} == {"a100", "b200", "h100", "h200", "l40s"}
    assert main(["profiles", "show", "l40s"]) == 0
    assert "published, derived" in capfd.readouterr().out


def test_control_characters_never_reach_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "show", "\x1b[31mred\n\x07"]) == 2
    err = capfd.readouterr().err
    assert "\x1b" not in err
    assert "\x07" not in err
    assert err.count("\n") == 1


def test_doctor_without_a_database(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    db = tmp_path / "none.duckdb"
    assert main(["doctor", "--db", str(db), "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert facts["schema"] == "tracekit.doctor/1"
    assert facts["database"]["exists"] is False
    assert "duckdb" in facts["installed"]
    assert main(["doctor", "--db", str(db)]) == 0
    assert "none yet" in capfd.readouterr().out


def test_sql_reads_what_is_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from tracekit.store import Store

    db = tmp_path / "a.duckdb"
    with Store(db).write("make it"):
        pass
    assert main(["sql", "select 1 as one, 'a\x1bb' as two, null as three", "--db", str(db)]) == 0
    out = capfd.readouterr().out
    assert out.split() == ["one", "two", "three", "1", "a\\x1bb", "-"]
    assert main(["sql", "select 1 as one, [1, 2] as two", "--db", str(db), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["rows"] == [[1, [1, 2]]]
    assert [column["name"] for column in document["columns"]] == ["one", "two"]
    assert main(["sql", "selec 1", "--db", str(db)]) == 2
    assert capfd.readouterr().err.count("\n") == 1
    assert main(["runs", "--db", str(db)]) == 0
    assert "no runs yet" in capfd.readouterr().out
    assert main(["show", "last", "--db", str(db)]) == 2
    assert main(["runs", "rm", "7", "--db", str(db)]) == 2
    assert main(["runs", "recover", "all", "--db", str(db)]) == 2
    assert "no run was cut short" in capfd.readouterr().err


def test_goodput_takes_several_words() -> None:
    from tracekit.cli.main import _joined_goodput

    words = ["replay", "t", "--goodput", "ttft:200", "tpot:50", "e2el:5000", "--json"]
    assert _joined_goodput(words) == ["replay", "t", "--goodput", "ttft:200 tpot:50 e2el:5000", "--json"]
    assert _joined_goodput(["replay", "--goodput", "ttft:200", "t.jsonl"]) == ["replay", "--goodput", "ttft:200", "t.jsonl"]


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    command = f"{sys.executable} -m tracekit.cli.main profiles show h100 | head -c 1 > {tmp_path}/out"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, check=False)
    assert done.stderr == ""


def test_interrupt_is_130_and_one_line(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys, time, replay_engine.profile as p
        def slow():
            print("ready", flush=True)
            time.sleep(60)
        p.list_profiles = slow
        from tracekit.cli.main import main
        sys.exit(main(["profiles"]))
    """)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_progress_lines_have_the_time_left(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tracekit.cli import progress

    clock = iter([0.0, 1.0, 10.0, 20.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.ProgressDisplay("replay") as display:
        display(10, 1000)
        display(500, 1000)
        display(750, 1000, "iteration 9")
    lines = capfd.readouterr().err.splitlines()
    assert lines == [
        "replay: 500 of 1,000 requests, 50 %, 10 s left",
        "replay: 750 of 1,000 requests, 75 %, 7 s left (iteration 9)",
    ]


def test_what_was_there_before_says_nothing_of_the_pace_of_a_stage(capfd: pytest.CaptureFixture[str],
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Of 60 trials 50 are there when it begins, 2 more take ten seconds; then other things are counted, from nothing."""
    from tracekit.cli import progress

    clock = iter([0.0, 100.0, 110.0, 200.0, 206.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.ProgressDisplay("tune", unit="trials") as display:
        display.stage("trials", 50)
        display(52, 60)
        display.stage("replays")
        display(12, 160, "the neighbours")
    lines = capfd.readouterr().err.splitlines()
    assert lines == ["tune: 52 of 60 trials, 87 %, 40 s left", "tune: 12 of 160 replays, 8 %, 74 s left (the neighbours)"]


@pytest.mark.parametrize(
    ("elapsed", "done", "total", "text"),
    [(1, 0, 10, "time left unknown"), (10, 5, 10, "10 s left"), (100, 1, 10, "15.0 min left"), (3600, 1, 3, "2.0 h left")],
)
def test_time_left(elapsed: float, done: int, total: int, text: str) -> None:
    from tracekit.cli.progress import time_left

    assert time_left(elapsed, done, total) == text


def test_the_installed_command_runs() -> None:
    command = Path(sys.executable).with_name("tracekit")
    if not command.exists():
        pytest.skip("the package is not installed here")
    assert (
        tracekit("--version").stdout == subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    )

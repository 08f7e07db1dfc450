"""``tracekit calibrate``: planted costs of a recorded run come back; mistakes are one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from replay_engine.profile import load_profile
from tracekit.cli.main import main

PLANTED = """name = "planted"
physics = "off"
[latency]
floor_ns = 5_000_000.0
a_ns = 4_000_000.0
b_ns = 30_000.0
c_ns = 2.0
d_ns = 40_000.0
e_ns = 50.0
h0_ns = 700_000.0
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with one run, its durations predicted from planted costs."""
    folder = tmp_path_factory.mktemp("calibrate")
    (folder / "planted.toml").write_text(PLANTED, encoding="utf-8")
    rows = [{"timestamp": 0.05 * i, "input_length": 20 + 37 * i % 900, "output_length": 5 + 11 * i % 70} for i in range(80)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "trace.jsonl").write_text(text, encoding="utf-8")
    command = ["replay", str(folder / "trace.jsonl"), "--engine", "sim", "--profile", str(folder / "planted.toml")]
    sets = ["--set", "num_gpu_blocks=4000", "--set", "async_scheduling=false", "--set", "max_num_batched_tokens=512"]
    assert main([*command, *sets, "--db", str(folder / "db.duckdb"), "--json"]) == 0
    return folder


def calibrate(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any, str]:
    code = main(["calibrate", *arguments, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def test_the_costs_of_a_recorded_run_come_back(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = recorded / "found.toml"
    options = ("--from", "last", "--db", str(recorded / "db.duckdb"), "--out", str(out))
    code, document, _ = calibrate(*options, capsys=capsys)
    assert code == 0
    found, planted = load_profile(out), load_profile(recorded / "planted.toml")
    for name in ("floor_ns", "b_ns", "c_ns", "d_ns", "e_ns", "h0_ns"):
        assert getattr(found.latency, name) == pytest.approx(getattr(planted.latency, name), rel=0.02), name
    assert document["held_out"]["median_error"] < 0.01
    assert document["profile"]["latency"]["b_ns"] == found.latency.b_ns
    assert "recorded iterations" in found.provenance["b_ns"]
    assert main(["calibrate", *options]) == 0
    text = capsys.readouterr().out
    assert "a prefill token" in text
    assert "held-out shapes" in text
    assert 'physics = "off"' in text


def test_a_fitted_profile_replays_the_run_alike(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, db = recorded / "again.toml", str(recorded / "db.duckdb")
    assert calibrate("--from", "last", "--db", db, "--out", str(out), capsys=capsys)[0] == 0
    sets = ["--set", "num_gpu_blocks=4000", "--set", "async_scheduling=false", "--set", "max_num_batched_tokens=512"]
    figures = []
    for profile in (recorded / "planted.toml", out):
        command = ["replay", str(recorded / "trace.jsonl"), "--engine", "sim", "--profile", str(profile), *sets]
        assert main([*command, "--db", str(recorded / "other.duckdb"), "--json"]) == 0
        figures.append(json.loads(capsys.readouterr().out)["matrix"]["latency"]["ttft_ns"]["p50"])
    assert figures[1] == pytest.approx(figures[0], rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--cases", "decode=8"), 2, "case decode=8: no decode"),
        (("--cases", "flood=8"), 2, "expected KIND="),
        (("--from", "99"), 2, "no such run"),
        (("--from", "last", "--cases", "prefill=8"), 2, "--cases and a source"),
        (("--from", "last", "--model", "tiny"), 2, "--model: means nothing to"),
        (("last", "--from", "last"), 2, "SOURCE and --from"),
        (("last", "--as", "tarot"), 2, "--as tarot: expected one of"),
        (("--from", "last", "--out", "nowhere/p.toml"), 2, "no such folder"),
        (("--model", "gigantic"), 2, "gigantic"),
        (("--repeats", "0"), 2, "expected at least 1"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], code: int, said: str, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not {"--from", "last"} & set(arguments):
        pytest.importorskip("torch", reason="the torch engine is not installed")
    ended, document, err = calibrate(*arguments, "--db", str(recorded / "db.duckdb"), capsys=capsys)
    assert ended == code
    assert said in document["error"]
    assert err.count("\n") == 1

"""vLLM's iteration lines: every variant read, broken ones put together or counted, residual waits never taken for iterations."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.calibrate_logs import HEAD, PLANTED, SYNCHRONOUS, Planted, corrupted, residual, write_log
from replay_engine.profile import load_profile
from tracekit.calibration import SourceReport, SourceRequest, calibrate_source
from tracekit.calibration.residual import judge
from tracekit.calibration.vllm_header import LogFacts, read_facts
from tracekit.calibration.vllm_lines import read_iteration_lines
from tracekit.cli.main import main
from tracekit.errors import InputError

WORK = "1 context requests, 100 context tokens, 20 generation requests, 20 generation tokens, iteration elapsed time: 11.5 ms"
FRONT = "(APIServer pid=9) INFO 04-21 05:13:32 [loggers.py:213] Engine 003: "
PREFIX = "(EngineCore_DP1 pid=7) INFO 04-21 05:13:32 [core.py:377] "


def message(number: int, work: str = WORK, mark: str = "") -> str:
    return f"Iteration({number}){mark}: {work}"


def rows(folder: Path, text: str) -> list[tuple[float, ...]]:
    """What is read of a log: iteration, engine, context requests and tokens, generation requests, ms, usage."""
    file = folder / "some.log"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    found = read_iteration_lines(file)
    names = ("iteration", "engine", "context_requests", "context_tokens", "generation_requests", "elapsed_ms", "kv_usage")
    return list(zip(*(getattr(found, name).tolist() for name in names), strict=True))


@pytest.mark.parametrize(
    ("line", "engine", "usage"),
    [
        (PREFIX + message(5), 1, None),
        ("(EngineCore_0 pid=7) INFO 04-21 05:13:32 [core.py:377] " + message(5), 0, None),
        ("(EngineCore pid=7) INFO 04-21 05:13:32 [core.py:377] " + message(5), -1, None),
        (
            "(APIServer pid=9) INFO 04-21 05:13:32 [loggers.py:213] Engine 003: " + message(5) + ", GPU KV cache usage: 12.5%",
            3,
            0.125,
        ),
        ("2026-01-21 10:50:53,855 INFO vllm.v1.engine.core: " + message(5) + ", GPU KV cache usage: 0.0%", -1, 0.0),
        (
            "vllm-1  | " + PREFIX + message(5) + ", GPU KV cache usage: 1.0%, encoder inputs: 4, encoder output embeddings: 3520",
            1,
            0.01,
        ),
        (message(5) + ", CPU KV cache usage: 7.0%\r", -1, 0.07),
        ('{"log": "' + message(5) + '\\n", "stream": "stderr"}', -1, None),
    ],
)
def test_every_make_of_line_is_read(line: str, engine: int, usage: float | None, tmp_path: Path) -> None:
    (row,) = rows(tmp_path, f"something else\n{line}\nIteration without numbers\n")
    assert row[:6] == (5, engine, 1, 100, 20, 11.5)
    assert np.isnan(row[6]) if usage is None else row[6] == pytest.approx(usage)


def test_what_is_broken_is_put_together_or_counted(tmp_path: Path) -> None:
    whole, other = PREFIX + message(5), PREFIX.replace("DP1", "DP0") + message(6, WORK.replace("11.5", "9.25"))
    for cut in range(whole.index("Iteration(") + 12, len(whole)):
        wrapped = rows(tmp_path, f"{whole[:cut]}\n{whole[cut:]}\n{other}\n")
        assert [row[:2] for row in wrapped] in ([(5, 1), (6, 0)], [(6, 0)]), cut
        assert wrapped[-1][5] == 9.25
        if cut < len(whole) - len(".5 ms"):
            assert len(wrapped) == 2, f"wrapped at {cut}: lost"
        mixed = rows(tmp_path, f"{whole[:cut]}{other}\n{whole[cut:]}\n")
        assert (6, 0, 1, 100, 20, 9.25) in [row[:6] for row in mixed], f"written into at {cut}"
    file = tmp_path / "cut.log"
    file.write_text(f"{whole}\n{whole[:90]}\n{other}\n", encoding="utf-8")
    found = read_iteration_lines(file)
    assert (len(found), found.broken, found.lines) == (2, [2], 3)


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), share=st.sampled_from((0.05, 0.3, 1.0)))
def test_no_row_is_made_up(seed: int, share: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    planted = Planted.draw(40, seed=seed)
    folder = tmp_path_factory.mktemp("log")
    write_log(folder / "clean.log", planted)
    clean = (folder / "clean.log").read_text(encoding="utf-8").splitlines(keepends=True)
    draw = np.random.default_rng(seed)
    text = [
        corrupted(line, 4 * int(draw.integers(9999)) + int(draw.integers(3))) if draw.random() < share else line for line in clean
    ]
    found = rows(folder, "".join(text)) if any("Iteration(" in line for line in text) else []
    true = {row[0]: row for row in rows(folder, "".join(clean))}
    for row in found:
        whole = true[row[0]]
        # a time cut after the point of a broken line is all that can be wrong: 11.25 may be read as 11.2
        assert row[2:5] == whole[2:5]
        assert abs(row[5] - whole[5]) < 0.1 or str(whole[5]).startswith(str(row[5]).rstrip("0").rstrip("."))


def test_idle_ranks_do_not_count_and_engines_stay_apart(tmp_path: Path) -> None:
    idle = PREFIX + message(4, "0 context requests, 0 context tokens, 0 generation requests, 0 generation tokens,"
                            " iteration elapsed time: 3.00 ms", " (dummy)")  # fmt: skip
    found = rows(tmp_path, f"{PREFIX}{message(3)}\n{idle}\n{PREFIX.replace('DP1', 'DP0')}{message(3)}\n")
    assert [row[:2] for row in found] == [(3, 1), (3, 0)]


def calibrated(file: Path, *sets: str, prior: str | None = None) -> SourceReport:
    report = calibrate_source(SourceRequest(source=str(file), sets=sets, prior=prior))
    assert isinstance(report, SourceReport)
    return report


def prior_file(folder: Path) -> str:
    file = folder / "prior.toml"
    file.write_text(f'name = "prior"\nphysics = "off"\n[latency]\nc_ns = {PLANTED.c_ns}\n', encoding="utf-8")
    return str(file)


def test_planted_costs_come_back_from_a_corrupt_log(tmp_path: Path) -> None:
    file = tmp_path / "serve.log"
    write_log(file, Planted.draw(30_000), head=SYNCHRONOUS, corrupt=0.01)
    report = calibrated(file, prior=prior_file(tmp_path))
    for name in ("floor_ns", "b_ns", "d_ns", "e_ns"):
        assert getattr(report.profile.latency, name) == pytest.approx(getattr(PLANTED, name), rel=0.03), name
    assert report.profile.latency.h0_ns == pytest.approx(PLANTED.h0_ns, rel=0.06), "from whole seconds of the log's clock"
    assert report.profile.latency.a_ns == pytest.approx(PLANTED.a_ns, abs=0.02 * PLANTED.floor_ns)
    assert report.document["bound"] == "none"
    assert report.profile.provenance["c_ns"].startswith("prior")


@pytest.mark.parametrize("corrupt", [0.0, 0.03])
@pytest.mark.parametrize("host_ms", [0.3, 1.2, 3.0])
def test_host_time_follows_from_the_whole_seconds_of_a_log(host_ms: float, corrupt: float, tmp_path: Path) -> None:
    """Two minutes of a log: where its seconds cut iterations, and what its lost lines took, is not taken for less or more."""
    found = []
    for seed in range(5):
        planted = Planted.draw(8_000, seed=seed)
        write_log(tmp_path / "a.log", planted, head=SYNCHRONOUS, corrupt=corrupt, period_ns=planted.device_ns + host_ms * 1e6)
        found.append(calibrated(tmp_path / "a.log").profile.latency.h0_ns / 1e6)
    assert float(np.mean(found)) == pytest.approx(host_ms, rel=0.06, abs=0.06)
    assert max(found) - min(found) < 0.25 * max(host_ms, 1.0)


def test_engines_that_differ_are_named(tmp_path: Path) -> None:
    parts = []
    for number, factor in (("0", 1.0), ("1", 1.5)):
        planted = Planted.draw(3000, seed=int(number))
        planted.device_ns = planted.device_ns * factor
        write_log(tmp_path / "one.log", planted)
        parts.append((tmp_path / "one.log").read_text(encoding="utf-8").replace("_DP0", f"_DP{number}").splitlines(keepends=True))
    mixed = "".join(line for pair in zip(*parts, strict=True) for line in pair)
    (tmp_path / "both.log").write_text(SYNCHRONOUS + mixed, encoding="utf-8")
    report = calibrated(tmp_path / "both.log")
    engines = {each["engine"]: each for each in report.document["engines"]}
    assert engines[0]["iterations"] == engines[1]["iterations"] == 3000
    assert engines[1]["ratio"] / engines[0]["ratio"] == pytest.approx(1.5, rel=0.05)
    assert any("one profile will not do" in line for line in report.lines)


HOSTS = (0.2, 0.5, 0.8, 1.1)


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("share", HOSTS)
def test_residual_waits_are_never_taken_for_iterations(share: float, says: bool, tmp_path: Path) -> None:
    planted = Planted.draw(4000, seed=3)
    host = np.full(4000, share * float(np.median(planted.device_ns)))
    head = HEAD + ("INFO [vllm.py:1042] Asynchronous scheduling is enabled.\n" if says else "")
    file = tmp_path / "waits.log"
    write_log(file, residual(planted, host), head=head, period_ns=np.maximum(planted.device_ns, host), corrupt=0.01)
    if share > 1:
        with pytest.raises(InputError, match="only the rest of the wait"):
            calibrated(file)
        return
    report = calibrated(file)
    assert report.document["bound"] == "lower"
    assert report.profile.fit["bound"] == "lower"
    assert "lower bound" in report.profile.describe()
    assert report.profile.latency.floor_ns < PLANTED.floor_ns


def test_waits_too_short_for_a_pass_overrule_what_is_said(tmp_path: Path) -> None:
    planted = Planted.draw(2000)
    file = tmp_path / "waits.log"
    write_log(file, residual(planted, np.full(2000, 7.2e6)), head=SYNCHRONOUS)
    assert "which no pass does" in calibrated(file, "async_scheduling=false").document["why"]


def test_a_log_whose_clock_is_filled_by_its_times_needs_no_word_for_it() -> None:
    elapsed = np.full(4000, 10.0)
    second = (np.arange(4000) // 100).astype(np.int64)
    whole = judge(elapsed, np.zeros(4000, np.int32), second, LogFacts())
    assert whole.whole
    assert whole.gap_ns == 0
    half = judge(elapsed * 0.7, np.zeros(4000, np.int32), second, LogFacts())
    assert not half.whole
    assert half.gap_ns == pytest.approx(3e6)


def test_settings_count_more_than_the_log() -> None:
    lines = ["non-default args: {'async_scheduling': True, 'block_size': 32}", "# GPU blocks: 1000, # CPU blocks: 0"]
    assert read_facts(lines) == LogFacts(
        asynchronous=True, said="its log says 'async_scheduling': True", kv_tokens=32000.0, block_size=32
    )
    facts = read_facts(lines, ["async_scheduling=false", "num_gpu_blocks=500", "block_size=16"])
    assert (facts.asynchronous, facts.kv_tokens) == (False, 8000.0)


def test_a_fit_that_beats_the_card_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted = Planted.draw(4000)
    planted.device_ns = planted.device_ns * 0.4
    file = tmp_path / "fast.log"
    write_log(file, planted, head=SYNCHRONOUS)
    assert main(["calibrate", str(file), "--profile", "h100", "--out", str(tmp_path / "p.toml")]) == 2
    assert not (tmp_path / "p.toml").exists()
    err = capsys.readouterr().err
    assert f"{file}: the fit is refused, b_ns = 7,6" in err
    assert "expected --profile of the model and card that it ran on" in err


def test_waits_held_against_a_card_say_that_they_are_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asynchronous scheduling is the default, and a card the natural thing to name: what to do about it is said."""
    planted, file = Planted.draw(4000, seed=3), tmp_path / "waits.log"
    host = np.full(4000, 0.8 * float(np.median(planted.device_ns)))
    write_log(file, residual(planted, host), head=HEAD, period_ns=np.maximum(planted.device_ns, host))
    assert main(["calibrate", str(file), "--profile", "h100", "--out", str(tmp_path / "p.toml")]) == 2
    err = capsys.readouterr().err
    assert "the fit is refused" in err
    assert "only the rest of the wait is logged" in err
    assert "expected a log with --no-async-scheduling" in err
    assert "planted" not in err
    assert main(["calibrate", str(file), "--out", str(tmp_path / "p.toml")]) == 0
    assert load_profile(tmp_path / "p.toml").fit["bound"] == "lower"


@pytest.mark.parametrize("took", ["nan", "-3.25", "", "1e9e", "0.00"])
def test_times_that_are_none_are_said_with_the_line(took: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.log"
    write_log(file, Planted.draw(30), head=SYNCHRONOUS)
    text = re.sub(r"elapsed time: [0-9.]+ ms", f"elapsed time: {took} ms", file.read_text(encoding="utf-8"))
    file.write_text(text, encoding="utf-8")
    assert main(["calibrate", str(file)]) == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1, "no warning of a library beside it"
    line = 1 + next(number for number, each in enumerate(text.splitlines()) if "Iteration(" in each)
    said = "show no time at all" if took == "0.00" else f"line {line}: 0 of 30 iteration lines tell"
    assert said in err


def test_the_command_finds_what_it_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "serve.log", tmp_path / "p.toml"
    write_log(file, Planted.draw(3000), head=SYNCHRONOUS)
    assert main(["calibrate", str(file), "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["source"] == "vllm-log"
    assert document["kv_cache_tokens"] == 433_136
    assert load_profile(out).latency.b_ns == document["profile"]["latency"]["b_ns"]
    assert main(["calibrate", str(file)]) == 0
    assert "whole iterations: its log says Asynchronous scheduling is disabled" in capsys.readouterr().out
    for arguments, said in (
        ([str(file), "--set", "max_num_seqs=3"], "expected async_scheduling=true|false"),
        ([str(file), "--policy", "x.toml"], "--policy: means nothing to"),
        ([str(tmp_path / "p.toml")], "not a source of a known kind"),
        ([str(tmp_path / "p.toml"), "--as", "vllm-log"], "no iteration line"),
        ([str(tmp_path / "none.log"), "--as", "vllm-log"], "none.log: no such file; expected a vLLM log"),
        ([str(tmp_path), "--as", "events"], ": a folder; expected an event log"),
    ):
        assert main(["calibrate", *arguments, "--json"]) in (2, 3)
        assert said in json.loads(capsys.readouterr().out)["error"]

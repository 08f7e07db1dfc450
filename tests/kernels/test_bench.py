"""The benchmark's control flow on a CPU: lines that fail do not stop the others, and nothing is promised where nothing runs."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import astuple
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra [engine] is not installed")

from replay_engine.profile import load_profile  # noqa: E402
from replay_kernels import bench, launch  # noqa: E402
from replay_kernels.timing import Stopwatch, copy_rate  # noqa: E402
from replay_kernels.workloads import FULL, Floor, Workload, workloads  # noqa: E402
from tests.kernels.triton_runs import ROOT  # noqa: E402

__all__: list[str] = []


def test_run_sh_rehearses_without_a_device(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    command = [str(ROOT / "benchmarks" / "gpu" / "run.sh"), "--device", "cpu", "--tiny", "--out", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    assert {part["name"]: part["code"] for part in found["parts"]} == dict.fromkeys(
        ("checks", "kernels", "engine", "event log", "calibration", "simulator"), 0
    )
    said = [row["what"] for row in found["rows"]]
    assert said[0] == "findings that hold" and "device copy" in said
    for op in (
        "decode attention",
        "prefill attention",
        "rms_norm",
        "silu_mul",
        "qk_norm",
        "gumbel_argmax, sampled",
        "copy_blocks",
    ):
        assert any(what.startswith(op) for what in said), op
    for part, *whats in (
        ("engine", "between tokens", "tokens/s", "compiled in mid-run"), ("event log", "us/iteration", "share"),
        ("calibration", "b_ns", "error of the fit"), ("simulator", "iteration duration", "TTFT P90", "TPOT P50", "two repeats"),
    ):  # fmt: skip
        for what in whats:
            assert any(what in row["what"] + row["value"] for row in found["rows"] if row["part"] == part), (part, what)
    assert max(astuple(load_profile(tmp_path / "calibration.toml").latency)) > 0
    assert not [row for row in found["rows"] if row["part"] != "checks" and row["reached"] is not None], "a CPU reaches nothing"


def test_no_part_can_take_the_time_of_another() -> None:
    from benchmarks.gpu import parts

    assert sum(part.limit_s for part in parts.PARTS) < parts.WHOLE_S


def test_a_part_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu import parts

    def nothing(folder: Path) -> list[parts.Row]:
        raise KeyError("lines")

    broken = parts.Part("checks", 20, lambda device, tiny, folder: ["no.such.module"], nothing)
    slow = parts.Part(
        "kernels", 1, lambda device, tiny, folder: ["timeit", "-n1", "import time; time.sleep(30)"], lambda folder: []
    )
    fine = parts.Part(
        "engine", 20, lambda device, tiny, folder: ["this"], lambda folder: [parts.Row("engine", "x", "1", "", True)]
    )
    monkeypatch.setattr(parts, "PARTS", (broken, slow, fine))
    assert parts.main(["--device", "cpu", "--out", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "results.json").read_text())
    assert [part["code"] for part in found["parts"]] == [1, None, 0]
    assert "no.such" in found["parts"][0]["said"] or "No module" in found["parts"][0]["said"]
    assert [row["reached"] for row in found["rows"]] == [False, True]


def test_a_line_that_fails_says_why_and_the_next_one_goes_on() -> None:
    def broken() -> partial[object]:
        raise RuntimeError("out of memory\nand more")

    watch = Stopwatch("cpu", repeats=2)
    todo = [Workload("a", "1", broken, 8, 0, Floor("percent", 75)), Workload("b", "2", lambda: lambda: None, 8, 8, None)]
    first, second = bench.lines(watch, copy_rate(watch, 1), iter(todo))
    assert first.error == "RuntimeError: out of memory" and first.microseconds is None and first.reached is None
    assert second.error == "" and second.microseconds is not None and second.tflops is not None


def test_bytes_and_operations_of_attention_by_hand() -> None:
    full = {f"{one.name} {one.shape}": one for one in workloads("cpu", torch.bfloat16, tiny=False, trials=False)}
    decode = full["decode attention llama-3.1-8b 16*1@4096 splits=4"]
    assert decode.moved == 2 * (16 * 4096 * 8 * 128 * 2 + 2 * 16 * 32 * 128)
    assert decode.operations == 16 * 32 * 4096 * 128 * 2 * 2
    whole = full["prefill attention llama-3.1-8b chunk=2048@2048"]
    assert whole.operations == sum(32 * 128 * 4 * (i + 1) for i in range(2048))
    later = full["prefill attention llama-3.1-8b chunk=2048@8192"]
    assert later.operations == sum(32 * 128 * 4 * (6144 + i + 1) for i in range(2048))
    assert later.floor == Floor("tflops", 300) and decode.floor == Floor("percent", 75)
    assert {f"{seqs}*1@{kv}" for seqs, kv in FULL.decodes} <= {name.split()[3] for name in full if name.startswith("decode")}


@pytest.mark.parametrize("seqs", [1, 8, 16, 64, 512])
@pytest.mark.parametrize("kv_len", [1, 100, 4096, 100_000])
def test_splits_fill_the_device_and_never_starve(seqs: int, kv_len: int) -> None:
    splits = launch.num_splits(seqs, 8, kv_len)
    assert splits in (1, 2, 4, 8, 16)
    assert splits == 1 or kv_len / splits >= 256
    assert splits == 16 or splits * seqs * 8 >= 264 or kv_len < 512 * splits


def test_every_launch_table_serves_every_model() -> None:
    for chosen in launch.LAUNCHES.values():
        for size in (2, 4):
            for head_dim in (16, 64, 128, 256):
                for rows in (1, 10_000):
                    assert launch.prefill_tiles(chosen, rows, size, head_dim).rows >= 16
                assert launch.decode_tiles(chosen, 32, size, head_dim).rows == 32


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("command", ["bench", "check"])
def test_without_a_device_one_line_says_so(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"replay_kernels.{command}")
    assert module.main([]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("no CUDA device; --device cpu") and said.err.count("\n") == 1

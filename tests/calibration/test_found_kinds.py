"""Which kind of source a file is: packed or not, a file or a folder, and what is said of a log that tells no time."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from benchmarks.calibrate_logs import SYNCHRONOUS, Planted, write_log
from tests.calibration.test_sglang_log import log as sglang_log
from tracekit.calibration import SourceReport, SourceRequest, calibrate_source
from tracekit.calibration.sources import find_kind
from tracekit.errors import InputError, UsageError

METRICS = "vllm:generation_tokens_total{engine=\"0\"} 3.0\nvllm:num_requests_running{engine=\"0\"} 1.0\n"
STATS = (
    "(APIServer pid=1) INFO 11-30 05:13:01 [loggers.py:259] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation"
    " throughput: 2.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%\n"
)


def kind(source: Path) -> str:
    return find_kind(SourceRequest(source=str(source)))


def packed(file: Path) -> Path:
    out = file.with_name(file.name + ".gz")
    out.write_bytes(gzip.compress(file.read_bytes()))
    return out


def test_packed_or_not_is_the_same_kind(tmp_path: Path) -> None:
    write_log(tmp_path / "vllm-log", Planted.draw(200), head=SYNCHRONOUS)
    sglang_log(tmp_path / "sglang-log")
    (tmp_path / "prometheus").write_text(METRICS, encoding="utf-8")
    (tmp_path / "vllm-stats").write_text(STATS, encoding="utf-8")
    for name in ("vllm-log", "sglang-log", "prometheus", "vllm-stats"):
        assert kind(tmp_path / name) == kind(packed(tmp_path / name)) == name


def test_a_packed_log_is_fitted_like_the_plain_one(tmp_path: Path) -> None:
    write_log(tmp_path / "a.log", Planted.draw(2000), head=SYNCHRONOUS)
    found = [calibrate_source(SourceRequest(source=str(file))) for file in (tmp_path / "a.log", packed(tmp_path / "a.log"))]
    assert found[0].profile.latency == found[1].profile.latency


def test_a_folder_of_pages_needs_no_name(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    with pytest.raises(UsageError, match="not a source of a known kind"):
        kind(folder)
    (folder / "0.prom").write_text(METRICS, encoding="utf-8")
    assert kind(folder) == "prometheus"


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=1) INFO 04-21 05:13:00 [utils.py:233] non-default args: {'model': 'm'}",
        "INFO 04-21 05:13:00 [core.py:93] Initializing a V1 LLM engine (v0.33.0) with config: model='m'",
        "(EngineCore_DP0 pid=7) INFO 04-21 05:13:25 [gpu_model_runner.py:3500] Graph capturing finished in 20 secs",
    ],
)
def test_a_log_that_tells_no_time_says_what_would(line: str, tmp_path: Path) -> None:
    (tmp_path / "serve.log").write_text(line + "\n" + "INFO: 10.0.0.1 - POST 200 OK\n" * 3, encoding="utf-8")
    with pytest.raises(InputError, match="without iteration lines or statistics") as raised:
        kind(tmp_path / "serve.log")
    assert "--enable-logging-iteration-details" in str(raised.value)


def test_one_engine_is_not_held_against_itself(tmp_path: Path) -> None:
    planted = Planted.draw(3000)
    planted.device_ns = planted.device_ns * np.exp(np.random.default_rng(0).normal(0, 1.0, 3000))  # no shape explains them
    write_log(tmp_path / "odd.log", planted, head=SYNCHRONOUS)
    report = calibrate_source(SourceRequest(source=str(tmp_path / "odd.log")))
    assert isinstance(report, SourceReport)
    (only,) = report.document["engines"]
    assert abs(only["ratio"] - 1) > 0.1, "its own median is off the fit"
    assert not any("off the busiest engine" in line for line in report.lines)

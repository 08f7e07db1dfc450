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
from tracekit.cli.main import main
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


def test_files_that_are_none_say_what_they_are(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"")
    with pytest.raises(InputError, match=r"a\.log: empty; expected run: "):
        kind(file)
    write_log(file, Planted.draw(50), head=SYNCHRONOUS)
    for encoding in ("utf-16", "utf-16-be"):
        mark = "" if encoding == "utf-16" else "\ufeff"
        (tmp_path / "wide.log").write_text(mark + file.read_text(encoding="utf-8"), encoding=encoding)
        with pytest.raises(InputError, match=r"wide\.log: UTF-16 text; expected UTF-8"):
            kind(tmp_path / "wide.log")


@pytest.mark.parametrize("name", ["vllm-log", "sglang-log", "prometheus", "vllm-stats"])
def test_a_packed_file_that_was_cut_is_still_known_and_said_to_be_cut(name: str, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    if name == "vllm-log":
        write_log(plain, Planted.draw(2000), head=SYNCHRONOUS)
    elif name == "sglang-log":
        sglang_log(plain)
    else:
        plain.write_text("".join(f"{each}# {n}\n" for n in range(4000) for each in [METRICS if name == "prometheus" else STATS]))
    whole = packed(plain).read_bytes()
    cut = tmp_path / "cut.gz"
    cut.write_bytes(whole[: 2 * len(whole) // 3])
    assert kind(cut) == name
    with pytest.raises(InputError, match=r"cut\.gz: gzip data that is cut short or damaged"):
        calibrate_source(SourceRequest(source=str(cut)))


def test_an_option_of_another_kind_says_what_the_source_was_taken_for(tmp_path: Path) -> None:
    """Half a model's configuration reads as a trace: the guess is called one."""
    file = tmp_path / "config.json"
    file.write_text('{"hidden_size": 4096, "num_attention_heads": 32}', encoding="utf-8")
    with pytest.raises(UsageError, match=r"--hardware: means nothing to a trace .*, which .*config\.json was taken for; ex"):
        calibrate_source(SourceRequest(source=str(file), hardware="h100"))
    with pytest.raises(UsageError) as named:
        calibrate_source(SourceRequest(source=str(file), hardware="h100"), "latencies")
    assert "was taken for" not in str(named.value)


def test_a_folder_to_write_to_is_refused_before_anything_is_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", str(tmp_path / "none.log"), "--as", "vllm-log", "--out", str(tmp_path)]) == 2
    assert f"--out {tmp_path}: a folder; expected a file" in capsys.readouterr().err

"""The public traces beside the repository, by the numbers published for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pytest

from tracekit.errors import InputError
from tracekit.traces.load import load_trace, read_trace
from tracekit.traces.source import TraceSource

Shared = Callable[[str], Path]


def test_azure_conv(shared: Shared, tmp_path: Path) -> None:
    path = shared("AzureLLMInferenceTrace_conv.head13k.csv")
    seconds = []
    for k in range(3):
        with duckdb.connect(str(tmp_path / f"{k}.duckdb")) as con:
            began = time.process_time()
            load_trace(con, path)
            seconds.append(time.process_time() - began)
    assert min(seconds) < 0.3
    with duckdb.connect(str(tmp_path / "t.duckdb")) as con:
        report = load_trace(con, path)
        assert con.execute(
            "SELECT count(*), round(avg(input_tokens), 1), round(avg(output_tokens), 1), max(input_tokens) FROM requests"
        ).fetchall() == [(13000, 1223.7, 201.3, 14050)]
        assert con.execute("SELECT time_resolution_ns, t0_zone_assumed, arrival_kind FROM traces").fetchall() == [
            (1000, True, "absolute")
        ]
    assert report.span_ns == 2_190_602_528_000


def test_two_encodings_of_azure_code_are_the_same_requests(shared: Shared) -> None:
    azure = read_trace(shared("AzureLLMInferenceTrace_code.csv"))
    vidur = read_trace(shared("vidur_splitwise_code.csv"))
    assert (azure.report.format, vidur.report.format) == ("azure2023", "vidur")
    assert azure.report.rows_kept == vidur.report.rows_kept == 8819
    for name in ("input_tokens", "output_tokens"):
        assert azure.arrivals[name].equals(vidur.arrivals[name])
    apart = azure.arrivals["arrival_ns"].to_numpy() - vidur.arrivals["arrival_ns"].to_numpy()
    assert np.abs(apart).max() <= 1000


def test_mooncake_unbounded_prefix_hit_of_the_last_half(shared: Shared) -> None:
    """With a cache that forgets nothing, 39.8 % of the prompt tokens of the last half hit (published by two tools)."""
    trace = read_trace(shared("mooncake_conversation_trace.jsonl.gz"))
    assert trace.report.rows_kept == 12031
    assert trace.runs is not None
    runs = {name: trace.runs[name].to_numpy().astype(np.int64) for name in ("req_idx", "pos_start", "first_id", "len")}
    tokens = trace.arrivals["input_tokens"].to_numpy().astype(np.int64)
    seen = np.zeros(int((runs["first_id"] + runs["len"]).max()), bool)
    hit = np.zeros(len(tokens), np.int64)
    going = np.ones(len(tokens), bool)
    for row, first, length in zip(runs["req_idx"], runs["first_id"], runs["len"], strict=True):
        known = seen[first : first + length]
        leading = int(length if known.all() else known.argmin())
        hit[row] += leading * 512 if going[row] else 0
        going[row] &= leading == length
        seen[first : first + length] = True
    hit = np.minimum(hit, tokens)
    half = len(tokens) // 2
    assert int(runs["len"].sum()) == 288_500
    assert hit[half:].sum() / tokens[half:].sum() == pytest.approx(0.398, abs=0.0015)
    assert hit.sum() / tokens.sum() == pytest.approx(0.374, abs=0.0015)


@pytest.mark.parametrize(
    ("name", "queue", "ttft", "e2e"),
    [("rtxpro6000", (6.98, 9.34), (7.10, 9.44), (28.20, 29.62)), ("rtx4090", (65.19, 59.96), (65.46, 60.11), (86.58, 83.41))],
)
def test_measured_vllm_runs(shared: Shared, name: str, queue: tuple[float, float], ttft: tuple[float, float],
                            e2e: tuple[float, float]) -> None:  # fmt: skip
    trace = read_trace(shared(f"vllm_measured_llama8b_{name}.requests.jsonl"))
    source = TraceSource.from_loaded(trace)
    assert (trace.report.format, trace.report.obs_clock, source.total) == ("vllm_measured", "server", 300)
    for values, (mean, median) in ((source.obs_queue_ns, queue), (source.obs_ttft_ns, ttft), (source.obs_e2e_ns, e2e)):
        assert values is not None
        assert values.mean() / 1e9 == pytest.approx(mean, abs=0.006)
        assert np.median(values) / 1e9 == pytest.approx(median, abs=0.006)
    assert int(source.output_tokens.sum()) == 195_753


def test_failures_of_burstgpt_are_kept_but_not_replayed(shared: Shared) -> None:
    trace = read_trace(shared("BurstGPT_1.head400.csv"))
    assert trace.report.rows_kept == 400
    source = TraceSource.from_loaded(trace)
    assert (source.total, source.left_out) == (383, 17)


def test_files_without_arrivals_are_refused_by_name(shared: Shared) -> None:
    with pytest.raises(InputError, match="no arrival times"):
        read_trace(shared("lengths_sharegpt_predicted.csv"))

"""Engine, gateway and load generator logs, value by value, and what must never come out of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.traces.log_samples import (
    BENCH,
    BLIS_HEADER,
    BLIS_NAMES,
    BLIS_ROWS,
    GENAI,
    GUIDELLM,
    LANGFUSE_INSIDE,
    LANGFUSE_OUTSIDE,
    LOG_SAMPLES,
    SECRET,
    SGLANG,
    SPEND,
    USAGE,
    VLLM,
    csv_text,
)
from tracekit.errors import InputError, UsageError
from tracekit.traces.load import LoadReport, load_trace

Write = Callable[..., Path]
Rows = list[dict[str, Any]]
S = 1_000_000_000


@pytest.fixture
def load(write: Write, con: duckdb.DuckDBPyConnection) -> Callable[..., tuple[LoadReport, Rows]]:
    """Load bytes; the report, and the rows of ``requests`` with what is known of each."""

    def do(data: bytes | str | list[Any] | dict[str, Any], **options: Any) -> tuple[LoadReport, Rows]:
        report = load_trace(con, write(json.dumps(data) if isinstance(data, list | dict) else data, "log"), **options)
        table = con.sql(f"SELECT * FROM requests WHERE trace = {report.trace} ORDER BY req_idx").to_arrow_table()
        return report, [{key: value for key, value in row.items() if value is not None} for row in table.to_pylist()]

    return do


Load = Callable[..., tuple[LoadReport, Rows]]


def column(rows: Rows, name: str) -> list[Any]:
    return [row.get(name) for row in rows]


def test_vllm_spans(load: Load) -> None:
    report, rows = load(VLLM)
    assert (report.format, report.obs_clock, report.rows_kept) == ("otlp_spans", "server", 4)
    assert column(rows, "arrival_ns") == [0, S, 2 * S, 3 * S]
    assert report.t0_ns == 1_768_922_793_000_305_984
    assert column(rows, "input_tokens") == [100, 200, 50, 300]
    assert column(rows, "obs_queue_ns") == [S // 4] * 4
    assert column(rows, "obs_prefill_ns") == [S // 2] * 4
    assert column(rows, "obs_decode_ns") == [S // 2, S // 8, 0, S]
    assert column(rows, "obs_tpot_ns") == [S // 8, S // 8, None, S // 8]
    assert column(rows, "unmodelled") == [None, "n", None, None]
    assert any("1 requests with several answers" in warning for warning in report.warnings)


def test_genai_spans_of_one_document(load: Load) -> None:
    report, rows = load(GENAI)
    assert report.rows_dropped == {"a span that is no model request": 1}
    assert report.obs_clock == "client"
    assert rows[0] | {"input_tokens": 90, "output_tokens": 11, "obs_cached_tokens": 64, "obs_ttft_ns": S // 2,
                      "obs_e2e_ns": 2 * S, "session_id": "c1", "finish_reason": "stop"} == rows[0]  # fmt: skip
    assert (rows[1]["status"], rows[1]["error_code"]) == ("error", "rate_limit")
    assert not any(key.startswith("obs_") for key in rows[1])


def test_aiperf_reads_units_and_failures(load: Load) -> None:
    report, rows = load(LOG_SAMPLES["aiperf"][0])
    assert (report.format, report.obs_clock) == ("aiperf", "client")
    assert column(rows, "arrival_ns") == [0, 2, 4, 6]
    assert column(rows, "status") == ["cancelled", "ok", "ok", "error"]
    assert column(rows, "output_tokens") == [0, 5, 21, 0]
    assert column(rows, "obs_ttft_ns") == [None, 2 * S, 1_500_500_000, None]
    assert column(rows, "obs_tpot_ns") == [None, S // 2, S // 10, None]
    assert column(rows, "error_code") == ["499", None, None, "500"]


def test_llmperf_and_lengths_need_arrivals(load: Load) -> None:
    for name in ("llmperf", "lengths_csv"):
        with pytest.raises(InputError, match=r"no arrival times.*--arrival poisson:rate=5"):
            load(LOG_SAMPLES[name][0])
    report, rows = load(LOG_SAMPLES["llmperf"][0], arrival="poisson:rate=5,seed=3")
    assert (report.format, column(rows, "status"), column(rows, "obs_ttft_ns")) == ("llmperf", ["ok", "error"], [S // 2, None])
    assert rows[0]["obs_tpot_ns"] == S // 5, "its own inter-token latency has the first token in it"
    report, rows = load(LOG_SAMPLES["lengths_csv"][0], arrival="poisson:rate=5")
    assert column(rows, "predicted_output_tokens") == [1, 702, 110]
    assert report.ignored_columns == ["num_total_tokens", "pd_ratio"]


def test_placed_arrivals(load: Load, con: duckdb.DuckDBPyConnection) -> None:
    text = "prompt_tokens,completion_tokens\n" + "10,5\n" * 20_000
    spans = {}
    for process in ("poisson:rate=5", "poisson:rate=5,cv=4", "poisson:rate=5,seed=1"):
        report, rows = load(text, arrival=process)
        gaps = [b - a for a, b in zip(column(rows, "arrival_ns"), column(rows, "arrival_ns")[1:], strict=False)]
        mean = sum(gaps) / len(gaps)
        deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
        assert mean == pytest.approx(S / 5, rel=0.1)
        assert deviation / mean == pytest.approx(4.0 if "cv" in process else 1.0, rel=0.1)
        spans[process] = report.span_ns
    assert len(set(spans.values())) == 3
    assert con.execute("SELECT DISTINCT arrival_kind, t0_ns FROM traces").fetchall() == [("generated", None)]
    again, _ = load(text, arrival="poisson:rate=5")
    assert again.already_loaded
    for wrong in ("poisson", "poisson:rate=0", "poisson:rate=x", "uniform:rate=1", "poisson:rate=1,k=2", "poisson:rate=nan"):
        with pytest.raises(UsageError, match=r"--arrival"):
            load(text, arrival=wrong)
    with pytest.raises(UsageError, match=r"has arrival times of its own"):
        load(LOG_SAMPLES["vidur"][0], arrival="poisson:rate=5")
    with pytest.raises(InputError, match=r"no column for arrival.*--arrival poisson"):
        load(text)


def test_bench_serve(load: Load) -> None:
    report, rows = load(BENCH)
    assert (report.format, report.obs_clock) == ("bench_serve", "client")
    assert column(rows, "source_line") == [2, 1, 3]
    assert column(rows, "obs_ttft_ns") == [S // 4, S // 2, None]
    assert column(rows, "obs_e2e_ns") == [3 * S // 8, 3 * S // 2, None]
    assert column(rows, "obs_queue_ns") == [0, S // 8, None]
    assert column(rows, "status") == ["ok", "ok", "error"]
    assert "generated_texts" in report.ignored_columns
    with pytest.raises(InputError, match=r"totals without its requests.*--save-detailed"):
        load({key: value for key, value in BENCH.items() if not isinstance(value, list)})
    with pytest.raises(InputError, match=r"different lengths.*input_lens 2"):
        load(BENCH | {"input_lens": [1, 2]})
    _, placed = load({key: value for key, value in BENCH.items() if key != "start_times"}, arrival="poisson:rate=1")
    assert column(placed, "input_tokens") == [10, 20, 30]


def test_guidellm(load: Load) -> None:
    report, rows = load(GUIDELLM)
    assert column(rows, "arrival_ns") == [0, 3 * S, 4 * S, 9 * S]
    assert column(rows, "status") == ["ok", "error", "cancelled", "ok"]
    assert column(rows, "obs_ttft_ns") == [S // 2, None, S, S // 2]
    assert column(rows, "obs_e2e_ns") == [5 * S // 2, None, None, 5 * S // 2]
    assert column(rows, "obs_tpot_ns") == [S // 2, None, None, S // 2]
    assert column(rows, "obs_cached_tokens") == [32] * 4
    assert "metadata" in report.ignored_columns


def test_sglang_metrics(load: Load) -> None:
    report, rows = load(SGLANG)
    assert (report.format, report.obs_clock) == ("sglang_metrics", "server")
    assert rows[0] | {"obs_queue_ns": S // 4, "obs_ttft_ns": S // 2, "obs_prefill_ns": S // 4, "obs_tpot_ns": S // 4,
                      "obs_preemptions": 2, "obs_cached_tokens": 64, "priority": -5, "session_id": "s1", "max_tokens": 128,
                      "status": "ok", "finish_reason": "stop"} == rows[0]  # fmt: skip
    assert column(rows, "unmodelled") == [None, "lora,speculative", None, "image"]
    assert column(rows, "status") == ["ok", "ok", "cancelled", "ok"]
    assert sum("replayed as plain text requests" in warning for warning in report.warnings) == 3


@pytest.mark.parametrize("data", [csv_text(SPEND), json.dumps(SPEND, indent=2).encode(), json.dumps({"data": SPEND}).encode()])
def test_litellm(load: Load, data: bytes) -> None:
    report, rows = load(data)
    assert (report.format, report.obs_clock, report.rows_read) == ("litellm_spend", "gateway", 5)
    assert report.rows_dropped == {
        "answered from the gateway's cache": 1,
        "no text generation (embedding, image, audio, ranking)": 1,
    }
    assert column(rows, "status") == ["ok", "ok", "error"]
    assert column(rows, "obs_ttft_ns") == [S, None, None]
    assert column(rows, "obs_e2e_ns") == [3 * S, 3 * S, None]
    assert column(rows, "obs_tpot_ns") == [S // 10, None, None]
    assert rows[0] | {"tenant": "hash1", "model": "group", "obs_cached_tokens": 40, "input_tokens": 100} == rows[0]
    assert rows[2]["error_code"] == "429"


@pytest.mark.parametrize("shape", ["json", "csv"])
def test_langfuse_tells_where_cached_tokens_count(load: Load, shape: str) -> None:
    def written(rows: Rows) -> bytes:
        return csv_text(rows) if shape == "csv" else json.dumps(rows).encode()

    report, rows = load(written(LANGFUSE_OUTSIDE))
    assert report.rows_dropped == {"an observation that is no generation": 1}
    assert column(rows, "input_tokens") == [100, 30, 0]
    assert column(rows, "obs_ttft_ns") == [S // 4, S // 4, None]
    assert rows[0] | {"obs_tpot_ns": S // 10, "max_tokens": 256, "tenant": "u1", "obs_cached_tokens": 80} == rows[0]
    _, rows = load(written(LANGFUSE_INSIDE))
    assert column(rows, "input_tokens") == [100]
    silent = [LANGFUSE_INSIDE[0] | {"usageDetails": {"input": 100, "input_cached_tokens": 80, "output": 11}}]
    with pytest.raises(InputError, match=r"fit both.*--cached inside"):
        load(written(silent))
    assert [load(written(silent), cached=place)[1][0]["input_tokens"] for place in ("inside", "outside")] == [100, 180]
    with pytest.raises(InputError, match=r"inside the input count above this line"):
        load(written([*LANGFUSE_INSIDE, *LANGFUSE_OUTSIDE]))


def test_a_providers_usage(load: Load) -> None:
    report, rows = load(USAGE)
    assert report.format == "usage_jsonl"
    assert column(rows, "input_tokens") == [100, 550]
    assert column(rows, "obs_cached_tokens") == [64, 500]
    assert column(rows, "reasoning_tokens") == [4, None]
    assert column(rows, "arrival_ns") == [0, 2 * S]
    assert {"choices", "content"} <= set(report.ignored_columns)
    odd = {"created": 5, "usage": {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 64}}}
    report, rows = load(USAGE.decode() + USAGE.decode() + json.dumps(odd))
    assert any("1 of 5 answers have more cached tokens" in warning for warning in report.warnings)
    with pytest.raises(InputError, match=r"1 of 1 answers have more cached.*--cached outside"):
        load(json.dumps(odd) + "\n")
    assert load(json.dumps(odd) + "\n", cached="outside")[1][0]["input_tokens"] == 74


def test_cached_tokens_of_generic_logs(load: Load) -> None:
    text = "timestamp_s,prompt_tokens,completion_tokens,cached_tokens\n0,10,5,4\n1,20,5,300\n2,30,5,\n"
    with pytest.raises(InputError, match=r"line 3.*more tokens were cached than the input has.*--cached outside"):
        load(text)
    assert column(load(text, cached="outside")[1], "input_tokens") == [14, 320, 30]
    with pytest.raises(UsageError, match=r"--cached outside"):
        load("timestamp_s,prompt_tokens,completion_tokens\n0,10,5\n", cached="outside")


def test_blis(load: Load, write: Write, con: duckdb.DuckDBPyConnection) -> None:
    for data in (BLIS_NAMES + BLIS_ROWS, BLIS_HEADER.decode() + BLIS_NAMES + BLIS_ROWS):
        report, rows = load(data)
        assert (report.format, report.obs_clock) == ("blis_v2", "client")
        assert column(rows, "input_tokens") == [12, 30, 20]
        assert column(rows, "arrival_ns") == [0, S // 4, S // 2]
        assert column(rows, "obs_ttft_ns") == [S // 2, None, None]
        assert column(rows, "obs_e2e_ns") == [S, S // 2, None]
        assert column(rows, "deadline_ns") == [None, None, 900_000_000]
        assert column(rows, "tenant") == ["t1", "t2", "c1"]
        assert column(rows, "unmodelled") == [None, "image", None]
        assert {"error_message", "prefix_group"} <= set(report.ignored_columns)
    parts = [write(BLIS_HEADER, "a.yaml"), write(BLIS_NAMES + BLIS_ROWS, "b.csv")]
    assert load_trace(con, parts).rows_kept == 3


def test_vidur_and_tenants(load: Load) -> None:
    assert column(load(LOG_SAMPLES["vidur"][0])[1], "arrival_ns") == [0, 52_000_000, 98_189_000]
    report, rows = load(LOG_SAMPLES["tenant_csv"][0])
    assert (report.format, column(rows, "tenant"), column(rows, "unmodelled")) == ("tenant_csv", ["a", "b", "a"], [None] * 3)


@pytest.mark.parametrize("name", LOG_SAMPLES)
def test_every_sample_is_recognised_and_keeps_no_text(name: str, load: Load, con: duckdb.DuckDBPyConnection) -> None:
    for data in LOG_SAMPLES[name]:
        arrival = "poisson:rate=1" if name in ("llmperf", "lengths_csv") else None
        report, _ = load(data, arrival=arrival)
        assert report.format == name
        stored = json.dumps(report.as_dict(), default=str)
        for (table,) in con.execute("SELECT table_name FROM duckdb_tables()").fetchall():
            stored += str(con.execute(f'SELECT * FROM "{table}"').fetchall())
        assert SECRET not in stored
        assert "10.1.2.3" not in stored


@pytest.mark.parametrize("name", [name for name in LOG_SAMPLES if b"nobody" in LOG_SAMPLES[name][0]])
def test_no_text_in_a_message_about_a_broken_log(name: str, load: Load) -> None:
    data = LOG_SAMPLES[name][0]
    for damaged in (data.replace(b'tokens": ', b'tokens": -'), data.replace(b'{"', b'{"x', 3), data[: len(data) * 2 // 3]):
        try:
            told = str(load(damaged)[0].as_dict())
        except (InputError, UsageError) as error:
            told = str(error)
        assert "nobody may see" not in told


REFUSED = {
    "counts bytes, not tokens": (
        '{"category":"RequestResponse","operationName":"ChatCompletions_Create","durationMs":3,'
        '"properties":"{\\"requestLength\\":1200,\\"responseLength\\":80}"}\n'
    ),
    "averages over all requests": (
        "INFO 04-21 05:13:32 [loggers.py:259] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0"
        " tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%\n"
    ),
    "what each iteration held": (
        "[2026-01-01 10:00:00] Prefill batch, #new-seq: 1, #new-token: 5, #cached-token: 0, token usage: 0.01,\n"
    ),
    "sums and histograms": (
        '# HELP vllm:num_requests_running n\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{a="b"} 1.0\n'
    ),
    "access lines": 'INFO:     10.0.0.1:53284 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n',
    "an engine's request log": f"INFO 01-01 Received request cmpl-1: prompt: '{SECRET}', params: SamplingParams(n=1)\n",
    "--servegen": "0,0.5,1.2,Gamma,0.5,19.2\n600,0.0,0.0,,,\n",
    "an HTML page": "<!DOCTYPE html><html></html>",
    "a Git LFS pointer": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_logs_that_cannot_serve_say_what_would(reason: str, load: Load) -> None:
    with pytest.raises(InputError) as caught:
        load(REFUSED[reason])
    assert reason in str(caught.value)
    assert "; expected " in str(caught.value)
    assert "10.0.0.1" not in str(caught.value)
    assert SECRET not in str(caught.value)

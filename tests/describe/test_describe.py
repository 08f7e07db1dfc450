"""Descriptions of hand-made traces, and of the public ones by their published numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from tests.traces.conftest import SHARED
from tracekit.cli.main import main
from tracekit.describe import describe, describe_trace, render
from tracekit.errors import UsageError
from tracekit.traces.load import load_trace
from tracekit.traces.slicing import Slice
from tracekit.traces.tally import Lengths, Tally

# rows, span s, mean/s, peak 1 s, peak 10 s, CV, dispersion, equal neighbours, longest gap s
ARRIVALS: dict[str, tuple[float | None, ...]] = {
    "AzureLLMInferenceTrace_code.csv": (8819, 3435.948, 2.567, 67, 327, 13.15, 13.18, 0, 217.2),
    "AzureLLMInferenceTrace_conv.head13k.csv": (13000, 2190.603, 5.934, 16, 98, 1.08, 1.36, 0, 4.3),
    "mooncake_conversation_trace.jsonl.gz": (12031, 3536.999, 3.4015, 28, 67, 3.03, 7.89, 10851, 3.0),
    "mooncake_arxiv_trace.head1000.jsonl": (1000, 177.098, 5.647, 26, 93, 4.03, 12.39, 941, 3.1),
    "vllm_measured_llama8b_rtxpro6000.requests.jsonl": (300, 29.121, 10.302, 17, 112, 0.94, 1.07, 0, 0.5),
    "vllm_measured_llama8b_rtx4090.requests.jsonl": (300, 29.101, 10.309, 18, 112, 0.94, 1.23, 0, 0.5),
    "BurstGPT_1.head400.csv": (400, 37269, 0.0107, 2, 3, 4.56, 1.01, 4, 6651),
    "BurstGPT_3.head250.csv": (250, 38046, 0.0066, 2, 3, 2.41, 1.01, 2, 2892),
    "vtc_arena_27clients.derived.csv": (1500, 600.0, 2.5, 11, 47, 1.10, 1.39, 0, 4.5),
    "exgentic_swebench_claude_code.normalized.jsonl.gz": (2294, 425543, 0.0054, 5, 19, 27.46, 1.35, 0, 218486.5),
    "vllm_otlp_spans_codellama34b.jsonl": (280, 2201.637, 0.127, 15, 22, 1.03, 1.77, 0, 83.2),
    "vllm_otlp_spans_llama7b_prefill.jsonl": (197, 102.707, 1.918, 39, 39, 2.55, 8.51, 0, 18.0),
    "inferencex_dsr1_b200_tp8_conc16_offloadoff.requests.csv.gz": (34, 215.238, 0.158, 8, 12, 1.62, 2.78, 0, 50.3),
    "inferencex_dsr1_b200_tp8_conc64_offloadoff.requests.csv.gz": (121, 961.373, 0.126, 27, 39, 2.44, 7.27, 0, 183.2),
    "dynamo_request_trace.jsonl": (17, 162.147, 0.105, 3, 3, 0.92, 1.60, 0, 31.2),
    "aiperf_profile_export.jsonl": (100, 0.020, None, 100, 100, 3.96, None, 0, 0.0),
}
# input mean, P50, P95, P99, max and zeros; the same of the output
LENGTHS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "AzureLLMInferenceTrace_code.csv": ((2047.8, 1469, 7303, 7436, 7437), (27.9, 13, 90, 251, 1899)),
    "AzureLLMInferenceTrace_conv.head13k.csv": ((1223.7, 1018, 4086, 4122, 14050), (201.3, 114, 448, 598, 1000)),
    "mooncake_conversation_trace.jsonl.gz": ((12035.1, 6909, 39550, 85400, 126195), (342.6, 350, 698, 1119, 2000)),
    "mooncake_arxiv_trace.head1000.jsonl": ((9792.0, 6558, 27307, 77828, 121290), (199.1, 34, 610, 831, 2000)),
    "BurstGPT_1.head400.csv": ((520.5, 314, 1637, 1958, 2126, 17), (276.5, 230, 814, 1421, 2019, 17)),
    "BurstGPT_3.head250.csv": ((690.9, 278, 1481, 12364, 25085, 1), (177.4, 104, 590, 853, 1101, 1)),
    "claude_code_sessions.sample142.jsonl.gz": ((134105, 109356, 353449, 522662, 880502), (427.4, 219, 1463, 3511, 12162, 7)),
    "cc_traces_weka_051226.normalized.jsonl.gz": ((252414, 205149, 726189, 817397, 847831), (648.9, 248, 2520, 6103, 24356, 1)),
    "exgentic_swebench_claude_code.normalized.jsonl.gz": (
        (27541, 26316, 53057, 62851, 67657, 148), (244.4, 98, 818, 1745, 7566, 148)),
    "vtc_arena_27clients.derived.csv": ((136.3, 40, 653, 902, 1021), (256.2, 211, 513, 785, 977)),
    "vllm_measured_llama8b_rtxpro6000.requests.jsonl": ((857.5, 732, 1749, 2765, 3998), (652.5, 632, 773, 784, 1021)),
    "vllm_otlp_spans_codellama34b.jsonl": ((3920, 3804, 7168, 7168, 7168), (724.1, 828, 1024, 1024, 1024)),
    "vllm_otlp_spans_llama7b_prefill.jsonl": ((3032.6, 3103, 3741, 3916, 3940), (31.6, 33, 57, 64, 64)),
    "inferencex_dsr1_b200_tp8_conc16_offloadoff.requests.csv.gz": (
        (76146, 87270, 119252, 119606, 119748), (2628, 2630, 3760, 4930, 5412, 1)),
    "inferencex_dsr1_b200_tp8_conc64_offloadoff.requests.csv.gz": (
        (82139, 92163, 119439, 125609, 127422), (1515, 1498, 4366, 5052, 6367, 53)),
    "dynamo_request_trace.jsonl": ((3912.9, 3423, 8382, 8700, 8780), (476.1, 389, 886, 1058, 1101)),
    "lengths_sharegpt_8k_llama2.csv": ((2340.0, 1730, 6563, 7434, 8141), (438.7, 415, 920, 998, 1024)),
    "lengths_arxiv_summarization_llama2.csv": ((2588.1, 2730, 3813, 3933, 4054), (291.4, 167, 736, 3271, 4056)),
    "lengths_sharegpt_predicted.csv": ((250.7, 35, 1452, 2862, 3972, 12), (323.1, 282, 843, 1000, 2383, 1)),
}  # fmt: skip


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    known: dict[str, dict[str, Any]] = {}

    def of(name: str) -> dict[str, Any]:
        if not (SHARED / name).exists():
            pytest.skip(f"{name} is not beside the repository")
        if name not in known:
            how = {"arrival": "poisson:rate=5"} if name.startswith("lengths_") else {}
            known[name] = describe(str(SHARED / name), db=tmp_path_factory.mktemp("db") / "none.duckdb", **how)
        return known[name]

    return of


@pytest.mark.parametrize("name", ARRIVALS)
def test_published_arrival_statistics(name: str, described: Callable[[str], dict[str, Any]]) -> None:
    found, wanted = described(name)["whole"], ARRIVALS[name]
    arrivals = found["arrivals"]
    assert found["requests"] == wanted[0]
    keys = ("span_s", "rate_per_s", "peak_1s", "peak_10s", "cv", "dispersion_1s", "equal_neighbours", "longest_gap_s")
    for key, value in zip(keys, wanted[1:], strict=True):
        if value is None:
            assert arrivals[key] is None
            continue
        digits = len(str(value).partition(".")[2]) if isinstance(value, float) else 0
        assert arrivals[key] == pytest.approx(value, abs=0.51 * 10**-digits), key


@pytest.mark.parametrize("name", LENGTHS)
def test_published_lengths(name: str, described: Callable[[str], dict[str, Any]]) -> None:
    found = described(name)["whole"]
    for key, wanted in zip(("input_tokens", "output_tokens"), LENGTHS[name], strict=True):
        assert found[key]["mean"] == pytest.approx(wanted[0], abs=0.051 if isinstance(wanted[0], float) else 0.51)
        for part, value in zip(("p50", "p95", "p99", "max", "zeros"), (*wanted[1:], 0)[:5], strict=True):
            assert found[key][part] == pytest.approx(value, abs=0.51), (key, part)


def test_published_prefix_shares(described: Callable[[str], dict[str, Any]]) -> None:
    prefix = described("mooncake_conversation_trace.jsonl.gz")["whole"]["prefix"]
    assert prefix["blocks"] == 288_500
    assert round(prefix["reseen_share"], 3) == 0.366
    assert round(prefix["share_unbounded"], 3) == 0.374
    assert round(prefix["share_unbounded_last_half"], 3) == 0.398
    arxiv = described("mooncake_arxiv_trace.head1000.jsonl")["whole"]["prefix"]
    assert (arxiv["blocks"], round(arxiv["reseen_share"], 3), round(arxiv["share_unbounded"], 3)) == (19_686, 0.380, 0.391)
    dynamo = described("dynamo_request_trace.jsonl")["whole"]["prefix"]
    assert (dynamo["blocks"], round(dynamo["reseen_share"], 3)) == (4163, 0.716)
    claude = described("claude_code_sessions.sample142.jsonl.gz")["whole"]["prefix"]
    assert (claude["blocks"], round(claude["reseen_share"], 3)) == (18_546_117, 0.964)


def test_sessions_and_tenants_by_their_published_numbers(described: Callable[[str], dict[str, Any]]) -> None:
    sessions = described("claude_code_sessions.sample142.jsonl.gz")["whole"]["sessions"]
    assert (sessions["sessions"], sessions["requests_p50"], sessions["requests_max"]) == (142, 47.5, 342)
    tenants = described("vtc_arena_27clients.derived.csv")["whole"]["tenant"]
    assert (tenants["values"], tenants["with_one_request"]) == (27, 1)
    assert [each["requests"] for each in tenants["largest"][:4]] == [296, 262, 199, 120]
    burst = described("BurstGPT_3.head250.csv")["whole"]["sessions"]
    assert (burst["sessions"], burst["with_more_turns"], burst["requests_max"]) == (91, 52, 24)


@pytest.mark.parametrize("name", ["cc_traces_weka_051226.normalized.jsonl.gz", "claude_code_sessions.sample142.jsonl.gz"])
def test_no_rate_of_session_relative_times(name: str, described: Callable[[str], dict[str, Any]]) -> None:
    document = described(name)
    assert "relative to each session" in document["whole"]["arrivals"]["rate_refused"]
    assert document["windows"] == []


def test_windows_of_the_azure_code_trace(described: Callable[[str], dict[str, Any]]) -> None:
    document = described("AzureLLMInferenceTrace_code.csv")
    windows = document["windows"]
    assert [window["kind"] for window in windows] == ["busy", "bursty", "typical"]
    assert any("hole of 217.2 s" in line for line in document["warnings"])
    spans = sorted((window["begin_ns"], window["end_ns"]) for window in windows)
    assert all(one[1] <= two[0] for one, two in zip(spans, spans[1:], strict=False))


def loaded(con: duckdb.DuckDBPyConnection, path: Path, rows: list[dict[str, Any]]) -> int:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = load_trace(con, path).trace
    assert trace is not None
    return trace


def request(at: float, prompt: int = 100, answer: int = 10, **more: Any) -> dict[str, Any]:
    return {"arrival_s": at, "input_tokens": prompt, "output_tokens": answer, **more}


@pytest.mark.parametrize(
    ("arrivals", "reason"),
    [
        ([5.0], "1 request: a rate needs at least two"),
        ([3.0, 3.0, 3.0], "all 3 requests arrive at one instant"),
        ([0.0, 0.01, 0.02], "within 20 ms"),
        ([0.0, 12.0, 13.0], "span 13.0 years, 12.0 of them without"),
    ],
)
def test_a_rate_is_refused_where_it_means_nothing(con: duckdb.DuckDBPyConnection, tmp_path: Path, arrivals: list[float],
                                                  reason: str) -> None:  # fmt: skip
    trace = loaded(con, tmp_path / "t.jsonl", [request(at) for at in arrivals])
    if "years" in reason:
        # loading drops times that are plainly wrong; a trace may still hold such
        con.execute("UPDATE arrivals SET arrival_ns = arrival_ns * 365 * 86400")
    document = describe_trace(con, trace)
    found = document["whole"]["arrivals"]
    assert found["rate_per_s"] is None
    assert reason in found["rate_refused"]
    assert document["windows"] == []
    assert reason in render(document)


@pytest.mark.parametrize("kind", ["session_relative", "closed_loop"])
def test_a_rate_is_refused_by_the_kind_of_arrivals(con: duckdb.DuckDBPyConnection, tmp_path: Path, kind: str) -> None:
    trace = loaded(con, tmp_path / "t.jsonl", [request(i) for i in range(50)])
    con.execute("UPDATE traces SET arrival_kind = ?", [kind])
    assert describe_trace(con, trace)["whole"]["arrivals"]["rate_per_s"] is None


def test_a_slice_beside_the_whole(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    rows = [request(i, 100 + i, 5, tenant="ab"[i % 2], session_id=f"s{i % 20}", obs_ttft_ms=i + 1, block_tokens=16,
                    hash_ids=[0, 1 + i % 4]) for i in range(200)]  # fmt: skip
    trace = loaded(con, tmp_path / "t.jsonl", rows)
    document = describe_trace(con, trace, Slice(where="tenant = 'a'", window_ns=(50 * 10**9, 150 * 10**9), rate_scale=2.0))
    whole, part = document["whole"], document["slice"]
    assert (whole["requests"], part["requests"]) == (200, 50)
    assert whole["tenant"]["values"] == 2
    assert part["tenant"]["largest"] == [
        {"name": "a", "requests": 50, "share": 1.0, "input_tokens": sum(range(150, 250, 2)), "output_tokens": 250}
    ]
    assert part["input_tokens"]["min"] == 150
    assert part["arrivals"]["span_s"] == 49.0
    assert part["observed"]["ttft"]["n"] == 50
    assert whole["sessions"]["sessions"] == 20
    assert whole["prefix"]["distinct_blocks"] == 5
    assert part["prefix"]["distinct_blocks"] == 3
    text = render(document)
    assert "whole" in text and "slice" in text
    thinned = describe_trace(con, trace, Slice(thin=(1, 4)))["slice"]
    assert (thinned["requests"], thinned["weight"], thinned["thinned_by"]) == (50, 4.0, "session")
    with pytest.raises(UsageError, match="no request"):
        describe_trace(con, trace, Slice(where="input_tokens > 100000"))


def test_counted_in_pieces_as_at_once() -> None:
    rng = np.random.default_rng(1)
    arrival = np.cumsum(rng.integers(0, 3 * 10**9, 5000)) + 12345
    prompt, answer = rng.integers(0, 9000, 5000), rng.integers(1, 500, 5000)
    prompt[7] = 2**31
    one, many = Tally(), Tally()
    one.add(arrival, prompt, answer)
    for low in range(0, 5000, 37):
        many.add(arrival[low : low + 37], prompt[low : low + 37], answer[low : low + 37])
    assert (one.n, one.span_ns, one.equal, one.largest_gaps) == (many.n, many.span_ns, many.equal, many.largest_gaps)
    assert one.gap_cv() == pytest.approx(many.gap_cv())
    gaps = np.diff(arrival)
    assert one.gap_cv() == pytest.approx(gaps.std() / gaps.mean())
    counts = np.bincount((arrival - arrival[0]) // 10**9)
    assert one.dispersion_1s() == many.dispersion_1s() == pytest.approx(counts.var() / counts.mean())
    assert one.peak(1) == many.peak(1) == counts.max()
    assert one.peak(10) == np.bincount((arrival - arrival[0]) // 10**10).max()
    summary = many.input_tokens.summary()
    assert summary == one.input_tokens.summary()
    for part in (50, 90, 95, 99):
        assert summary[f"p{part}"] == pytest.approx(np.percentile(prompt, part))
    assert 0.97 < one.gap_percentile_ns(99) / np.percentile(gaps, 99) < 1.05
    assert Lengths().summary() == {"n": 0}


def test_the_command_on_files_and_on_a_loaded_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    capfd: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("arrival,input_tokens,output_tokens\n" + "".join(f"{i},{50 + i},5\n" for i in range(300)))
    assert main(["describe", "t.csv", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["schema"] == "tracekit.describe/1"
    assert not Path("tracekit.duckdb").exists()
    assert main(["load", "t.csv", "--name", "mine"]) == 0
    capfd.readouterr()
    assert main(["describe", "mine", "--where", "input_tokens < 100", "--window", "10s:"]) == 0
    out = capfd.readouterr().out
    assert "300" in out and "40" in out
    assert main(["describe", "mine", "--where", "input_tokens <"]) == 2
    err = capfd.readouterr().err
    assert err.startswith("tracekit: --where") and err.count("\n") == 1
    assert main(["describe", "no-such.csv"]) == 3


def test_numbers_have_the_digits_they_need(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    rows = "".join(f"{k},100,10,{e2e}\n" for k, e2e in enumerate([63.0004, 63.0004, 63.0004, 12.5, 12.5]))
    path.write_text(f"arrival,input_tokens,output_tokens,obs_e2e\n{rows}")
    assert main(["describe", str(path)]) == 0
    assert "observed e2e s          mean 42.8 P50 63 P95 63 P99 63 max 63\n" in capfd.readouterr().out

"""The public logs beside the repository, by the numbers published for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pytest

from tracekit.traces.load import LoadedTrace, read_trace

Shared = Callable[[str], Path]


def seconds(trace: LoadedTrace, name: str) -> npt.NDArray[np.float64]:
    assert trace.extras is not None
    values: npt.NDArray[np.float64] = trace.extras[name].drop_null().to_numpy() / 1e9
    return values


def shape(trace: LoadedTrace, name: str) -> tuple[float, ...]:
    """Mean, P50, P95, P99, maximum."""
    values = trace.arrivals[name].to_numpy()
    return (round(float(values.mean()), 1), *(float(q) for q in np.percentile(values, [50, 95, 99])), int(values.max()))


@pytest.mark.parametrize(
    ("name", "requests", "span", "inversions", "inputs", "queue", "ttft", "e2e"),
    [
        ("codellama34b", 280, 2201.637, 83, (3920.0, 3804, 7168, 7168, 7168), (1.449, 36.70), (1.969, 0.453, 38.10),
         (22.85, 24.86, 63.52)),
        ("llama7b_prefill", 197, 102.707, 60, (3032.6, 3103, 3741, 3916, 3940), (0.900, 8.147), (1.320, 0.254, 8.808),
         (3.445, 2.065, 9.902)),
    ],
)  # fmt: skip
def test_vllm_spans(shared: Shared, name: str, requests: int, span: float, inversions: int, inputs: tuple[float, ...],
                    queue: tuple[float, ...], ttft: tuple[float, ...], e2e: tuple[float, ...]) -> None:  # fmt: skip
    trace = read_trace(shared(f"vllm_otlp_spans_{name}.jsonl"))
    assert (trace.report.format, trace.report.rows_kept, trace.report.obs_clock) == ("otlp_spans", requests, "server")
    assert trace.report.span_ns / 1e9 == pytest.approx(span, abs=0.001)
    assert any(f"{inversions} rows arrive before" in warning for warning in trace.report.warnings)
    assert any("exactly as long as their limit" in warning for warning in trace.report.warnings)
    assert shape(trace, "input_tokens") == pytest.approx(inputs, abs=0.6)
    waited, first, whole = (seconds(trace, name) for name in ("obs_queue_ns", "obs_ttft_ns", "obs_e2e_ns"))
    assert (waited.mean(), np.percentile(waited, 99)) == pytest.approx(queue, rel=0.002)
    for values, (mean, median, high) in ((first, ttft), (whole, e2e)):
        assert (values.mean(), np.median(values), np.percentile(values, 99)) == pytest.approx((mean, median, high), rel=0.002)


def test_aiperf_export(shared: Shared) -> None:
    trace = read_trace(shared("aiperf_profile_export.jsonl"))
    assert (trace.report.format, trace.report.rows_kept, trace.report.obs_clock) == ("aiperf", 100, "client")
    assert trace.report.span_ns / 1e9 == pytest.approx(0.020, abs=0.001)
    assert trace.report.arrival_kind == "closed_loop"
    assert any("all 100 requests start within 20 ms" in warning for warning in trace.report.warnings)
    assert trace.extras is not None
    counted = {row["values"]: row["counts"] for row in pc.value_counts(trace.extras["status"]).to_pylist()}
    assert counted == {"ok": 89, "cancelled": 11}
    first = seconds(trace, "obs_ttft_ns") * 1000
    assert len(first) == 89, "cancelled requests are no instant answers"
    assert np.percentile(first, [50, 99]) == pytest.approx([2369, 3833], abs=1)
    outputs = trace.arrivals["output_tokens"].to_numpy()
    assert outputs[outputs > 0].mean() == pytest.approx(243.0, abs=0.05)


@pytest.mark.parametrize(
    ("name", "rows", "inputs", "outputs"),
    [
        ("sharegpt_8k_llama2", 30_731, (2340.0, 1730, 6563, 7434, 8141), (438.7, 415, 920, 998, 1024)),
        ("arxiv_summarization_llama2", 28_257, (2588.1, 2730, 3813, 3933, 4054), (291.4, 167, 736, 3271, 4056)),
        ("sharegpt_predicted", 40_000, (250.7, 35, 1452, 2862, 3972), (323.1, 282, 843, 1000, 2383)),
    ],
)
def test_length_pairs(shared: Shared, name: str, rows: int, inputs: tuple[float, ...], outputs: tuple[float, ...]) -> None:
    trace = read_trace(shared(f"lengths_{name}.csv"), arrival="poisson:rate=5,seed=1")
    assert (trace.report.format, trace.report.rows_kept) == ("lengths_csv", rows)
    assert shape(trace, "input_tokens") == pytest.approx(inputs, abs=0.6)
    assert shape(trace, "output_tokens") == pytest.approx(outputs, abs=0.6)
    assert rows / (trace.report.span_ns / 1e9) == pytest.approx(5, rel=0.03)
    if name == "sharegpt_predicted":
        assert trace.extras is not None
        predicted = trace.extras["predicted_output_tokens"].to_numpy().astype(float)
        assert np.abs(predicted - trace.arrivals["output_tokens"].to_numpy()).mean() == pytest.approx(28.2, abs=0.05)


def test_arena_tenants(shared: Shared) -> None:
    trace = read_trace(shared("vtc_arena_27clients.derived.csv"))
    assert (trace.report.format, trace.report.rows_kept) == ("tenant_csv", 1500)
    assert trace.report.span_ns / 1e9 == pytest.approx(600.0, abs=0.001)
    assert trace.extras is not None
    counts = sorted((row["counts"] for row in pc.value_counts(trace.extras["tenant"]).to_pylist()), reverse=True)
    assert (len(counts), counts[:4], counts[-3:]) == (27, [296, 262, 199, 120], [2, 2, 1])
    assert shape(trace, "input_tokens") == pytest.approx((136.3, 40, 653, 902, 1021), abs=0.6)


def test_vidur_is_azure_code_to_the_microsecond(shared: Shared) -> None:
    azure, vidur = (read_trace(shared(name)) for name in ("AzureLLMInferenceTrace_code.csv", "vidur_splitwise_code.csv"))
    assert vidur.report.format == "vidur"
    apart = azure.arrivals["arrival_ns"].to_numpy() - vidur.arrivals["arrival_ns"].to_numpy()
    assert np.abs(apart).max() <= 1000

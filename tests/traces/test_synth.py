"""The generator: the same bytes for the same seed, and traffic of the kind that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tracekit.errors import UsageError
from tracekit.traces.load import read_trace
from tracekit.traces.source import TraceSource
from tracekit.traces.synth import Tenant, continue_trace, main, synthesise, write_azure_csv, write_jsonl

ROOT = Path(__file__).parents[2]


def test_the_shipped_example_is_made_byte_for_byte(tmp_path: Path) -> None:
    main([str(tmp_path / "demo.jsonl.gz")])
    shipped = (ROOT / "examples" / "demo_trace.jsonl.gz").read_bytes()
    assert (tmp_path / "demo.jsonl.gz").read_bytes() == shipped
    assert len(shipped) < 200_000


def test_the_example_is_bursty_shared_and_has_three_tenants() -> None:
    trace = read_trace(ROOT / "examples" / "demo_trace.jsonl.gz")
    assert trace.report.format == "canonical_jsonl"
    assert (trace.report.rows_kept, trace.report.rows_dropped) == (2000, {})
    source = TraceSource.from_loaded(trace)
    assert sorted(source.tenant_names) == ["assistant", "chat", "reports"]
    assert sorted(source.class_names) == ["batch", "interactive"]
    assert 290e9 < source.window_ns <= 300e9
    counts = np.bincount(source.arrival_ns // 10**9)
    assert counts.var() / counts.mean() > 1.5
    assert (source.shared_blocks > 0).mean() > 0.9


def test_continued_trace_keeps_its_head_rate_and_lengths(tmp_path: Path) -> None:
    write_jsonl(synthesise(3000, seed=3), tmp_path / "t.jsonl")
    base = TraceSource.from_loaded(read_trace(tmp_path / "t.jsonl"))
    longer = continue_trace(base, 9000, seed=1)
    assert len(longer) == 9000
    assert np.array_equal(longer.arrival_ns[:3000], base.arrival_ns)
    assert (np.diff(longer.arrival_ns) >= 0).all()
    assert longer.arrival_ns[-1] / base.arrival_ns[-1] == pytest.approx(3, rel=0.15)
    assert longer.input_tokens.mean() == pytest.approx(base.prompt_tokens.mean(), rel=0.15)
    assert set(zip(longer.input_tokens.tolist(), longer.output_tokens.tolist(), strict=True)) == set(
        zip(base.prompt_tokens.tolist(), base.output_tokens.tolist(), strict=True)
    )
    again = continue_trace(base, 9000, seed=1)
    assert np.array_equal(again.arrival_ns, longer.arrival_ns)
    write_azure_csv(longer, tmp_path / "t.csv")
    back = read_trace(tmp_path / "t.csv")
    assert back.report.format == "azure2023"
    assert np.array_equal(back.arrivals["arrival_ns"].to_numpy(), longer.arrival_ns - longer.arrival_ns[0])


def test_tenants_and_bursts_as_asked() -> None:
    calm = Tenant(name="calm", slo_class="interactive", share=3, cv=1.0)
    loud = Tenant(name="loud", slo_class="batch", share=1, burst=(0.5, 0.6), burst_share=1.0, groups=2, prefix_tokens=64)
    columns = synthesise(4000, seconds=1000, seed=5, tenants=(calm, loud))
    loud_rows = np.array([tenant == "loud" for tenant in columns.tenant])
    assert loud_rows.sum() == 1000
    assert columns.arrival_ns[loud_rows].min() >= 499e9
    assert columns.arrival_ns[loud_rows].max() <= 600e9
    assert columns.runs is not None
    assert len({runs[0][1] for runs, is_loud in zip(columns.runs, loud_rows, strict=True) if is_loud}) == 2
    with pytest.raises(UsageError):
        synthesise(0)


def test_azure_conv_continued_to_the_size_of_the_original(shared: Callable[[str], Path]) -> None:
    base = TraceSource.from_loaded(read_trace(shared("AzureLLMInferenceTrace_conv.head13k.csv")))
    longer = continue_trace(base, 19_366)
    assert len(longer) == 19_366
    assert longer.arrival_ns[-1] / 1e9 == pytest.approx(19_366 / 5.934, rel=0.03)

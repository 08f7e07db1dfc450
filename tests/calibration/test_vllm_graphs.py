"""Padding from the capture sizes that a log of vLLM prints: found where it was planted, left out where it cannot be told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from replay_engine.buckets import BUCKETS, padding_of
from replay_engine.calibration.many import MOST, fit_many
from replay_engine.calibration.samples import EAGER_MODE, Samples
from tracekit.calibration import SourceReport, SourceRequest, calibrate_source

FLOOR, B, D, E, P = 5e6, 20e3, 18e3, 40.0, 15e3
BLOCKS = 30_000
SIZES = ", ".join(map(str, BUCKETS))


def columns(count: int, seed: int = 4) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    seqs = draw.integers(1, 250, count).astype(float)
    kv = np.round(seqs * draw.uniform(200, 1600, count))
    tokens = np.where(draw.random(count) < 0.2, draw.integers(300, 4000, count), 0).astype(float)
    return {"seqs": seqs, "kv": kv, "tokens": tokens, "noise": draw.normal(1, 0.01, count)}


def costs(rows: dict[str, np.ndarray], padding: float) -> np.ndarray:
    added = padding * padding_of(rows["tokens"], rows["seqs"])
    base = np.maximum(FLOOR, 0.6 * FLOOR + B * rows["tokens"])
    return np.asarray((base + D * rows["seqs"] + E * rows["kv"] + added) * rows["noise"])


def write_log(file: Path, head: str, padding: float) -> str:
    rows = columns(6000)
    lines = [
        f"(EngineCore pid=7) INFO 04-21 05:13:00 [core.py:93] Initializing a V1 LLM engine (v0.33.0) with config: {head}",
        "(EngineCore pid=7) INFO 04-21 05:13:00 Asynchronous scheduling is disabled.",
        f"(EngineCore pid=7) INFO 04-21 05:13:20 GPU KV cache size: {BLOCKS * 16:,} tokens",
    ]
    for k, took in enumerate(costs(rows, padding)):
        seqs, tokens = int(rows["seqs"][k]), int(rows["tokens"][k])
        prompts = int(tokens > 0)
        usage = (rows["kv"][k] + tokens + (seqs + prompts) * 7.5) / (BLOCKS * 16)
        lines.append(
            f"(EngineCore pid=7) INFO 04-21 05:14:00 [core.py:377] Iteration({k}): {prompts} context requests, {tokens} context"
            f" tokens, {seqs} generation requests, {seqs} generation tokens, iteration elapsed time: {took / 1e6:.3f} ms,"
            f" GPU KV cache usage: {100 * usage:.3f}%"
        )
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(file)


def fitted(file: Path, head: str, padding: float = P) -> SourceReport:
    report = calibrate_source(SourceRequest(source=write_log(file, head, padding)))
    assert isinstance(report, SourceReport)
    return report


def graphs(report: SourceReport) -> list[str]:
    return [line for line in report.lines if line.startswith("graphs: ")]


@pytest.mark.parametrize("largest", [512, 256])
def test_planted_padding_comes_back(largest: int, tmp_path: Path) -> None:
    sizes = SIZES if largest == 512 else SIZES[: SIZES.index("256") + 3]
    report = fitted(tmp_path / "a.log", f"compilation_config={{'cudagraph_capture_sizes': [{sizes}]}}")
    latency = report.profile.latency
    assert latency.p_ns == pytest.approx(P, rel=0.15)
    assert (latency.d_ns, latency.e_ns) == (pytest.approx(D, rel=0.05), pytest.approx(E, rel=0.02))
    assert graphs(report)[0].startswith(f"graphs: captured for vLLM's sizes to {largest}: ")


@pytest.mark.parametrize(
    ("head", "padding", "says"),
    [
        (f"{{'cudagraph_capture_sizes': [{SIZES}]}}", 0.0, "not told apart"),
        (f"{{'cudagraph_capture_sizes': [{SIZES}]}}, enforce_eager=True", P, "none, so that nothing is padded"),
        ("{'cudagraph_capture_sizes': []}", P, "none, so that nothing is padded"),
        ("{'cudagraph_capture_sizes': [1, 2, 4, 100]}", P, "other sizes"),
        ("model='m'", P, None),
    ],
)
def test_nothing_is_said_of_padding_that_is_not_told(head: str, padding: float, says: str | None, tmp_path: Path) -> None:
    report = fitted(tmp_path / "a.log", head, padding)
    assert report.profile.latency.p_ns == 0
    said = graphs(report)
    assert said == [] if says is None else len(said) == 1 and says in said[0]


@pytest.mark.parametrize("count", [MOST // 4, MOST * 2])
def test_a_long_log_keeps_its_padding(count: int) -> None:
    rows = columns(count)
    nothing = np.zeros(count)
    samples = Samples(
        device_ns=costs(rows, P), host_ns=nothing, tokens=rows["tokens"], qk=nothing, seqs=rows["seqs"], kv=rows["kv"],
        running=rows["seqs"], changes=nothing, padded=padding_of(rows["tokens"], rows["seqs"]), above=nothing,
        weight=np.ones(count),
        mode=np.full(count, EAGER_MODE), shape=np.full(count, ""),
    )  # fmt: skip
    assert fit_many(samples).p_ns == pytest.approx(P, rel=0.1)

"""What the benchmarks replay: production traces where they are at hand, else synthetic ones like them, and planned loads."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from replay_engine.profile import Latency
from replay_engine.types import RequestBatch
from tracekit.traces.load import read_trace
from tracekit.traces.slicing import Slice
from tracekit.traces.source import TraceSource
from tracekit.traces.synth import Columns, Tenant, synthesise, write_azure_csv, write_jsonl

__all__ = ["ColumnSource", "Load", "azure_conv", "mooncake_conversation", "planned"]

Ints = npt.NDArray[np.int64]
TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
AZURE = "AzureLLMInferenceTrace_conv.head13k.csv"
MOONCAKE = "mooncake_conversation_trace.jsonl.gz"
CONV = Tenant(name="conv", slo_class="chat", share=1.0, cv=1.08, input_median=750, input_sigma=0.98, output_median=137,
              output_sigma=0.87)  # fmt: skip
"""Rate, clustering and length distributions of the Azure 2023 conversation trace, measured on its first 13,000 rows."""
CONV_REQUESTS, CONV_SECONDS = 13_000, 2190.6


def _source(path: Path, limit: int | None) -> TraceSource:
    return TraceSource.from_loaded(read_trace(path), Slice(limit=limit))


def azure_conv(limit: int | None = None, folder: Path = TRACES) -> tuple[TraceSource, str]:
    """The first 13,000 requests of the Azure 2023 conversation trace, or ``limit``, and a line that says what it is."""
    if (folder / AZURE).is_file():
        return _source(folder / AZURE, limit), "input: Azure 2023 conversation trace, first 13,000 rows, at their own arrivals"
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "conv.csv")
        write_azure_csv(synthesise(CONV_REQUESTS, seconds=CONV_SECONDS, tenants=(CONV,)), path)
        return _source(path, limit), "input: SYNTHETIC (the Azure trace is not here): its rate, clustering and lengths"


def mooncake_conversation(limit: int | None = None, folder: Path = TRACES) -> tuple[TraceSource, str]:
    """The Mooncake conversation trace with its prefix hashes, and a line that says what it is."""
    if (folder / MOONCAKE).is_file():
        return _source(folder / MOONCAKE, limit), "input: Mooncake conversation trace at its own arrivals"
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "shared.jsonl")
        write_jsonl(synthesise(12_000), path)
        return _source(path, limit), "input: SYNTHETIC (the Mooncake trace is not here): tenants that share prefixes"


class ColumnSource:
    """Columns as a request source, without prefix identity."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    @property
    def total(self) -> int:
        return len(self.columns)

    def batches(self, size: int = 8192) -> Iterator[RequestBatch]:
        columns = self.columns
        for low in range(0, self.total, size):
            part = slice(low, min(low + size, self.total))
            count = part.stop - low
            yield RequestBatch(
                index=np.arange(low, part.stop, dtype=np.int64),
                arrival_ns=columns.arrival_ns[part],
                prompt_tokens=columns.input_tokens[part],
                output_tokens=columns.output_tokens[part],
                priority=np.zeros(count, np.int64),
                max_tokens=np.full(count, -1, np.int64),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A planned load: Poisson arrivals at the rate that keeps about ``batch`` sequences decoding.

    Prompts are uniform between two bounds; outputs are gamma (shape 1.5) around a mean, or uniform between two bounds. With
    ``blocks`` the KV cache holds no more than that, and everything is there at the start: the cache decides how many run.
    """

    name: str
    requests: int
    batch: int
    prompt: tuple[int, int] = (100, 1500)
    output_mean: int = 212
    output: tuple[int, int] | None = None
    blocks: int | None = None
    target: float | None = None


def planned(load: Load, latency: Latency, seed: int = 0) -> Columns:
    """The requests of ``load``. The rate follows from Little's law and the time of an iteration at the wanted batch."""
    rng = np.random.Generator(np.random.PCG64(seed))
    prompt = rng.integers(*load.prompt, load.requests, endpoint=True)
    if load.output is not None:
        output = rng.integers(*load.output, load.requests, endpoint=True)
    else:
        output = np.clip(np.rint(rng.gamma(1.5, load.output_mean / 1.5, load.requests)), 1, 4000).astype(np.int64)
    if load.blocks is not None:
        arrival = np.zeros(load.requests, np.int64)
    else:
        residence_ns = float(output.mean()) * _iteration_ns(load.batch, prompt, output, latency)
        arrival = np.cumsum(np.rint(rng.exponential(residence_ns / load.batch, load.requests)).astype(np.int64))
    return Columns(arrival_ns=arrival, input_tokens=prompt, output_tokens=output)


def _iteration_ns(batch: int, prompt: Ints, output: Ints, latency: Latency) -> float:
    """Mean time of a synchronous iteration with ``batch`` decodes, when as many requests begin as end. Prompts come whole, a
    Poisson number an iteration: what fits under the floor is free, a lump above it is not."""
    weight = output / output.sum()
    context = float((weight * (prompt + output / 2)).sum())
    begin = batch / float(output.mean())
    prefill, chance, tokens = 0.0, math.exp(-begin), 0.0
    for count in range(60):
        prefill += chance * max(latency.floor_ns, latency.a_ns * (count > 0) + latency.b_ns * tokens)
        chance *= begin / (count + 1)
        tokens += float(prompt.mean())
    quadratic = latency.c_ns * begin * float((prompt.astype(float) ** 2).mean()) / 2
    return prefill + quadratic + latency.h0_ns + latency.d_ns * batch + latency.e_ns * batch * context

"""Measures exact batches on a model, and the host's part in a short replay: what a calibration starts from."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from replay_engine.buckets import bucket_sizes
from replay_engine.calibration.cases import BatchCase
from replay_engine.calibration.samples import EAGER_MODE, Samples, samples_of_cases, samples_of_rows
from replay_engine.config import ConfigError, SchedulerConfig, cdiv
from replay_engine.loop import Replay
from replay_engine.rules import Rules
from replay_engine.sinks import MemorySink
from replay_engine.tables import MODES
from replay_engine.torch_engine.batch import Layout, TableSizes
from replay_engine.torch_engine.clocks import DeviceClock
from replay_engine.torch_engine.engine import EngineOptions, Extent, build_engine, free_bytes
from replay_engine.torch_engine.engine_rows import EngineSink
from replay_engine.torch_engine.executor import TorchExecutor
from replay_engine.torch_engine.graphs import DecodeBuckets
from replay_engine.torch_engine.iteration import DeviceTables, IterationPass, Sampling
from replay_engine.torch_engine.kv_pool import KvPool, block_bytes
from replay_engine.torch_engine.model import DecoderModel
from replay_engine.types import BatchPlan, Pending, RequestBatch

__all__ = ["BatchBench", "Groups", "Measured", "as_samples", "measure_batches", "measure_replay"]

BLOCK = 16
WARM = 2
GAP_NS = 10**12
"""Between groups of requests: no group meets the next; idle time is skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One batch: its median device time in ns, half the range that the middle half of its repeats spans as a share of it, how it
    ran, and the rows a bucket added."""

    case: BatchCase
    device_ns: float
    spread: float
    mode: str
    padded: int


class BatchBench:
    """Room for any of ``cases`` on ``model``: each sequence has KV blocks of its own, which hold zeros.

    ``graphs``: batches of nothing but decodes run in buckets, as graphs on CUDA. ``ConfigError``: the KV of a batch does not fit,
    or a sequence is longer than the model allows.
    """

    def __init__(self, model: DecoderModel, cases: Sequence[BatchCase], *, graphs: bool = False) -> None:
        self._model = model
        largest = max(cases, key=_blocks)
        longest = max(kv for case in cases for _, kv in case.shapes)
        if longest > model.shape.max_positions:
            raise ConfigError(f"case of {longest:,} tokens: {model.shape.name} has {model.shape.max_positions:,} positions")
        size = block_bytes(model.shape, BLOCK, model.dtype)
        if (needed := (_blocks(largest) + 1) * size) > 0.8 * free_bytes(model.device):
            raise ConfigError(f"case {largest.name[:80]}: {needed / 2**30:.1f} GiB of KV do not fit on {model.device}")
        pool = KvPool(model.shape, _blocks(largest) + 1, BLOCK, model.dtype, model.device)
        pool.kv.zero_()
        self.kv = pool.kv
        rows, decodes = max(len(case.shapes) for case in cases), max(len(case.decodes) for case in cases)
        self._tables = DeviceTables(TableSizes(rows=rows + 1, blocks=cdiv(longest, BLOCK), tokens=1), model.device)
        self._pass = IterationPass(model, pool, self._tables, Sampling(), max(1, decodes) + 16)
        self._clock = DeviceClock(model.device)
        self._packed = torch.zeros(4 * (decodes + 16), dtype=torch.int32, device=model.device)
        self._buckets = None
        if graphs and decodes:
            self._buckets = DecodeBuckets(self._pass, self._packed, bucket_sizes(decodes), self._tables.sizes.blocks)
            with torch.inference_mode():
                self._buckets.capture()

    def prepare(self, case: BatchCase) -> Callable[[], int]:
        """A function that runs ``case`` once and returns its device time in ns. Preparing another case ends its use."""
        self._fill_tables(case)
        bucket = self._buckets.fit(len(case.decodes)) if self._buckets is not None and not case.entries else None
        layout = _layout(case, bucket)
        packed = torch.from_numpy(_packed(case, layout))

        def once() -> int:
            with torch.inference_mode():
                self._clock.start()
                if bucket is not None and self._buckets is not None:
                    self._packed[: layout.size].copy_(packed)
                    self._buckets.run(bucket)
                elif layout.entries:
                    self._pass.mixed(packed.to(self._model.device), layout)
                else:
                    self._pass.decode(packed.to(self._model.device), layout.decodes, layout.decode_blocks)
                self._clock.stop()
                if self._model.device.type == "cuda":
                    torch.cuda.current_stream(self._model.device).synchronize()
                return self._clock.read()

        return once

    def mode(self, case: BatchCase) -> tuple[str, int]:
        """How ``case`` runs, and the rows its bucket adds."""
        bucket = self._buckets.fit(len(case.decodes)) if self._buckets is not None and not case.entries else None
        if bucket is None or self._buckets is None:
            return EAGER_MODE, 0
        return "graph" if self._buckets.captured else "padded", bucket - len(case.decodes)

    def _fill_tables(self, case: BatchCase) -> None:
        """Row i + 1 is the i-th sequence's, decodes first."""
        table = np.zeros((self._tables.sizes.rows, self._tables.sizes.blocks), np.int32)
        at = 1
        for row, kv in enumerate([*case.decodes, *(kv for _, kv in case.entries)], start=1):
            count = cdiv(kv, BLOCK)
            table[row, :count] = np.arange(at, at + count)
            at += count
        self._tables.blocks.copy_(torch.from_numpy(table))


def _blocks(case: BatchCase) -> int:
    return sum(cdiv(kv, BLOCK) for _, kv in case.shapes)


def _layout(case: BatchCase, bucket: int | None) -> Layout:
    decodes, entries = case.decodes, case.entries
    rows = len(decodes) if bucket is None else bucket
    return Layout(
        decodes=rows, padding=rows - len(decodes), tokens=rows + case.tokens, entries=len(entries),
        samples=len(case.shapes) if entries else 0, decode_blocks=max((cdiv(kv, BLOCK) for kv in decodes), default=0),
        prefill_blocks=max((cdiv(kv, BLOCK) for _, kv in entries), default=0),
        max_query_len=max((query for query, _ in entries), default=0),
    )  # fmt: skip


def _packed(case: BatchCase, layout: Layout) -> npt.NDArray[np.int32]:
    """The iteration's packed buffer, as ``Layout`` describes it; every token is a known one, every entry samples."""
    decodes, entries = case.decodes, case.entries
    head = np.zeros((4, layout.tokens), np.int32)
    head[0] = 1 + np.arange(layout.tokens) % 97
    head[2] = -1
    count = len(decodes)
    head[1, :count], head[2, :count] = np.arange(1, count + 1), np.array(decodes, np.int32) - 1
    starts, at = [0], layout.decodes
    for row, (query, kv) in enumerate(entries, start=count + 1):
        head[1, at : at + query], head[2, at : at + query] = row, np.arange(kv - query, kv)
        at += query
        starts.append(at - layout.decodes)
    if not entries:
        return head.ravel()
    rows = list(range(count + 1, count + 1 + len(entries)))
    sampled = [*range(count), *(layout.decodes + end - 1 for end in starts[1:])]
    tail = [*starts, *rows, *(kv for _, kv in entries), *sampled, *range(1, len(case.shapes) + 1), *[0] * layout.samples]
    return np.concatenate((head.ravel(), np.array(tail, np.int32)))


def measure_batches(
    model: DecoderModel, cases: Sequence[BatchCase], *, repeats: int = 7, graphs: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Measured]:  # fmt: skip
    """Each batch ``repeats`` times in several turns, so that a slow moment of the machine does not fall on one batch alone."""
    bench = BatchBench(model, cases, graphs=graphs)
    times: list[list[int]] = [[] for _ in cases]
    turns = min(3, repeats)
    for turn in range(turns):
        each = repeats // turns + (turn < repeats % turns)
        for at, case in enumerate(cases):
            once = bench.prepare(case)
            for _ in range(WARM if not turn else 1):
                once()
            times[at] += [once() for _ in range(each)]
            if progress is not None:
                progress(turn * len(cases) + at + 1, turns * len(cases))
    found = []
    for case, spans in zip(cases, times, strict=True):
        middle = statistics.median(spans)
        low, high = np.quantile(spans, (0.25, 0.75)).tolist()
        mode, padded = bench.mode(case)
        found.append(Measured(case=case, device_ns=middle, spread=(high - low) / 2 / middle, mode=mode, padded=padded))
    return found


def as_samples(measured: Sequence[Measured]) -> Samples:
    """One row per batch."""
    return samples_of_cases(
        [each.case for each in measured], [each.device_ns for each in measured], [each.padded for each in measured],
        [each.mode for each in measured],
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Requests in groups of growing size that never meet: ``sizes`` of them, arriving ``gap_ns`` apart within a group; lengths
    are drawn, log-uniform, up to ``prompt`` and ``output``, from ``seed``."""

    sizes: tuple[int, ...]
    prompt: int
    output: int
    gap_ns: int
    seed: int = 0

    @property
    def total(self) -> int:
        return sum(self.sizes)

    def batches(self) -> Iterator[RequestBatch]:
        n = self.total
        draw = np.random.default_rng(self.seed)
        group = np.repeat(np.arange(len(self.sizes)), self.sizes)
        within = np.concatenate([np.arange(size) for size in self.sizes])
        lengths = [np.exp(draw.uniform(np.log(4), np.log(most + 1), n)).astype(np.int64) for most in (self.prompt, self.output)]
        yield RequestBatch(
            index=np.arange(n), arrival_ns=group * GAP_NS + within * self.gap_ns, prompt_tokens=lengths[0],
            output_tokens=lengths[1], priority=np.zeros(n, np.int64), max_tokens=np.full(n, -1, np.int64),
        )  # fmt: skip


class _Noting:
    """The executor, and beside each plan how many joined or left the decode set, which no row tells."""

    def __init__(self, executor: TorchExecutor) -> None:
        self._executor = executor
        self.watch = executor.watch
        self.changes: dict[int, int] = {}

    def submit(self, plan: BatchPlan) -> Pending:
        self.changes[plan.iteration] = len(plan.joined) + len(plan.left)
        return self._executor.submit(plan)


def measure_replay(model: DecoderModel, source: Groups, config: SchedulerConfig, options: EngineOptions) -> Samples:
    """``source`` replayed on ``model``: one row per iteration, with its host time."""
    extent = Extent(sequence=source.prompt + source.output, output=source.output, requests=source.total)
    engine = build_engine(model, config, Rules(), extent, options)
    noting, sink = _Noting(engine.executor), MemorySink()
    replay = Replay(source, config, noting, EngineSink(sink, engine.executor.notes), pool=engine.pool)
    state = replay.run()
    if state != "finished":
        raise ConfigError(f"calibration: the replay ended as {replay.failure or state}")
    rows = sink.table("iterations")
    columns: dict[str, Any] = {name: rows[name] for name in rows.dtype.names or ()}
    columns["mode"] = np.array([MODES[code] for code in rows["mode"].tolist()], np.str_)
    changes = np.array([noting.changes[number] for number in rows["iteration"].tolist()], np.float64)
    return samples_of_rows(columns, changes)

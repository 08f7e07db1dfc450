"""What the benchmark times: each op at the shapes of two models, with the bytes it must move and the operations it must do.

Bytes are the least that memory must carry: every input read once, every result written once. Operations of attention count
products and sums of the scores and values a query may see, no masked ones. The floors are targets for one H200; elsewhere they
say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch

import replay_kernels as ops
from replay_kernels.launch import DECODE_TRIALS, PREFILL_TRIALS, Tiles
from replay_kernels.problems import Heads

__all__ = ["Floor", "Sizes", "Workload", "workloads"]


class Floor(NamedTuple):
    """A target: ``percent`` of a copy's rate or ``tflops`` to reach, ``microseconds`` not to exceed."""

    unit: str
    value: float


class Sizes(NamedTuple):
    """One set of shapes, of which there is a full and a tiny one."""

    models: dict[str, Heads]
    decodes: tuple[tuple[int, int], ...]
    chunks: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]
    hidden: int
    intermediate: int
    vocab: int
    samples: tuple[int, ...]
    copied_blocks: int
    block_elements: int


FULL = Sizes(
    models={"llama-3.1-8b": Heads(32, 8, 128), "qwen3-0.6b": Heads(16, 8, 128)},
    decodes=((1, 8192), (16, 4096), (32, 8192), (64, 4096), (256, 1024)),
    chunks=((2048, 2048), (2048, 8192), (2048, 16384), (512, 8192), (128, 8192)),
    rows=(1, 256, 4096, 8192),
    hidden=4096,
    intermediate=14336,
    vocab=151_936,
    samples=(1, 64, 256),
    copied_blocks=64,
    block_elements=32 * 2 * 16 * 8 * 128,
)
TINY = Sizes(
    models={"tiny": Heads(4, 2, 16)},
    decodes=((2, 40),),
    chunks=((9, 33),),
    rows=(3,),
    hidden=48,
    intermediate=64,
    vocab=101,
    samples=(2,),
    copied_blocks=2,
    block_elements=64,
)
BLOCK_SIZE = 16


class Workload(NamedTuple):
    """One line of the benchmark; ``floor`` None where nothing is promised. ``prepare`` makes the inputs and returns the call."""

    name: str
    shape: str
    prepare: Callable[[], Callable[[], object]]
    moved: int
    operations: int
    floor: Floor | None


def workloads(device: str, dtype: torch.dtype, tiny: bool, trials: bool) -> Iterator[Workload]:
    """All of them; ``trials`` adds the other tiles of ``launch`` at one shape of each attention op."""
    sizes = TINY if tiny else FULL
    for model, heads in sizes.models.items():
        for seqs, kv_len in sizes.decodes:
            yield _decode(model, heads, seqs, kv_len, device, dtype)
        for query_len, kv_len in sizes.chunks:
            yield _prefill(model, heads, query_len, kv_len, device, dtype)
    yield from _elementwise(sizes, device, dtype)
    yield from _sampling(sizes, device, dtype)
    yield _copy(sizes, device, dtype)
    if trials:
        heads = next(iter(sizes.models.values()))
        for tiles in DECODE_TRIALS:
            yield _decode("trial", heads, *sizes.decodes[-2:][0], device, dtype, tiles)
        for tiles in PREFILL_TRIALS:
            yield _prefill("trial", heads, *sizes.chunks[:2][-1], device, dtype, tiles)


def _paged(
    seqs: int, kv_len: int, heads: Heads, device: str, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One layer's cache of random KV, the block table (shuffled), and the lengths."""
    width = -(-kv_len // BLOCK_SIZE)
    pool = torch.randn(seqs * width, 1, 2, BLOCK_SIZE, heads.kv_heads, heads.head_dim, device=device).to(dtype)
    table = torch.randperm(seqs * width, device=device).to(torch.int32).view(seqs, width)
    return pool[:, 0], table, torch.full((seqs,), kv_len, dtype=torch.int32, device=device)


def _decode(
    model: str, heads: Heads, seqs: int, kv_len: int, device: str, dtype: torch.dtype, tiles: Tiles | None = None
) -> Workload:
    splits = ops.num_splits(seqs, heads.kv_heads, kv_len)

    def prepare() -> Callable[[], object]:
        cache, table, lens = _paged(seqs, kv_len, heads, device, dtype)
        q = torch.randn(seqs, heads.heads, heads.head_dim, device=device).to(dtype)
        scratch = ops.decode_scratch(seqs, heads.heads, heads.head_dim, device)
        out, scale = torch.empty_like(q), heads.head_dim**-0.5
        if tiles is None or not q.is_cuda:
            return partial(ops.paged_decode_attention, out, q, cache, table, lens, scratch, num_splits=splits)
        from replay_kernels.decode_attention_kernel import launch

        return partial(launch, out, q, cache, table, lens, scratch, splits, scale, tiles)

    size = torch.finfo(dtype).bits // 8
    moved = size * seqs * heads.head_dim * (2 * kv_len * heads.kv_heads + 2 * heads.heads)
    floor: Floor | None = None
    if seqs >= 16 and kv_len >= 4096:
        floor = Floor("percent", 75)
    elif seqs == 1 and kv_len >= 8192:
        floor = Floor("percent", 45)
    shape = f"{model} {seqs}*1@{kv_len} splits={splits}" + (f" {_named(tiles)}" if tiles else "")
    return Workload("decode attention", shape, prepare, moved, 4 * seqs * heads.heads * heads.head_dim * kv_len, floor)


def _prefill(
    model: str, heads: Heads, query_len: int, kv_len: int, device: str, dtype: torch.dtype, tiles: Tiles | None = None
) -> Workload:
    def prepare() -> Callable[[], object]:
        cache, table, lens = _paged(1, kv_len, heads, device, dtype)
        q = torch.randn(query_len, heads.heads, heads.head_dim, device=device).to(dtype)
        starts = torch.tensor([0, query_len], dtype=torch.int32, device=device)
        out = torch.empty_like(q)
        if tiles is None or not q.is_cuda:
            return partial(ops.paged_prefill_attention, out, q, cache, table, starts, lens, max_query_len=query_len)
        from replay_kernels.prefill_attention_kernel import launch

        return partial(launch, out, q, cache, table, starts, lens, query_len, heads.head_dim**-0.5, tiles)

    seen = query_len * (kv_len - query_len) + query_len * (query_len + 1) // 2
    size = torch.finfo(dtype).bits // 8
    moved = size * heads.head_dim * (2 * kv_len * heads.kv_heads + 2 * query_len * heads.heads)
    floor = Floor("tflops", 300) if query_len >= 2048 and heads.heads >= 32 else None
    shape = f"{model} chunk={query_len}@{kv_len}" + (f" {_named(tiles)}" if tiles else "")
    return Workload("prefill attention", shape, prepare, moved, 4 * heads.heads * heads.head_dim * seen, floor)


def _named(tiles: Tiles) -> str:
    return f"{tiles.rows}x{tiles.tile} {tiles.warps}w{tiles.stages}s"


def _streaming_floor(rows: int) -> Floor | None:
    return Floor("percent", 80) if rows >= 4096 else Floor("microseconds", 6) if rows <= 256 else None


def _elementwise(sizes: Sizes, device: str, dtype: torch.dtype) -> Iterator[Workload]:
    size = torch.finfo(dtype).bits // 8
    heads = next(iter(sizes.models.values()))

    def norm(rows: int) -> Callable[[], object]:
        x, residual = (torch.randn(rows, sizes.hidden, device=device).to(dtype) for _ in range(2))
        return partial(ops.rms_norm, x, torch.ones(sizes.hidden, device=device).to(dtype), residual, eps=1e-6, out=x.clone())

    def silu(rows: int) -> Callable[[], object]:
        both = torch.randn(rows, 2 * sizes.intermediate, device=device).to(dtype)
        return partial(ops.silu_mul, both, both.new_empty(rows, sizes.intermediate))

    def rope(rows: int) -> Callable[[], object]:
        packed = torch.randn(rows, heads.heads + 2 * heads.kv_heads, heads.head_dim, device=device).to(dtype)
        q, k, v = torch.split(packed, [heads.heads, heads.kv_heads, heads.kv_heads], 1)
        cache, _, _ = _paged(1, rows, heads, device, dtype)
        place, weight = torch.arange(rows, device=device), torch.ones(heads.head_dim, device=device).to(dtype)
        angles = torch.rand(rows, heads.head_dim, device=device)
        write = ops.qk_norm_rope_kv_write
        return partial(write, q, k, v, place, place.flip(0), angles, cache, q_weight=weight, k_weight=weight)

    for rows in sizes.rows:
        floor = _streaming_floor(rows)
        moved = 4 * rows * sizes.hidden * size
        yield Workload("rms_norm, residual", f"{rows} x {sizes.hidden}", partial(norm, rows), moved, 0, floor)
        moved = 3 * rows * sizes.intermediate * size
        yield Workload("silu_mul", f"{rows} x {sizes.intermediate}", partial(silu, rows), moved, 0, floor)
        moved = rows * heads.head_dim * (size * (2 * heads.heads + 4 * heads.kv_heads) + 4)
        shape = f"{rows} x {heads.heads}/{heads.kv_heads} heads of {heads.head_dim}"
        yield Workload("qk_norm_rope_kv_write", shape, partial(rope, rows), moved, 0, floor)


def _sampling(sizes: Sizes, device: str, dtype: torch.dtype) -> Iterator[Workload]:
    def prepare(rows: int, temperature: float) -> Callable[[], object]:
        logits = torch.randn(rows, sizes.vocab, device=device).to(dtype)
        keys = torch.arange(rows, device=device)
        heat = torch.full((rows,), temperature, device=device)
        return partial(ops.gumbel_argmax, logits, heat, keys, keys, torch.empty_like(keys))

    for rows in sizes.samples:
        for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
            moved = rows * sizes.vocab * (torch.finfo(dtype).bits // 8)
            floor = Floor("microseconds", 30) if rows == 256 else None
            shape = f"{rows} x {sizes.vocab}"
            yield Workload(f"gumbel_argmax, {name}", shape, partial(prepare, rows, temperature), moved, 0, floor)


def _copy(sizes: Sizes, device: str, dtype: torch.dtype) -> Workload:
    def prepare() -> Callable[[], object]:
        pools = [torch.zeros(2 * sizes.copied_blocks, sizes.block_elements, device=device, dtype=dtype) for _ in range(2)]
        pairs = torch.randperm(2 * sizes.copied_blocks, device=device).view(-1, 2)
        return partial(ops.copy_blocks, *pools, pairs)

    moved = 2 * sizes.copied_blocks * sizes.block_elements * (torch.finfo(dtype).bits // 8)
    return Workload("copy_blocks", f"{sizes.copied_blocks} x {sizes.block_elements}", prepare, moved, 0, None)

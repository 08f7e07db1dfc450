"""Checks that only a device can make: offsets past 2^31 elements, and graphs that are replayed with other lengths than they
saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

import replay_kernels as ops
from replay_kernels.findings import Finding, same
from replay_kernels.problems import AttentionProblem, Heads, attention_problem

__all__ = ["device_checks", "offset_checks"]


def device_checks(device: str, dtype: torch.dtype = torch.bfloat16) -> Iterator[Finding]:
    """All of them. The offset checks need 10 GiB of device memory; without it a finding says that they were skipped."""
    yield from _graph_checks(device, dtype)
    free = torch.cuda.mem_get_info(device)[0]
    if free < 10 * 2**30:
        yield Finding("offsets past 2^31 elements", True, f"skipped: {free / 2**30:.1f} GiB free, 10 needed")
        return
    yield from offset_checks(device, dtype)


def _graph_checks(device: str, dtype: torch.dtype) -> Iterator[Finding]:
    problem = attention_problem(tuple((1, 100 + 450 * i) for i in range(8)), Heads(32, 8, 128), dtype=dtype, device=device)
    rows = problem.rows
    args = (problem.q[:rows], problem.kv_cache, problem.block_table[:rows])
    lens, out = problem.kv_lens[:rows].clone(), problem.out[:rows].clone()
    scratch = ops.decode_scratch(rows, 32, 128, device)
    for splits in (1, 4):
        lens.copy_(problem.kv_lens[:rows])
        graph = _captured(partial(ops.paged_decode_attention, out, *args, lens, scratch, num_splits=splits))
        shorter = torch.tensor([1, 0, 999, 17, 64, 65, 2000, 0], dtype=torch.int32, device=device)
        lens.copy_(shorter)
        out.fill_(float("nan"))
        graph.replay()
        eager = ops.paged_decode_attention(torch.full_like(out, float("nan")), *args, shorter, scratch, num_splits=splits)
        yield same(f"a graph of decode attention in {splits} KV splits, replayed with other lengths", out, eager)


def _captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The call in a CUDA graph, compiled and warmed up on a side stream first."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def offset_checks(device: str, dtype: torch.dtype, elements: int = 2**31) -> Iterator[Finding]:
    """A small problem against itself at the end of tensors of more than ``elements`` elements."""
    heads, block_size = Heads(8, 4, 128), 16
    small = attention_problem(((5, 70), (1, 33), (1, 100)), heads, dtype=dtype, device=device, layers=1)
    blocks = elements // (2 * 2 * block_size * heads.kv_heads * heads.head_dim) + 64
    pool = torch.empty(blocks, 2, 2, block_size, heads.kv_heads, heads.head_dim, dtype=dtype, device=device)
    count = small.kv_cache.shape[0]
    pool[-count:, 1] = small.kv_cache
    table = torch.where(small.block_table < count, small.block_table + (blocks - count), small.block_table)
    far = small._replace(kv_cache=pool[:, 1], block_table=table)
    for name, attend in (("prefill", _prefilled), ("decode", _decoded)):
        yield same(f"{name} attention past 2^31 elements", attend(far), attend(small))
    slots = torch.tensor([(blocks - 1) * block_size + 3], device=device)
    q, k, v = (torch.randn(1, n, heads.head_dim, device=device).to(dtype) for n in (8, 4, 4))
    unturned = torch.cat((torch.ones(4, 64), torch.zeros(4, 64)), 1).to(device)
    ops.qk_norm_rope_kv_write(q, k, v, torch.tensor([1], device=device), slots, unturned, pool[:, 1])
    yield same("KV written past 2^31 elements", pool[-1, 1, :, 3], torch.stack((k[0], v[0])))
    ops.copy_blocks(pool, pool, torch.tensor([[blocks - 1, 0], [blocks - 2, 1]], device=device))
    yield same("blocks copied from past 2^31 elements", pool[:2], pool[[blocks - 1, blocks - 2]])
    del pool, far
    yield from _row_offset_checks(device, dtype, elements)


def _row_offset_checks(device: str, dtype: torch.dtype, elements: int) -> Iterator[Finding]:
    width = 4096
    rows = torch.full((elements // width + 2, width), -1.0, dtype=dtype, device=device)
    rows[-1, 7] = 1.0
    zeros = torch.zeros(len(rows), dtype=torch.int64, device=device)
    yield same("logits past 2^31 elements", ops.gumbel_argmax(rows, zeros.float(), zeros, zeros)[-1:], zeros[:1] + 7)
    last = rows[-1:].clone()
    gated = ops.silu_mul(rows)[-1:]
    yield same("silu_mul past 2^31 elements", gated, ops.silu_mul(last))
    weight = torch.ones(width, dtype=dtype, device=device)
    ops.rms_norm(rows, weight, eps=0.0, out=rows)
    yield same("RMSNorm past 2^31 elements", rows[-1:], ops.rms_norm(last, weight, eps=0.0))


def _prefilled(problem: AttentionProblem) -> torch.Tensor:
    return ops.paged_prefill_attention(problem.out.clone(), *problem[1:6], max_query_len=5)


def _decoded(problem: AttentionProblem) -> torch.Tensor:
    seqs = problem.kv_lens.shape[0]
    return ops.paged_decode_attention(
        problem.out.clone()[:seqs], problem.q[:seqs], problem.kv_cache, problem.block_table, problem.kv_lens
    )

"""Checks of the attention ops against their references, on the shared table of cases. NaN lies wherever nothing may be read or
written."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import softmax

import replay_kernels as ops
from replay_kernels.cases import Case, cases
from replay_kernels.findings import Finding, same, within, within_twice
from replay_kernels.problems import AttentionProblem, Heads, attention_problem

__all__ = ["attention_checks", "plain_attention"]

# For each tier: geometry, block size, and the dtypes that it is checked in: on a device each costs three compilations.
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
GEOMETRIES: dict[str, tuple[tuple[Heads, int, tuple[torch.dtype, ...]], ...]] = {
    "interp": ((Heads(4, 2, 16), 16, FLOATS), (Heads(6, 2, 32), 8, FLOATS), (Heads(2, 2, 16), 32, FLOATS)),
    "gpu": (
        (Heads(32, 8, 128), 16, FLOATS[2:]),
        (Heads(16, 8, 128), 16, FLOATS[2:]),
        (Heads(28, 4, 128), 32, FLOATS[2:]),
        (Heads(8, 4, 256), 16, FLOATS[2:]),
        (Heads(8, 2, 64), 16, FLOATS),
    ),
}
SPLITS = (1, 2, 8, 16)
SPLIT_CASE = "decodes, one much longer"


def attention_checks(tier: str, device: str, dtypes: tuple[torch.dtype, ...]) -> Iterator[Finding]:
    """All attention checks of a tier (``interp`` or ``gpu``); the backend in force is what is checked."""
    for dtype in dtypes:
        for index, (heads, block_size, checked) in enumerate(GEOMETRIES[tier]):
            # Small machines: every case in the first geometry, the mixed ones in the others.
            chosen = [
                case for case in cases(tier) if tier == "gpu" or index == 0 or "beside" in case.name or "aligned" in case.name
            ]
            for case in chosen if dtype in checked else ():
                yield from _case_checks(case, heads, block_size, dtype, device)
        heads = next(heads for heads, _, checked in GEOMETRIES[tier] if dtype in checked)
        yield from _split_checks(heads, dtype, device)
        yield from _table_checks(heads, dtype, device)


def _case_checks(case: Case, heads: Heads, block_size: int, dtype: torch.dtype, device: str) -> Iterator[Finding]:
    problem = attention_problem(case.entries, heads, block_size=block_size, dtype=dtype, device=device)
    name = f"{case.name}, {heads.heads}/{heads.kv_heads} heads of {heads.head_dim}, {str(dtype)[6:]}"
    want, plain = _references(problem, block_size)
    for op, out in _results(problem, case):
        rows = problem.rows
        yield within(f"{op}: {name}", out[:rows], want[:rows])
        if dtype == torch.bfloat16:
            yield within_twice(f"{op}, 2x rule: {name}", out[:rows], want[:rows], plain[:rows])
        yield same(f"{op}, padding: {name}", out[rows:], problem.out[rows : len(out)])


def _results(problem: AttentionProblem, case: Case) -> Iterator[tuple[str, torch.Tensor]]:
    longest = max(query_len for query_len, _ in case.entries)
    yield "prefill attention", ops.paged_prefill_attention(problem.out.clone(), *problem[1:6], max_query_len=longest)
    if all(query_len == 1 for query_len, _ in case.entries):
        yield "decode attention", _decoded(problem, 1)


def _decoded(problem: AttentionProblem, splits: int) -> torch.Tensor:
    seqs, (_, heads, dim) = problem.kv_lens.shape[0], problem.q.shape
    # Larger than needed and poisoned: its strides are not the batch's, and what is not written must not be read.
    scratch = ops.decode_scratch(seqs + 3, heads, dim, problem.q.device)
    scratch.partial.fill_(float("nan"))
    scratch.lse.fill_(float("nan"))
    args = (problem.out.clone()[:seqs], problem.q[:seqs], problem.kv_cache, problem.block_table, problem.kv_lens, scratch)
    return ops.paged_decode_attention(*args, num_splits=splits)


def _split_checks(heads: Heads, dtype: torch.dtype, device: str) -> Iterator[Finding]:
    entries = next(case.entries for case in cases("gpu") if case.name == SPLIT_CASE)
    problem = attention_problem(entries, heads, dtype=dtype, device=device)
    want, _ = _references(problem, 16)
    for splits in SPLITS if dtype != torch.float16 else SPLITS[2:3]:
        name = f"decode attention in {splits} KV splits, {str(dtype)[6:]}"
        got = _decoded(problem, splits)
        yield within(name, got[: problem.rows], want[: problem.rows])
        yield same(f"{name}, padding", got[problem.rows :], problem.out[problem.rows : len(got)])
        yield same(f"{name}, twice the same bits", _decoded(problem, splits), got)


def _table_checks(heads: Heads, dtype: torch.dtype, device: str) -> Iterator[Finding]:
    problem = attention_problem(((1, 40), (1, 40)), heads, dtype=dtype, device=device)
    before = _decoded(problem, 2)
    problem.block_table[0, 1] = problem.block_table[1, 1]
    after = _decoded(problem, 2)
    yield same(f"a sequence does not depend on another's blocks, {str(dtype)[6:]}", after[1], before[1])
    moved = not torch.equal(after[0], before[0])
    yield Finding(f"a block table entry decides what is read, {str(dtype)[6:]}", moved, "changed" if moved else "unchanged")


def _references(problem: AttentionProblem, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference in float32, its sums as they are written, and the same in the problem's dtype (only for the 2x rule)."""
    wide = (problem.out.float(), problem.q.float(), problem.kv_cache.float(), *problem[3:6])
    # Other backends of this function may take shortcuts in the precision of float32 products.
    with ops.use_backend("reference"), sdpa_kernel(SDPBackend.MATH):
        want = ops.paged_prefill_attention(*wide, max_query_len=int(problem.q.shape[0]))
    return want, plain_attention(problem, block_size) if problem.q.dtype == torch.bfloat16 else want


def plain_attention(problem: AttentionProblem, block_size: int) -> torch.Tensor:
    """Attention as anyone would write it, every intermediate in the dtype of the inputs: what rounding alone costs."""
    out = problem.out.clone()
    starts, group = problem.cu_query_lens.tolist(), problem.q.shape[1] // problem.kv_cache.shape[3]
    for row, kv_len in enumerate(problem.kv_lens.tolist()):
        queries = problem.q[starts[row] : starts[row + 1]]
        blocks = problem.block_table[row, : -(-kv_len // block_size)].long()
        kv = problem.kv_cache[blocks].transpose(0, 1).flatten(1, 2)[:, :kv_len].repeat_interleave(group, dim=2)
        scores = torch.einsum("qhd,khd->hqk", queries, kv[0]) * queries.shape[-1] ** -0.5
        seen = torch.arange(kv_len - len(queries), kv_len, device=out.device)
        hidden = torch.arange(kv_len, device=out.device) > seen[:, None]
        weights = softmax(scores.masked_fill(hidden, float("-inf")), -1)
        out[starts[row] : starts[row + 1]] = torch.einsum("hqk,khd->qhd", weights, kv[1])
    return out

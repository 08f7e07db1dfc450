"""Checks of the other ops against float64, or against their references where those are exact. NaN lies around every result."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import replay_kernels as ops
from replay_kernels.findings import Finding, rounds_once, same, untouched
from replay_kernels.problems import poisoned
from replay_kernels.sampling import gumbel_noise

__all__ = ["op_checks"]

# Odd sizes on purpose: no multiple of a tile, of a warp or of 16 bytes.
SIZES = {"interp": ((3, 48), (2, 101)), "gpu": ((3, 48), (2, 101), (257, 3584), (1, 4096))}
VOCABS = {"interp": (101, 192), "gpu": (101, 32_000, 151_936)}


def op_checks(tier: str, device: str, dtypes: tuple[torch.dtype, ...]) -> Iterator[Finding]:
    """All checks of a tier (``interp`` or ``gpu``) outside of attention; the backend in force is what is checked."""
    for dtype in dtypes:
        for rows, size in SIZES[tier]:
            yield from _norm_checks(rows, size, dtype, device)
            yield from _silu_checks(rows, size, dtype, device)
        for normed in (False, True):
            for index_type in (torch.int32, torch.int64):
                yield from _rope_checks(normed, index_type, dtype, device)
        yield from _copy_checks(dtype, device)
        for vocab in VOCABS[tier]:
            yield from _sampling_checks(vocab, dtype, device)
            yield from _edge_checks(vocab, dtype, device)


def _random(*shape: int, dtype: torch.dtype, device: str, seed: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=made).to(device, dtype)


def _norm_checks(rows: int, size: int, dtype: torch.dtype, device: str) -> Iterator[Finding]:
    name = f"rms_norm of {rows} x {size}, {str(dtype)[6:]}"
    # Rows lie apart, as in a slice of something wider.
    x = _random(rows, size + 8, dtype=dtype, device=device, seed=1)[:, :size]
    weight = _random(size, dtype=dtype, device=device, seed=2)
    residual = _random(rows, size, dtype=dtype, device=device, seed=3)
    total = (x.double() + residual.double()).to(dtype)
    for added, source in ((None, x), (residual, total)):
        wide = source.double()
        want = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * weight.double()
        around = poisoned(rows, size + 5, dtype=dtype, device=device)
        got = ops.rms_norm(x, weight, added, eps=1e-5, out=around[:, :size])
        label = name if added is None else f"{name}, with residual"
        yield rounds_once(label, got, want)
        yield untouched(f"{label}, padding", around[:, size:])
    yield same(f"{name}: the residual is the rounded sum", residual, total)


def _silu_checks(rows: int, size: int, dtype: torch.dtype, device: str) -> Iterator[Finding]:
    name = f"silu_mul of {rows} x {size}, {str(dtype)[6:]}"
    both = _random(rows, 2 * size, dtype=dtype, device=device, seed=4)
    gate, up = both.double().chunk(2, -1)
    around = poisoned(rows, size + 3, dtype=dtype, device=device)
    got = ops.silu_mul(both, around[:, :size])
    yield rounds_once(name, got, gate / (1 + torch.exp(-gate)) * up)
    yield untouched(f"{name}, padding", around[:, size:])


def _rope_checks(normed: bool, index_type: torch.dtype, dtype: torch.dtype, device: str) -> Iterator[Finding]:
    heads, kv_heads, dim, block_size = 5, 3, 16, 8
    name = f"qk_norm_rope_kv_write{', normed' if normed else ''}, {str(index_type)[6:]}, {str(dtype)[6:]}"
    packed = _random(6, (heads + 2 * kv_heads) * dim, dtype=dtype, device=device, seed=5)
    pool = poisoned(6, 3, 2, block_size, kv_heads, dim, dtype=dtype, device=device)
    positions = torch.tensor([0, 7, 8, 30, 2, 9], dtype=index_type, device=device)
    slots = torch.tensor([9, -1, 47, 0, 16, -1], dtype=index_type, device=device)
    table = ops.rope_table(10000.0 ** (-torch.arange(0, dim, 2) / dim), 32).to(device)
    weights = [_random(dim, dtype=dtype, device=device, seed=seed) if normed else None for seed in (6, 7)]
    results = []
    for name_of_backend in (ops.backend(), "reference"):
        width = torch.float32 if name_of_backend == "reference" else dtype
        own, cache = packed.clone().to(width), pool.clone().to(width)
        q, k, v = (part.unflatten(-1, (-1, dim)) for part in own.split([heads * dim, kv_heads * dim, kv_heads * dim], -1))
        with ops.use_backend(name_of_backend):
            ops.qk_norm_rope_kv_write(q, k, v, positions, slots, table, cache[:, 1], q_weight=weights[0], k_weight=weights[1])
        results.append((q, k, cache))
    (q, k, cache), (want_q, want_k, want_cache) = results
    yield rounds_once(f"{name}: q", q, want_q)
    yield same(f"{name}: k is only read", k.float(), want_k)
    written = ~want_cache.isnan()
    yield rounds_once(f"{name}: KV in its slots", cache[written], want_cache[written])
    yield untouched(f"{name}: other slots, slot -1 and other layers", cache[~written])


def _copy_checks(dtype: torch.dtype, device: str) -> Iterator[Finding]:
    for shape in ((2, 8), (3, 5, 8)):
        src = _random(9, *shape, dtype=dtype, device=device, seed=8)
        around = poisoned(8, *shape, dtype=dtype, device=device)
        dst = around[1:]
        ops.copy_blocks(src, dst, torch.tensor([[8, 0], [-1, 1], [2, 6], [3, -1]], device=device))
        want = poisoned(7, *shape, dtype=dtype, device=device)
        want[0], want[6] = src[8], src[2]
        yield same(f"copy_blocks of {shape}, {str(dtype)[6:]}", dst, want)
        yield untouched(f"copy_blocks of {shape}, before the pool, {str(dtype)[6:]}", around[0])
        before = src.clone()
        ops.copy_blocks(src, src, torch.tensor([[0, 1], [4, 5]], dtype=torch.int32, device=device))
        before[1], before[5] = before[0], before[4]
        yield same(f"copy_blocks inside a pool of {shape}, {str(dtype)[6:]}", src, before)


def _sampling_checks(vocab: int, dtype: torch.dtype, device: str) -> Iterator[Finding]:
    name = f"gumbel_argmax over {vocab}, {str(dtype)[6:]}"
    rows = 6
    logits = _random(rows, vocab + 3, dtype=dtype, device=device, seed=9)[:, :vocab]
    temperature = torch.tensor([0.0, 1.0, 0.3, 0.0, 2.5, 1.0], device=device)
    seed = torch.tensor([1, -2, 2**40 + 3, 5, 2**63 - 1, 0], device=device)
    position = torch.tensor([0, 1, 70_000, 3, 4, 2**31 - 1], device=device)
    got = ops.gumbel_argmax(logits, temperature, seed, position)
    noise = gumbel_noise(seed, position, vocab)
    scores = torch.where(temperature[:, None] > 0, logits.float() / temperature.clamp(min=1e-9)[:, None] + noise, logits.float())
    behind = float((scores.max(-1).values - scores.gather(-1, got[:, None])[:, 0]).max())
    yield Finding(f"{name}: the highest score", behind < 1e-4, f"{behind:.1e} below the highest")
    alone = torch.cat([ops.gumbel_argmax(*(t[i : i + 1] for t in (logits, temperature, seed, position))) for i in (1, 4)])
    yield same(f"{name}: a row does not depend on its batch", alone, got[[1, 4]])
    yield same(f"{name}: int32 positions", ops.gumbel_argmax(logits, temperature, seed, position.int()), got)


def _edge_checks(vocab: int, dtype: torch.dtype, device: str) -> Iterator[Finding]:
    name = f"gumbel_argmax over {vocab}, {str(dtype)[6:]}"
    edges = torch.full((4, vocab), float("-inf"), dtype=dtype, device=device)
    # Equal ones in the same lane of a tile, and in different lanes.
    edges[0, vocab - 1], edges[1, 67::32], edges[1, 68], edges[2] = 1.0, 3.0, 3.0, float("nan")
    keys = torch.arange(4, device=device)
    tokens = ops.gumbel_argmax(edges, torch.tensor([1.0, 0.0, 1.0, 0.0], device=device), keys, keys)
    yield same(f"{name}: the only finite one, the first of equals", tokens[:2].cpu(), torch.tensor([vocab - 1, 67]))
    inside = bool(((tokens >= 0) & (tokens < vocab)).all())
    yield Finding(f"{name}: NaN and -inf lead to a token of the vocabulary", inside, f"tokens {tokens.tolist()}")

"""The Triton kernels of ``gumbel_argmax``: a program per row and run of the vocabulary, then one per row for its best run."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from replay_kernels import sampling
from replay_kernels.launch import launches

__all__ = ["best_run_kernel", "gumbel_kernel", "launch"]

GOLDEN, MIX_A, MIX_B = tl.constexpr(sampling.GOLDEN), tl.constexpr(sampling.MIX_A), tl.constexpr(sampling.MIX_B)


@triton.jit
def _finish(bits):
    bits = bits * MIX_A
    bits = (bits ^ (bits >> 15)) * MIX_B
    return bits ^ (bits >> 16)


@triton.jit
def _mixed(bits):
    bits = bits + GOLDEN
    return _finish(bits ^ (bits >> 16))


@triton.jit(do_not_specialize_on_alignment=["temperature", "seed", "position"])
def gumbel_kernel(
    best,
    where_best,
    logits,
    temperature,
    seed,
    position,
    stride_logits,
    VOCAB: tl.constexpr,
    RUN: tl.constexpr,
    TILE: tl.constexpr,
    RUNS: tl.constexpr,
):
    """The best score of RUN logits of a row and its token, the smallest among equals. At temperature 0 no noise is drawn."""
    row, run = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heat = tl.load(temperature + row)
    key = tl.load(seed + row)
    first_key = _mixed(_mixed(_mixed(key.to(tl.uint32)) ^ (key >> 32).to(tl.uint32)) ^ tl.load(position + row).to(tl.uint32))
    second_key = _mixed(first_key ^ GOLDEN)
    lane = tl.arange(0, TILE)
    top = tl.full((TILE,), float("-inf"), tl.float32)
    # Where nothing is above -inf, NaN included, the smallest token of the run stands: it is within the vocabulary.
    token_of_top = run * RUN + lane
    for first in tl.range(run * RUN, run * RUN + RUN, TILE):
        token = first + lane
        score = tl.load(logits + row * stride_logits + token, mask=token < VOCAB, other=float("-inf")).to(tl.float32)
        if heat > 0:
            bits = token.to(tl.uint32) * GOLDEN + first_key
            bits = _finish(bits ^ (bits >> 16) ^ second_key)
            uniform = ((bits >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
            score = score / heat - tl.log(-tl.log(uniform))
        better = score > top
        top = tl.where(better, score, top)
        token_of_top = tl.where(better, token, token_of_top)
    highest = tl.max(top, 0)
    tl.store(best + row * RUNS + run, highest)
    tl.store(where_best + row * RUNS + run, tl.min(tl.where(top == highest, token_of_top, VOCAB - 1), 0))


@triton.jit(do_not_specialize_on_alignment=["out"])
def best_run_kernel(out, best, where_best, RUNS: tl.constexpr, WIDTH: tl.constexpr, VOCAB: tl.constexpr):
    """The best of a row's runs; WIDTH is RUNS rounded up to a power of two."""
    row, run = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = run < RUNS
    score = tl.load(best + row * RUNS + run, mask=inside, other=float("-inf"))
    token = tl.load(where_best + row * RUNS + run, mask=inside, other=VOCAB - 1)
    token = tl.min(tl.where(score == tl.max(score, 0), token, VOCAB - 1), 0)
    tl.store(out + row, token.to(tl.int64))


def launch(
    out: torch.Tensor, logits: torch.Tensor, temperature: torch.Tensor, seed: torch.Tensor, position: torch.Tensor
) -> None:
    """Launches the kernels (arguments as ``gumbel_argmax`` has them)."""
    rows, vocab = logits.shape
    if rows == 0:
        return
    chosen = launches(logits.device)
    runs = triton.cdiv(vocab, chosen.vocab)
    best = torch.empty(rows, runs, dtype=torch.float32, device=logits.device)
    where_best = torch.empty(rows, runs, dtype=torch.int32, device=logits.device)
    gumbel_kernel[(rows, runs)](
        best, where_best, logits, temperature, seed, position, logits.stride(0),
        VOCAB=vocab, RUN=chosen.vocab, TILE=chosen.vocab_tile, RUNS=runs, num_warps=4,
    )  # fmt: skip
    best_run_kernel[(rows,)](out, best, where_best, RUNS=runs, WIDTH=triton.next_power_of_2(runs), VOCAB=vocab, num_warps=1)

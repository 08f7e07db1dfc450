"""The torch references by value, against sums written out token by token in numpy: they are what every kernel is held to."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra [engine] is not installed")

import replay_kernels as ops  # noqa: E402
from replay_kernels.cases import Case, cases  # noqa: E402
from replay_kernels.problems import PADDING, AttentionProblem, Heads, attention_problem, poisoned  # noqa: E402
from replay_kernels.sampling import gumbel_noise  # noqa: E402

__all__: list[str] = []

GEOMETRIES = [Heads(4, 2, 16), Heads(3, 3, 32), Heads(8, 1, 16)]


def literal_attention(problem: AttentionProblem, block_size: int) -> np.ndarray:
    """Attention of every query, one head and one position after the other, in float64."""
    q, cache = problem.q.double().numpy(), problem.kv_cache.double().numpy()
    table, starts = problem.block_table.numpy(), problem.cu_query_lens.numpy()
    out = np.full(q.shape, np.nan)
    group = q.shape[1] // cache.shape[3]
    for seq, kv_len in enumerate(problem.kv_lens.tolist()):
        count = starts[seq + 1] - starts[seq]
        for i in range(count):
            seen = kv_len - count + i + 1
            where = [(table[seq, p // block_size], p % block_size) for p in range(seen)]
            for head in range(q.shape[1]):
                keys = np.stack([cache[b, 0, o, head // group] for b, o in where])
                values = np.stack([cache[b, 1, o, head // group] for b, o in where])
                scores = keys @ q[starts[seq] + i, head] / np.sqrt(q.shape[2])
                weights = np.exp(scores - scores.max())
                out[starts[seq] + i, head] = weights @ values / weights.sum()
    return out


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.square(x).mean()))


@pytest.mark.parametrize("heads", GEOMETRIES, ids=str)
@pytest.mark.parametrize("case", cases("interp"), ids=lambda case: case.name)
def test_prefill_attention_is_the_literal_sum_and_touches_no_padding(case: Case, heads: Heads) -> None:
    problem = attention_problem(case.entries, heads, block_size=8)
    longest = max(query_len for query_len, _ in case.entries)
    out = ops.paged_prefill_attention(*problem[:6], max_query_len=longest).numpy()
    want = literal_attention(problem, 8)
    assert rms(out[: problem.rows] - want[: problem.rows]) < 1e-6 * rms(want[: problem.rows])
    assert (out[problem.rows :] == PADDING).all()


@pytest.mark.parametrize("case", [c for c in cases("interp") if all(q == 1 for q, _ in c.entries)], ids=lambda case: case.name)
def test_decode_attention_is_the_literal_sum_and_touches_no_padding(case: Case) -> None:
    problem = attention_problem(case.entries, GEOMETRIES[0], block_size=8)
    out = ops.paged_decode_attention(problem.out, problem.q, problem.kv_cache, problem.block_table, problem.kv_lens).numpy()
    want = literal_attention(problem, 8)
    assert rms(out[: problem.rows] - want[: problem.rows]) < 1e-6 * rms(want[: problem.rows])
    assert (out[problem.rows :] == PADDING).all()


def test_a_wrong_block_table_entry_changes_the_result() -> None:
    problem = attention_problem(((1, 40), (1, 40)), GEOMETRIES[0], block_size=8)
    args = (problem.q, problem.kv_cache, problem.block_table, problem.kv_lens)
    before = ops.paged_decode_attention(problem.out.clone(), *args)
    problem.block_table[0, 2] = problem.block_table[1, 2]
    after = ops.paged_decode_attention(problem.out.clone(), *args)
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


def test_splits_out_of_range_are_refused() -> None:
    problem = attention_problem(((1, 4),), GEOMETRIES[0])
    with pytest.raises(ValueError, match="num_splits=17: expected 1 to 16"):
        ops.paged_decode_attention(problem.out, problem.q, problem.kv_cache, problem.block_table, problem.kv_lens, num_splits=17)


def test_rms_norm_adds_the_residual_in_place_and_rounds_it_first() -> None:
    x, residual, weight = torch.randn(5, 48).half(), torch.randn(5, 48).half(), torch.rand(48)
    total = (x.double() + residual.double()).half()
    got = ops.rms_norm(x, weight, residual, eps=1e-5)
    wide = total.double()
    want = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert torch.equal(residual, total)
    assert (got.double() - want).abs().max() <= 2**-11 * want.abs().max()
    plain = ops.rms_norm(total, weight, eps=1e-5, out=torch.empty_like(x))
    assert torch.equal(plain, got)


def test_silu_mul_takes_the_gate_first() -> None:
    gate, up = torch.randn(3, 10, dtype=torch.float64), torch.randn(3, 10, dtype=torch.float64)
    got = ops.silu_mul(torch.cat((gate, up), -1).float())
    assert torch.allclose(got.double(), gate / (1 + torch.exp(-gate)) * up, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("normed", [False, True])
def test_rope_turns_pairs_and_writes_slots(normed: bool) -> None:
    heads, kv_heads, dim, block_size = 4, 2, 16, 8
    packed = torch.randn(5, (heads + 2 * kv_heads) * dim)
    q, k, v = (t.unflatten(-1, (-1, dim)) for t in packed.split([heads * dim, kv_heads * dim, kv_heads * dim], -1))
    before_q, before_k = q.double().numpy().copy(), k.double().numpy().copy()
    pool = poisoned(4, 3, 2, block_size, kv_heads, dim, dtype=torch.float32, device="cpu")
    positions, slots = torch.tensor([0, 7, 8, 30, 2]), torch.tensor([9, -1, 31, 0, 16])
    inv_freq = 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    weights = (torch.rand(dim), torch.rand(dim)) if normed else (None, None)
    table = ops.rope_table(inv_freq, 32)
    ops.qk_norm_rope_kv_write(q, k, v, positions, slots, table, pool[:, 1], q_weight=weights[0], k_weight=weights[1], eps=1e-6)

    def turned(x: np.ndarray, position: int, weight: torch.Tensor | None) -> np.ndarray:
        if weight is not None:
            x = x / np.sqrt(np.square(x).mean() + 1e-6) * weight.double().numpy()
        as_complex = x[: dim // 2] + 1j * x[dim // 2 :]
        rotated = as_complex * np.exp(1j * position * inv_freq.double().numpy())
        return np.concatenate((rotated.real, rotated.imag))

    for token, (position, slot) in enumerate(zip(positions.tolist(), slots.tolist(), strict=True)):
        for head in range(heads):
            assert np.allclose(q[token, head].numpy(), turned(before_q[token, head], position, weights[0]), atol=1e-5)
        for head in range(kv_heads if slot >= 0 else 0):
            block, offset = divmod(slot, block_size)
            assert np.allclose(pool[block, 1, 0, offset, head], turned(before_k[token, head], position, weights[1]), atol=1e-5)
            assert torch.equal(pool[block, 1, 1, offset, head], v[token, head])
    assert int((~pool.isnan()).sum()) == 4 * 2 * kv_heads * dim, "written: four slots, of one layer, keys and values"
    assert np.array_equal(k.double().numpy(), before_k)


def test_one_norm_weight_without_the_other_is_refused() -> None:
    x, slots = torch.zeros(1, 1, 16), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="both or neither"):
        ops.qk_norm_rope_kv_write(x, x, x, slots, slots, torch.zeros(1, 16), torch.zeros(1, 2, 8, 1, 16), q_weight=torch.ones(16))


def test_gumbel_argmax_samples_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, float("-inf")])
    rows, temperature = 20_000, 0.7
    tokens = ops.gumbel_argmax(
        logits.expand(rows, -1), torch.full((rows,), temperature), torch.full((rows,), 11, dtype=torch.int64), torch.arange(rows)
    )
    share = torch.bincount(tokens, minlength=5).double() / rows
    want = torch.softmax(logits.double() / temperature, -1)
    error = (share - want).abs() / (want * (1 - want) / rows).sqrt().clamp(min=1e-12)
    assert share[4] == 0
    assert error[:4].max() < 4, "four standard deviations"


def test_gumbel_noise_is_gumbel_and_depends_on_its_key_alone() -> None:
    seed, position = torch.tensor([3, 3, 4, 3 + 2**40]), torch.tensor([5, 6, 5, 5])
    noise = gumbel_noise(seed, position, 50_000)
    assert torch.equal(gumbel_noise(seed[2:3], position[2:3], 1000)[0], noise[2, :1000])
    quantiles = torch.quantile(noise.double(), torch.tensor([0.01, 0.25, 0.5, 0.75, 0.99], dtype=torch.float64), dim=1)
    exact = -torch.log(-torch.log(torch.tensor([0.01, 0.25, 0.5, 0.75, 0.99], dtype=torch.float64)))
    assert (quantiles - exact[:, None]).abs().max() < 0.06
    correlation = torch.corrcoef(noise)
    assert (correlation - torch.eye(4)).abs().max() < 0.02
    assert torch.corrcoef(torch.stack((noise[0, 1:], noise[0, :-1])))[0, 1].abs() < 0.02


def test_temperature_zero_is_argmax_with_the_smallest_token_on_ties() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]])
    zero, seeds = torch.zeros(2), torch.tensor([1, 2])
    assert ops.gumbel_argmax(logits, zero, seeds, seeds).tolist() == [1, 0]


def test_copy_blocks_copies_pairs_and_skips_padding() -> None:
    src, dst = torch.arange(6 * 8.0).view(6, 2, 4), torch.zeros(5, 2, 4)
    ops.copy_blocks(src, dst, torch.tensor([[4, 0], [-1, 1], [2, 3]]))
    assert torch.equal(dst, torch.stack((src[4], torch.zeros(2, 4), torch.zeros(2, 4), src[2], torch.zeros(2, 4))))
    with pytest.raises(ValueError, match="copy_blocks"):
        ops.copy_blocks(src, torch.zeros(5, 8), torch.tensor([[4, 0]]))


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of auto, reference, triton"), ops.use_backend("cuda"):
        pass
    assert ops.backend() == "auto"

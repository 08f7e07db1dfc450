"""The model against transformers on checkpoints that it wrote, and what is said of directories that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the torch engine needs the extra [engine]")
transformers = pytest.importorskip("transformers", reason="the reference is transformers")

from replay_engine.config import ConfigError  # noqa: E402
from replay_engine.torch_engine.model import DecoderModel, ForwardBatch  # noqa: E402
from replay_engine.torch_engine.shapes import SHIPPED, find_shape  # noqa: E402
from replay_engine.torch_engine.weights import load_weights  # noqa: E402

BLOCK, VOCAB = 8, 500
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, stretched rotary": ("Llama", {"rope_parameters": LLAMA3, "max_position_embeddings": 256}),
    "qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3, wide heads": ("Qwen3", {"head_dim": 32}),
    "qwen3, bias": ("Qwen3", {"attention_bias": False, "rms_norm_eps": 1e-5}),
}


def checkpoint(kind: str, folder: Path, **save: Any) -> Any:
    """A tiny random model of ``kind``, saved to ``folder``; its weights are large enough for every part to matter."""
    family, more = KINDS[kind]
    sizes = {
        "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16,
    }  # fmt: skip
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**sizes, **more})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.2) if weight.dim() > 1 else weight.uniform_(0.5, 1.5)
    model.save_pretrained(folder, **save)
    return model


class Paged:
    """Our model over a poisoned pool with shuffled blocks, driven by hand."""

    def __init__(self, folder: Path, tokens: int, seqs: int = 1) -> None:
        shape = find_shape(str(folder))
        self.model = DecoderModel(shape, load_weights(str(folder), shape, torch.float32, torch.device("cpu")), tokens)
        width = -(-tokens // BLOCK)
        size = (seqs * width + 1, shape.layers, 2, BLOCK, shape.kv_heads, shape.head_dim)
        self.kv = torch.full(size, float("nan"))
        order = torch.randperm(seqs * width, generator=torch.Generator().manual_seed(1)) + 1
        self.table = order.view(seqs, width).int()

    def slots(self, seq: int, positions: torch.Tensor) -> torch.Tensor:
        return self.table[seq].long()[positions // BLOCK] * BLOCK + positions % BLOCK

    def prefill(self, ids: torch.Tensor, start: int = 0) -> torch.Tensor:
        """Logits of all of ``ids``, which stand from ``start`` on in sequence 0."""
        positions = torch.arange(start, start + len(ids))
        batch = ForwardBatch(
            ids=ids, positions=positions, slots=self.slots(0, positions), decodes=0, prefill_table=self.table[:1],
            cu_query_lens=torch.tensor([0, len(ids)], dtype=torch.int32), max_query_len=len(ids),
            prefill_lens=torch.tensor([start + len(ids)], dtype=torch.int32),
        )  # fmt: skip
        with torch.inference_mode():
            return self.model.logits(self.model.forward(batch, self.kv))

    def decode(self, token: int, position: int) -> torch.Tensor:
        at = torch.tensor([position])
        batch = ForwardBatch(
            ids=torch.tensor([token]), positions=at, slots=self.slots(0, at), decodes=1, decode_table=self.table[:1],
            decode_lens=at.int() + 1,
        )  # fmt: skip
        with torch.inference_mode():
            return self.model.logits(self.model.forward(batch, self.kv))


def relative_rms(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float(((ours - theirs).square().mean() / theirs.square().mean()).sqrt())


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_greedy_tokens_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    shards = {"max_shard_size": "60KB"} if kind.startswith("qwen3") else {}
    theirs = checkpoint(kind, tmp_path, **shards)
    assert (tmp_path / "model.safetensors.index.json").exists() == bool(shards)
    ids = torch.randint(0, VOCAB, (61,), generator=torch.Generator().manual_seed(2))
    ours = Paged(tmp_path, 96)
    assert ours.model.shape.parameters == sum(p.numel() for p in theirs.parameters())
    with torch.no_grad():
        wanted = theirs(ids[None]).logits[0]
    whole = ours.prefill(ids)
    assert relative_rms(whole, wanted) < 1e-4
    pieces = Paged(tmp_path, 96)
    chunked = torch.cat([pieces.prefill(part, start) for start, part in ((0, ids[:5]), (5, ids[5:40]), (40, ids[40:]))])
    assert relative_rms(chunked, wanted) < 1e-4
    token, got = int(whole[-1].argmax()), []
    for position in range(61, 85):
        got.append(token)
        token = int(ours.decode(token, position).argmax())
    with torch.no_grad():
        seen = theirs.generate(
            ids[None], attention_mask=torch.ones(1, 61), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    assert got == seen[0, 61:].tolist()


def test_both_spellings_of_the_rotary_settings_are_read(tmp_path: Path) -> None:
    checkpoint("llama, stretched rotary", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    newer = find_shape(str(tmp_path))
    table = config.pop("rope_parameters")
    config["rope_theta"] = table.pop("rope_theta")
    config["rope_scaling"] = table
    path.write_text(json.dumps(config))
    assert find_shape(str(tmp_path)) == newer
    assert newer.rope_theta == 500000.0
    assert newer.rope_scaling is not None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "architectures = MixtralForCausalLM: not supported; expected one of Llama"),
        ({"quantization_config": {"bits": 4}}, "quantized weights is not supported"),
        ({"use_sliding_window": True}, "windowed attention is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act = gelu"),
        ({"attention_bias": True}, "a bias on the output projection"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type = yarn: not supported; expected default or"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "is missing or no number"),
        ({"num_key_value_heads": 3}, "expected a divisor of num_attention_heads = 4"),
        ({"num_hidden_layers": "three"}, "num_hidden_layers = three: expected a whole number"),
        ({"num_hidden_layers": 4}, "tensor model.layers.3.input_layernorm.weight is missing"),
        ({"num_hidden_layers": 2}, "not part of a model of this kind"),
        ({"vocab_size": 499}, "is [500, 64]; config.json says [499, 64]"),
    ],
)
def test_what_is_not_supported_is_one_line(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    checkpoint("llama", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError) as raised:
        load_weights(str(tmp_path), find_shape(str(tmp_path)), torch.float32, torch.device("cpu"))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_broken_weight_files_are_one_line(tmp_path: Path) -> None:
    checkpoint("llama", tmp_path)
    path = tmp_path / "model.safetensors"
    good = path.read_bytes()

    def refused() -> str:
        with pytest.raises(ConfigError) as raised:
            load_weights(str(tmp_path), find_shape(str(tmp_path)), torch.float32, torch.device("cpu"))
        assert "\n" not in str(raised.value)
        return str(raised.value)

    for cut in (0, 5, 2000, len(good) - 1):
        path.write_bytes(good[:cut])
        assert "safetensors" in refused()
    path.write_bytes(good.replace(b'"F32"', b'"I64"', 1))
    assert "is I64; expected F64, F32, F16, BF16" in refused()
    path.unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert "pytorch_model.bin is pickled, and pickles are not loaded" in refused()
    with pytest.raises(ConfigError, match="did you mean tiny"):
        find_shape("tinny")


def test_shipped_shapes_count_the_published_parameters() -> None:
    assert SHIPPED["llama-3.1-8b"].parameters == 8_030_261_248
    assert SHIPPED["qwen3-0.6b"].parameters == 596_049_920
    assert SHIPPED["llama-3.1-8b"].kv_bytes_per_token(2) == 131_072


def test_decode_on_a_cpu_is_what_the_kernels_reference_says() -> None:
    from replay_engine.torch_engine.cpu_attention import CpuDecode
    from replay_kernels import paged_decode_attention

    generator = torch.Generator().manual_seed(0)
    for seqs, width, heads, kv_heads, dim in ((5, 3, 4, 2, 16), (9, 6, 6, 6, 32), (1, 1, 8, 1, 64), (14, 40, 4, 2, 16)):
        pool = torch.randn((seqs * width + 1, 2, 2, BLOCK, kv_heads, dim), generator=generator)
        table = (torch.randperm(seqs * width, generator=generator) + 1).view(seqs, width).int()
        lens = torch.randint(0, width * BLOCK + 1, (seqs,), generator=generator).int()
        lens[0] = width * BLOCK
        for row in range(seqs):
            for column in range(width):
                left = int(lens[row]) - column * BLOCK
                pool[table[row, column], :, :, max(left, 0) :] = float("nan")
            table[row, -(-int(lens[row]) // BLOCK) :] = 2**31 - 1
        q = torch.randn((seqs, heads, dim), generator=generator)
        wanted, got = torch.full_like(q, 7.0), torch.full_like(q, 7.0)
        paged_decode_attention(wanted, q, pool[:, 1], table, lens)
        CpuDecode(pool, table, lens).attend(got, q, 1)
        assert torch.allclose(wanted, got, atol=1e-6), (seqs, width)
        assert (got[lens == 0] == 7.0).all()


def test_decode_on_a_cpu_reads_each_sequences_own_kv_however_long_the_longest_is() -> None:
    """A kernel's work follows the KV; so must this one's, or one long context would cost as much as a batch of long ones."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from replay_engine.torch_engine.cpu_attention import CpuDecode

    class Touched(TorchDispatchMode):
        elements = calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            if "index_select" in str(func) or "attention" in str(func):
                self.elements += sum(each.numel() for each in args if isinstance(each, torch.Tensor) and each.dim() == 4)
                self.elements += found.numel() if isinstance(found, torch.Tensor) else 0
                self.calls += "attention" in str(func)
            return found

    def touched(lens: list[int]) -> tuple[int, int]:
        width = -(-max(lens) // BLOCK)
        pool = torch.zeros((len(lens) * width + 1, 1, 2, BLOCK, 2, 16))
        table = (torch.arange(len(lens) * width) + 1).view(len(lens), width).int()
        q = torch.zeros((len(lens), 4, 16))
        with Touched() as mode, torch.inference_mode():
            CpuDecode(pool, table, torch.tensor(lens, dtype=torch.int32)).attend(torch.empty_like(q), q, 0)
        return mode.elements, mode.calls

    even, calls = touched([10 * BLOCK] * 8)
    assert even >= 2 * 2 * 16 * 80 * BLOCK
    assert touched([BLOCK] * 7 + [73 * BLOCK]) == (even, 2 * calls)  # the long one alone
    nearly = touched([10 * BLOCK - 1] * 4 + [10 * BLOCK] * 4)
    assert nearly == (pytest.approx(even, rel=0.02), calls)  # about alike: together, with a mask
    assert touched([20 * BLOCK] * 8)[0] > 1.9 * even


def test_prefill_on_a_cpu_is_what_the_kernels_reference_says() -> None:
    """Entries with context and without, one without a query, rows behind the last; NaN past every end."""
    from replay_engine.torch_engine.cpu_attention import CpuPrefill
    from replay_kernels import paged_prefill_attention

    generator = torch.Generator().manual_seed(1)
    for heads, kv_heads, dim in ((4, 2, 16), (6, 6, 32), (8, 1, 64)):
        queries, lens = [1, 7, 0, 2 * BLOCK, 5, 1], [1, 7, 3, 2 * BLOCK, 3 * BLOCK + 2, 2 * BLOCK]
        width, rows = 4, len(lens)
        pool = torch.randn((rows * width + 1, 2, 2, BLOCK, kv_heads, dim), generator=generator)
        table = (torch.randperm(rows * width, generator=generator) + 1).view(rows, width).int()
        for row, length in enumerate(lens):
            for column in range(width):
                pool[table[row, column], :, :, max(length - column * BLOCK, 0) :] = float("nan")
            table[row, -(-length // BLOCK) :] = 2**31 - 1
        starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
        q = torch.randn((sum(queries) + 2, heads, dim), generator=generator)
        wanted, got = torch.full_like(q, 7.0), torch.full_like(q, 7.0)
        kv_lens = torch.tensor(lens, dtype=torch.int32)
        for layer in (0, 1):
            paged_prefill_attention(wanted, q, pool[:, layer], table, starts, kv_lens, max_query_len=max(queries))
            CpuPrefill(pool, table, starts, kv_lens).attend(got, q, layer)
            assert torch.allclose(wanted, got, atol=2e-6), (heads, kv_heads, layer)
            assert (got[-2:] == 7.0).all()

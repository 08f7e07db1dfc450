"""Profiles on paper: facts from config.json, costs never below the peaks, published cards predicted from the others."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.calibration.accelerators import ACCELERATORS, find_accelerator
from replay_engine.calibration.model_config import read_model
from replay_engine.calibration.roofline import reached, roofline, shares_for
from replay_engine.config import ConfigError
from replay_engine.profile import Profile, list_profiles, load_profile
from tracekit.cli.main import main

LLAMA: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip


def folder_of(folder: Path, **changes: Any) -> Path:
    config = {key: value for key, value in (LLAMA | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_facts_are_those_of_the_shipped_profile(tmp_path: Path) -> None:
    shipped = load_profile("h100").model
    assert shipped is not None
    facts = read_model(folder_of(tmp_path)).facts
    for name in ("parameters", "weight_bytes", "layers", "kv_heads", "head_dim", "kv_bytes_per_token", "vocab_size"):
        assert getattr(facts, name) == getattr(shipped, name), name


@pytest.mark.parametrize(
    ("changes", "dtype", "kv_dtype", "weight_bytes", "kv_bytes"),
    [
        ({}, None, "fp8", 16_060_522_496, 65_536),
        ({}, "fp8", None, (8_030_261_248 - 2 * 128256 * 4096) + 2 * 2 * 128256 * 4096, 131_072),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, None, None, None, 131_072),
        ({"torch_dtype": "float32"}, None, None, 32_121_044_992, 262_144),
        ({"text_config": {"num_hidden_layers": 16}}, None, None, None, 65_536),
    ],
)
def test_types_decide_the_bytes(
    changes: dict[str, Any], dtype: str | None, kv_dtype: str | None, weight_bytes: int | None, kv_bytes: int | None,
    tmp_path: Path,
) -> None:  # fmt: skip
    facts = read_model(folder_of(tmp_path, **changes), dtype, kv_dtype).facts
    if weight_bytes is not None:
        assert facts.weight_bytes == pytest.approx(weight_bytes, rel=1e-4)
    if kv_bytes is not None:
        assert facts.kv_bytes_per_token == kv_bytes
    if "quantization_config" in changes:
        assert 0.25 < facts.weight_bytes / 16_060_522_496 < 0.4, "layers at 4 bits, embeddings at 16"


def test_the_index_of_the_shards_counts_more_than_a_count(tmp_path: Path) -> None:
    folder_of(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 12345678}}', encoding="utf-8")
    assert read_model(tmp_path).facts.weight_bytes == 12_345_678
    assert read_model(tmp_path, "fp8").facts.weight_bytes > 8e9, "not the stored ones where another type is asked for"


@settings(deadline=None)
@given(
    card=st.sampled_from(ACCELERATORS), cards=st.sampled_from((1, 2, 4, 8)), dtype=st.sampled_from(("bfloat16", "fp8", "int4")),
    layers=st.integers(1, 48), width=st.integers(4, 48), kv=st.sampled_from(("bfloat16", "fp8")),
)  # fmt: skip
def test_no_estimate_beats_the_card(
    card: Any, cards: int, dtype: str, layers: int, width: int, kv: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    heads = 8 * ((width + 7) // 8)
    folder = folder_of(
        tmp_path_factory.getbasetemp(), num_hidden_layers=layers, hidden_size=128 * heads, intermediate_size=400 * heads,
        num_attention_heads=heads, num_key_value_heads=8, head_dim=128,
    )  # fmt: skip
    model = read_model(folder, dtype, kv)
    if model.facts.weight_bytes / cards > card.memory_bytes:
        with pytest.raises(ConfigError, match="GB of weights a card"):
            roofline(model, card, cards)
        return
    found = roofline(model, card, cards)
    profile = Profile(name="x", latency=found.latency, model=model.facts, hardware=found.hardware)  # raises below a floor
    assert profile.latency.a_ns < profile.latency.floor_ns
    if cards > 1:
        one = roofline(model, card, 1).latency if model.facts.weight_bytes <= card.memory_bytes else None
        assert one is None or found.latency.e_ns < one.e_ns


def test_published_cards_are_predicted_from_the_others(tmp_path: Path) -> None:
    model = read_model(folder_of(tmp_path))
    worst: dict[str, float] = {}
    for published in list_profiles():
        (card,) = (each for each in ACCELERATORS if each.profile == published.name)
        guess = asdict(roofline(model, card, shares=shares_for(card, leaving_out=published.name)).latency)
        for name in ("floor_ns", "b_ns", "c_ns", "d_ns", "e_ns"):
            worst[name] = max(worst.get(name, 0.0), abs(guess[name] / getattr(published.latency, name) - 1))
        own = asdict(roofline(model, card).latency)
        for name in ("floor_ns", "b_ns", "c_ns", "d_ns", "e_ns"):
            assert own[name] == pytest.approx(getattr(published.latency, name), rel=1e-9), (
                "a card's own shares give its own costs"
            )
    assert worst["b_ns"] < 0.20
    assert worst["floor_ns"] < 0.30
    assert worst["e_ns"] < 0.20


def test_shares_are_shares() -> None:
    for profile in list_profiles():
        assert all(0 < value < 1 for value in reached(profile).values()), profile.name


def test_accelerators_have_one_name_each() -> None:
    names = [name for each in ACCELERATORS for name in (each.name.lower(), *each.aliases)]
    assert len(names) == len(set(names))
    assert find_accelerator("RTX 4090 24GB") is find_accelerator("rtx4090")
    for profile in list_profiles():
        (card,) = (each for each in ACCELERATORS if each.profile == profile.name)
        assert profile.hardware is not None
        assert (card.memory_bytes, card.peak_bf16, card.bandwidth_bytes_s) == (
            profile.hardware.memory_bytes, profile.hardware.peak_flops, profile.hardware.bandwidth_bytes_s,
        )  # fmt: skip


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = folder_of(tmp_path), tmp_path / "p.toml"
    assert main(["calibrate", str(folder), "--hardware", "rtxpro6000", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "ESTIMATE: nothing was measured" in text
    assert "of peak" in text
    bandwidth = find_accelerator("rtxpro6000").bandwidth_bytes_s
    assert "physical floor of floor_ns: " + f"{round(16_060_522_496 / bandwidth * 1e9):,} ns, one read of the weights" in text
    assert f"physical floor of e_ns: {131_072 / bandwidth * 1e9:.2f} ns, one read of a KV token" in text
    profile = load_profile(out)
    assert profile.provenance["kind"].startswith("estimate")
    assert profile.hardware is not None
    assert not profile.synthetic
    assert main(["calibrate", str(folder / "config.json"), "--hardware", "h100", "--tensor-parallel", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["source"] == "roofline"
    assert document["profile"]["hardware"]["tensor_parallel"] == 2
    assert document["estimate"] is True
    half = 16_060_522_496 / 3.35e12 / 2 * 1e9
    assert document["floors_ns"]["floor_ns"] == pytest.approx(half, rel=0.01), "two cards read half of the weights each"
    assert document["floors_ns"].keys() == {"floor_ns", "b_ns", "e_ns"}
    latency = document["profile"]["latency"]
    assert all(latency[name] > least for name, least in document["floors_ns"].items())


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({}, [], "--hardware: which accelerator"),
        ({}, ["--hardware", "h101"], "h101: no such accelerator; did you mean h100"),
        ({}, ["--hardware", "h100", "--tensor-parallel", "3"], "divisor of the model's 32"),
        ({}, ["--hardware", "h100", "--dtype", "fp3"], "dtype fp3"),
        ({}, ["--hardware", "h100", "--set", "block_size=16"], "--set: means nothing to"),
        ({"num_local_experts": 8}, ["--hardware", "h100"], "num_local_experts = 8: the experts"),
        ({"kv_lora_rank": 512}, ["--hardware", "h100"], "latent attention"),
        ({"vocab_size": None}, ["--hardware", "h100", "--as", "roofline"], "vocab_size is missing"),
        ({"hidden_size": "wide"}, ["--hardware", "h100"], "hidden_size = wide"),
        ({"quantization_config": {"quant_method": "magic"}}, ["--hardware", "h100"], "quantization_config magic"),
        ({"num_hidden_layers": 400}, ["--hardware", "l4"], "GB of weights a card"),
    ],
)
def test_mistakes_are_one_line(
    changes: dict[str, Any], options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", str(folder_of(tmp_path, **changes)), *options, "--json"]) == 2
    out, err = capsys.readouterr()
    assert said in json.loads(out)["error"]
    assert err.count("\n") == 1

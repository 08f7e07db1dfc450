"""Profiles: the shipped numbers by value, round trips, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from replay_engine.config import ConfigError
from replay_engine.profile import DEFAULT_PROFILE, Latency, Profile, list_profiles, load_profile, parse_profile
from replay_engine.simulator import SimExecutor

SYNTHETIC = """
name = "planted"
physics = "off"
[latency]
b_ns = 10
e_ns = 0.5
"""


def device_ms(latency: Latency, prompt: int, decode_seqs: int = 0, decode_kv: int = 0) -> float:
    linear = max(latency.floor_ns, latency.a_ns + latency.b_ns * prompt)
    return (linear + latency.c_ns * prompt * prompt / 2 + latency.d_ns * decode_seqs + latency.e_ns * decode_kv) / 1e6


@pytest.mark.parametrize(
    ("name", "bs1", "bs32", "bs128", "prompt_1k", "prompt_2k", "prompt_8k"),
    [
        ("a100", 11.6, 15.6, 24.8, 64.7, 125, 557),
        ("h100", 6.1, 8.3, 12.8, 22.1, 43.5, 200),
        ("h200", 4.8, 6.3, 9.9, 21.2, 43.4, 199),
        ("l40s", 21.8, 31.4, 53.3, 70, 145, 700),
        ("b200", 3.4, 4.2, 6.2, 11.7, 22.3, 97.6),
    ],
)
def test_shipped_profiles_give_the_published_times(
    name: str, bs1: float, bs32: float, bs128: float, prompt_1k: float, prompt_2k: float, prompt_8k: float
) -> None:
    latency = load_profile(name).latency
    for prompt, published in ((1024, prompt_1k), (2048, prompt_2k), (8192, prompt_8k)):
        assert device_ms(latency, prompt) == pytest.approx(published, rel=0.11)
    for seqs, published in ((1, bs1), (32, bs32), (128, bs128)):
        assert device_ms(latency, 0, seqs, seqs * 1024) == pytest.approx(published, rel=0.11)


def test_shipped_profiles_are_complete() -> None:
    names = [profile.name for profile in list_profiles()]
    assert names == [f"{gpu}-llama-3.1-8b" for gpu in ("a100", "b200", "h100", "h200", "l40s")]
    assert DEFAULT_PROFILE in names
    for profile in list_profiles():
        for coefficient in ("floor_ns", "a_ns", "b_ns", "c_ns", "d_ns", "e_ns"):
            assert profile.provenance[coefficient].startswith("published"), coefficient
        for coefficient in ("h0_ns", "h1_ns", "h2_ns"):
            assert profile.provenance[coefficient].startswith("estimate")
        assert profile.latency.h0_ns == 1e6
        assert profile.model is not None
        model = profile.model
        assert model.kv_bytes_per_token == 2 * model.layers * model.kv_heads * model.head_dim * 2
        assert model.weight_bytes == 2 * model.parameters
        assert parse_profile(profile.to_toml(), "again") == profile
        assert "published" in profile.describe()


def test_what_pads_decodes_is_a_cost_of_its_own() -> None:
    """Graphs are captured for 1, 2, 4, every 8 to 256 and every 16 to 512 decodes: each row up to the next one costs, beside a
    prompt none. A profile that does not know of it is written as ever."""
    plain = parse_profile(SYNTHETIC, "planted")
    padded = replace(plain, latency=replace(plain.latency, d_ns=3.0, p_ns=1000.0))
    assert parse_profile(padded.to_toml(), "again") == padded
    assert "p_ns" in padded.to_toml() and "p_ns" not in plain.to_toml()
    executor = SimExecutor(padded.latency, asynchronous=False)
    added = {1: 0, 2: 0, 3: 1, 5: 3, 8: 0, 9: 7, 250: 6, 256: 0, 257: 15, 272: 0, 512: 0, 513: 0, 900: 0}
    for seqs, rows in added.items():
        assert executor.predict(0, 0, seqs, 0, seqs, 0) == (3 * seqs + 1000 * rows,) * 2 + (0,), seqs
        assert executor.predict(1, 0, seqs, 0, seqs, 0)[1] == 10 + 3 * seqs
    executor.slow_down(2.0)
    assert executor.predict(0, 0, 9, 0, 9, 0)[1] == 2 * (27 + 7000)
    with pytest.raises(ConfigError, match=r"p_ns = -1\.0: a cost cannot be negative"):
        Latency(p_ns=-1.0)


def test_names_aliases_and_files(tmp_path: Path) -> None:
    assert load_profile("H100").name == load_profile("h100-llama-3.1-8b").name == "h100-llama-3.1-8b"
    mine = tmp_path / "mine.toml"
    mine.write_text(load_profile("l40s").to_toml().replace("l40s-llama-3.1-8b", "mine"))
    assert load_profile(mine).name == "mine"
    with pytest.raises(ConfigError, match=r"profile h10: no such profile; did you mean h100"):
        load_profile("h10")
    with pytest.raises(ConfigError, match=r"nope\.toml: no such file"):
        load_profile("nope.toml")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("b_ns = 19600.0", "b_ns = 2150.0", r"latency\.b_ns = 2,150 ns: below the physical floor.* 14,1\d\d ns on H100"),
        ("floor_ns = 6370000.0", "floor_ns = 4000000.0", r"latency\.floor_ns = 4,000,000 ns: below .* 4,794,\d\d\d ns"),
        ("e_ns = 41.3", "e_ns = 30.0", r"latency\.e_ns = 30 ns: below .* 39\.13 ns"),
        ("c_ns = 0.93", "c_ns = -1.0", r"c_ns = -1\.0: a cost cannot be negative"),
        ("c_ns = 0.93", "c_ns = 'x'", r"h100\.toml, line \d+: latency\.c_ns = x: expected a number"),
        ("c_ns = 0.93", "cns = 0.93", r"h100\.toml, line \d+: latency\.cns: unknown; did you mean c_ns"),
        ("layers = 32\n", "", r"h100\.toml: model\.layers is missing"),
        ("layers = 32", "layers = 0", r"model\.layers = 0: expected a whole number above 0"),
        ("[latency]", "[latencies]", r"latencies: unknown; did you mean latency"),
        ("[latency]", "[latency", r"h100\.toml, line \d+, column \d+: not TOML"),
        ('physics = "on"', 'physics = "maybe"', r"physics = 'maybe': expected 'on' or 'off'"),
    ],
)
def test_refusals_are_one_line_with_both_numbers(old: str, new: str, reason: str) -> None:
    text = load_profile("h100").to_toml()
    assert old in text
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_profile(text.replace(old, new, 1), "h100.toml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("h100.toml")


def test_two_cards_halve_the_floors() -> None:
    text = load_profile("h100").to_toml().replace("tensor_parallel = 1", "tensor_parallel = 2")
    fast = text.replace("b_ns = 19600.0", "b_ns = 9000.0").replace("floor_ns = 6370000.0", "floor_ns = 3000000.0")
    assert parse_profile(fast, "tp2").latency.b_ns == 9000.0
    with pytest.raises(ConfigError, match="physical floor"):
        parse_profile(fast.replace("tensor_parallel = 2", "tensor_parallel = 1"), "tp1")


def test_planted_coefficients() -> None:
    profile = parse_profile(SYNTHETIC, "recipe.toml")
    assert profile.synthetic
    assert profile.model is None
    assert profile.latency == Latency(b_ns=10.0, e_ns=0.5)
    assert "synthetic" in profile.describe()
    assert parse_profile(profile.to_toml(), "again") == profile
    with pytest.raises(ConfigError, match=r"\[model\] and \[hardware\] are missing"):
        Profile(name="x", latency=Latency())

"""``tracekit profiles``: list, show, diff; a profile's version."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from replay_engine.config import ConfigError
from replay_engine.policy import build_policy
from replay_engine.profile import PROFILE_SCHEMA, list_profiles, load_profile, parse_profile
from tracekit.cli.main import main
from tracekit.profile_diff import TYPICAL, diff_profiles


def test_diff_says_what_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = load_profile("h100")
    other = replace(one, name="mine", latency=replace(one.latency, b_ns=2 * one.latency.b_ns), fit={"trust": "good"},
                    provenance=one.provenance | {"b_ns": "fitted"})  # fmt: skip
    file = tmp_path / "mine.toml"
    file.write_text(other.to_toml(), encoding="utf-8")
    assert main(["profiles", "diff", "h100", str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    changed = {each["what"]: each["percent"] for each in document["coefficients"] if each["percent"]}
    assert changed == {"b_ns": 100.0}
    assert [each["what"] for each in document["sources"]] == ["b_ns"]
    assert "fit.trust" in {each["what"] for each in document["facts"]}
    by_case = {each["what"]: each["percent"] for each in document["iterations"]}
    assert set(by_case) == set(TYPICAL)
    assert by_case["decode=32*1@1024"] == 0
    assert 50 < by_case["prefill=8192"] < 100
    assert main(["profiles", "diff", "h100", str(file)]) == 0
    assert "b_ns: " in capsys.readouterr().out


def test_a_difference_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranges and texts as a person writes them, no sentence in a column; and of equals that they are."""
    one = load_profile("h100")
    long = "skew of context lengths is no term of this profile, and none is asked for by the latencies"
    fit = {"fitted_decode_seqs": [0.0, 1500.0], "left_out": [long, "egress is 0"], "sizes": [1, 2, 4]}
    fit |= {"settings": {"seats": True}}
    file, same = tmp_path / "mine.toml", tmp_path / "same.toml"
    file.write_text(replace(one, name="mine", fit=fit).to_toml(), encoding="utf-8")
    same.write_text(one.to_toml(), encoding="utf-8")
    assert main(["profiles", "diff", "h100", str(file)]) == 0
    out = capsys.readouterr().out
    assert f"fit.left_out: - | {long}; egress is 0" in out
    facts = {line.split()[0]: line for line in out[out.index("\nfact ") :].splitlines() if line}
    assert [cell.strip() for cell in re.split(r"  +", facts["fit.fitted_decode_seqs"])[1:]] == ["1 to 128", "0 to 1,500"]
    assert facts["fit.sizes"].endswith("1; 2; 4")
    assert facts["fit.settings.seats"].endswith("true")
    assert max(map(len, facts.values())) < 130
    assert "h100-llama-3.1-8b, ms  mine, ms" in out
    assert main(["profiles", "diff", "h100", str(same)]) == 0
    assert capsys.readouterr().out == "no difference: coefficients, sources and facts are the same\n"


def test_typical_iterations_take_what_the_simulator_says() -> None:
    profile = load_profile("a100")
    found = {each.what: each.one for each in diff_profiles(profile, profile).iterations}
    from replay_engine.simulator import SimExecutor

    executor = SimExecutor(profile.latency, asynchronous=False)
    assert found["prefill=2048"] == pytest.approx(executor.predict(2048, 2048 * 1024, 0, 0, 1, 0)[0] / 1e6, rel=1e-6)
    assert found["decode=32*1@8192"] == pytest.approx(executor.predict(0, 0, 32, 32 * 8192, 32, 0)[0] / 1e6, rel=1e-6)


def test_profiles_carry_their_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for profile in list_profiles():
        again = parse_profile(profile.to_toml(), "again")
        assert again == profile
        assert build_policy(again, None, ()).scheduler == build_policy(profile, None, ()).scheduler
    text = load_profile("h100").to_toml()
    assert f'schema = "{PROFILE_SCHEMA}"' in text
    with pytest.raises(ConfigError, match=r"old\.toml, line \d+: schema = tracekit.profile/7: of another version"):
        parse_profile(text.replace(PROFILE_SCHEMA, "tracekit.profile/7"), "old.toml")
    assert main(["profiles", "show", "h100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == PROFILE_SCHEMA
    assert main(["profiles", "list"]) == 0
    assert "h100-llama-3.1-8b" in capsys.readouterr().out
    assert main(["profiles", "diff", "h100", "nobody", "--json"]) == 2

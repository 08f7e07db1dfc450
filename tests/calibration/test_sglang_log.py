"""SGLang's batch lines as a sample: planted costs come back from what the lines average; keys in any order."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from replay_engine.profile import load_profile
from tracekit.calibration.sglang_log import batch_lines, samples_of_batches
from tracekit.cli.main import main

FLOOR, A, B, D, E = 6e6, 2e6, 2e4, 1.1e4, 40.0
EVERY = 40


def log(file: Path, *, stretches: int = 240, rank: str = "TP0", extra: str = "", decode: str = "#token") -> str:
    """A log of an engine with those costs (ns): decode stretches, then now and then a queue of prompts."""
    draw, lines = np.random.default_rng(2), []
    for number in range(stretches):
        running, kv = int(draw.integers(4, 200)), 0.0
        context = float(draw.integers(200, 4000))
        for _ in range(3):
            took = [FLOOR + D * running + E * running * (context + i) for i in range(EVERY)]
            context += EVERY
            kv = running * context
            rate = running * EVERY / (sum(took) / 1e9)
            lines.append(
                f"[2026-10-01 11:53:31 {rank}] Decode batch, #running-req: {running}, {decode}: {kv:.0f}, token usage: 0.42,"
                f" {extra}cuda graph: True, gen throughput (token/s): {rate:.2f}, #queue-req: 0"
            )
        before = 0.0
        for left in range(4, -1, -1):
            tokens = int(draw.integers(64, 8192)) if number % 2 else 0
            if not tokens:
                break
            rate = before / (max(FLOOR, A + B * before) / 1e9) if before else 0.5
            lines.append(
                f"[2026-10-01 11:53:32 {rank}] Prefill batch, #new-seq: {left + 1}, #new-token: {tokens}, #cached-token: 0,"
                f" token usage: 0.10, #running-req: {running}, #queue-req: {left}, input throughput (token/s): {rate:.2f}"
            )
            before = float(tokens)
    file.write_text("\n".join(["server_args=...", *lines]) + "\n", encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("extra", ["", "mamba usage: 0.42, #retracted-req: 0, "])
@pytest.mark.parametrize("decode", ["#token", "#full token"])
def test_planted_costs_come_back(extra: str, decode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "p.toml"
    assert main(["calibrate", log(tmp_path / "s.log", extra=extra, decode=decode), "--out", str(out), "--json"]) == 0
    latency = load_profile(out).latency
    assert latency.floor_ns == pytest.approx(FLOOR, rel=0.02)
    assert latency.b_ns == pytest.approx(B, rel=0.02)
    assert latency.d_ns == pytest.approx(D, rel=0.10)
    assert latency.e_ns == pytest.approx(E, rel=0.02)
    assert load_profile(out).provenance["kind"] == "fitted to a sample of batch lines of SGLang"
    capsys.readouterr()


def test_what_does_not_tell_a_time_is_left_out(tmp_path: Path) -> None:
    line = (
        "[2026-10-01 11:53:31{rank}] Decode batch, #running-req: {n}, #token: 100, gen throughput (token/s): 50.0, #queue-req: 0"
    )
    lines = [line.format(rank="", n=n) for n in (8, 8, 90, 90)]
    lines += ["[t] Prefill batch, #new-seq: 1, #new-token: 100, #queue-req: 0, #running-req: 90, input throughput (token/s): 5.0"]
    lines += [line.format(rank=" DP1 TP0", n=8), line.format(rank="", n=90), line.format(rank=" DP1 TP0", n=8)]
    file = tmp_path / "s.log"
    file.write_text("\n".join(lines), encoding="utf-8")
    found = samples_of_batches(batch_lines(file))
    # of rank 0 the second and the fourth, of rank 1 the second; a line after a prefill averages over it
    assert sorted(found.seqs.tolist()) == [8, 8, 90]
    assert found.device_ns.tolist() == pytest.approx([8 / 50 * 1e9, 90 / 50 * 1e9, 8 / 50 * 1e9])


def test_accepted_drafts_make_an_iteration_of_more_tokens(tmp_path: Path) -> None:
    line = "Decode batch, #running-req: 10, #token: 100, accept len: 2.50, gen throughput (token/s): 1000.0, #queue-req: 0"
    file = tmp_path / "s.log"
    file.write_text(f"{line}\n{line}\n", encoding="utf-8")
    assert samples_of_batches(batch_lines(file)).device_ns.tolist() == [25e6]


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.log"
    for text, said in (
        ("nothing here\n", "no batch line"),
        ("Decode batch, #running-req: 1, #token: 5\n", "0 batches that tell"),
    ):
        file.write_text(text, encoding="utf-8")
        assert main(["calibrate", str(file), "--as", "sglang-log", "--json"]) == 3
        out, err = capsys.readouterr()
        assert said in json.loads(out)["error"]
        assert err.count("\n") == 1

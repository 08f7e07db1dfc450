"""The kernels in Triton's interpreter, float32 and float16, against their references; and mutants of them, which must fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra [engine] is not installed")
pytest.importorskip("triton", reason="the extra [engine] is not installed")

from replay_kernels.cases import cases
from tests.kernels.triton_runs import ROOT, lines_of

__all__: list[str] = []

MUTANTS = [
    ("attention_tile.py", "position[None, :] < limit[:, None]", "position[None, :] <= limit[:, None]", "attention"),
    ("attention_tile.py", "tl.load(values, mask=inside[:, None], other=0.0)", "tl.load(values)", "attention"),
    ("attention_tile.py", "total = total * shrink + tl.sum(weights, 1)", "total = total + tl.sum(weights, 1)", "attention"),
    ("attention_tile.py", "block = tl.load(table + position // BLOCK_SIZE)", "block = position // BLOCK_SIZE", "attention"),
    ("prefill_attention_kernel.py", "(row < QUERIES * GROUP) & (query < query_len)", "row < QUERIES * GROUP", "attention"),
    ("prefill_attention_kernel.py", "unmasked = (context + first_query + 1) // TILE", "unmasked = end // TILE", "attention"),
    ("decode_attention_kernel.py", "tl.cdiv(tl.cdiv(kv_len, TILE), splits)", "(kv_len // TILE // splits)", "attention"),
    ("decode_attention_kernel.py", "if tl.load(kv_lens + seq) > 0:", "if tl.load(kv_lens + seq) >= 0:", "attention"),
    ("decode_attention_kernel.py", "mask=(each > float(\"-inf\"))[:, None], other=0.0", "", "attention"),
    ("decode_attention_kernel.py", "mask=split < splits, other=float(\"-inf\")", "", "attention"),
    ("rope_kv_write_kernel.py", "if slot >= 0:", "if slot >= -1:", "op"),
    ("rope_kv_write_kernel.py", "(tl.sum(first * first, 1) + tl.sum(second * second, 1))", "2 * tl.sum(first * first, 1)", "op"),
    ("rms_norm_kernel.py", "wide = rounded.to(tl.float32)", "wide = wide", "op"),
    ("rms_norm_kernel.py", "tl.store(out + row * stride_out + column, normed.to(out.dtype.element_ty), mask=inside)",
     "tl.store(out + row * stride_out + column, normed.to(out.dtype.element_ty))", "op"),
    ("silu_mul_kernel.py", "column < SIZE", "column <= SIZE", "op"),
    ("sampling_kernel.py", "better = score > top", "better = score >= top", "op"),
    ("sampling_kernel.py", "token.to(tl.uint32) * GOLDEN + first_key", "(token + row).to(tl.uint32) * GOLDEN + first_key", "op"),
    ("block_copy_kernel.py", "if (source >= 0) & (target >= 0):", "if source >= 0:", "op"),
]  # fmt: skip


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    code, findings, errors = lines_of("check", "--device", "cpu")
    assert findings, errors
    assert code == (0 if all(finding["holds"] for finding in findings) else 1)
    return findings


def test_every_finding_holds(found: list[dict[str, Any]]) -> None:
    failed = [f"{finding['name']}: {finding['said']}" for finding in found if not finding["holds"]]
    assert not failed


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_case_and_op_was_checked(found: list[dict[str, Any]], dtype: str) -> None:
    names = [
        finding["name"]
        for finding in found
        if finding["name"].split(",")[-1].split(":")[0].strip() == dtype or dtype in finding["name"]
    ]
    for case in cases("interp"):
        assert any(name.startswith(f"prefill attention: {case.name}, ") for name in names), case.name
        assert any(name.startswith(f"prefill attention, padding: {case.name}, ") for name in names), case.name
    for part in (
        "decode attention in 8 KV splits",
        "rms_norm",
        "silu_mul",
        "qk_norm_rope_kv_write",
        "gumbel_argmax",
        "copy_blocks",
    ):
        assert any(name.startswith(part) for name in names), part
    assert any("slot -1" in name for name in names)
    assert any("twice the same bits" in name for name in names)


def test_bfloat16_is_never_interpreted(found: list[dict[str, Any]]) -> None:
    assert not [finding["name"] for finding in found if "bfloat16" in finding["name"]]


def test_versions_that_cannot_interpret_are_named() -> None:
    from replay_kernels.check import refusal

    assert refusal("3.7.1", "2.4.6") == refusal("3.6.0", "2.3.5") == ""
    assert refusal("3.6.0", "2.4.0").startswith("the interpreter of triton 3.6.0 needs numpy below 2.4")


def test_wrong_kernels_are_found(tmp_path: Path) -> None:
    listed = tmp_path / "mutants.json"
    listed.write_text(json.dumps(MUTANTS))
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("mutants.py")), str(ROOT / "kernels"), str(listed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    outcomes = json.loads(done.stdout.splitlines()[-1])
    missed = [(outcome, *mutant) for outcome, mutant in zip(outcomes, MUTANTS, strict=True) if outcome != "found"]
    assert not missed

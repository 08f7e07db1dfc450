"""Every kernel compiled for an H100 without one: no spills, shared memory that fits, wgmma, wide copies; by two tritons."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra [engine] is not installed")
triton = pytest.importorskip("triton", reason="the extra [engine] is not installed")

import replay_kernels as ops  # noqa: E402
from replay_kernels.ahead_of_time import GEOMETRIES, caught_launches, compile_source  # noqa: E402
from replay_kernels.launch import HOPPER, use_launches  # noqa: E402
from tests.kernels.triton_runs import BUILD, lines_of  # noqa: E402

__all__: list[str] = []

# What a machine with a GPU may have: the oldest that pyproject.toml allows.
OLDEST = "3.6.0"
KERNELS = {
    "prefill_kernel", "decode_kernel", "merge_kernel", "rope_kv_write_kernel", "rms_norm_kernel", "silu_mul_kernel",
    "gumbel_kernel", "best_run_kernel", "block_copy_kernel",
}  # fmt: skip


def triton_folder(version: str) -> Path | None:
    """A folder that holds triton of that version: None for the installed one; made once, under ``build``."""
    if triton.__version__ == version:
        return None
    folder = BUILD / f"triton-{version}"
    if not folder.is_dir():
        made = folder.with_name(f"{folder.name}.{os.getpid()}")
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(made), f"triton=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"triton {version} cannot be installed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
        made.rename(folder)
    return folder


@pytest.fixture(scope="module", params=["installed", OLDEST])
def compiled(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    whole = request.param == "installed"
    folder = None if whole else triton_folder(request.param)
    code, kernels, errors = lines_of("ahead_of_time", "--arch", "90", *(() if whole else ("--brief",)), first_on_path=folder)
    assert code == 0, errors[-4000:]
    return kernels


def test_every_op_compiles_for_every_geometry(compiled: list[dict[str, Any]]) -> None:
    assert {one["kernel"] for one in compiled} == KERNELS
    there = {one["geometry"] for one in compiled}
    assert there in ({geometry.name for geometry in GEOMETRIES}, {geometry.name for geometry in GEOMETRIES if geometry.brief})
    for geometry in (each for each in GEOMETRIES if each.name in there):
        attention = [one["kernel"] for one in compiled if one["geometry"] == geometry.name]
        assert attention.count("decode_kernel") == len(geometry.splits)
        assert attention.count("prefill_kernel") == len(geometry.prefill)


def test_every_launch_of_the_table_is_compiled(compiled: list[dict[str, Any]]) -> None:
    seen = {(one["constants"].get("ROWS"), one["constants"].get("TILE"), one["warps"], one["stages"]) for one in compiled}
    for table in (HOPPER.prefill_long, HOPPER.prefill_short, HOPPER.decode):
        assert set(table.values()) <= seen


def test_nothing_spills_and_all_fits(compiled: list[dict[str, Any]]) -> None:
    assert not [one for one in compiled if one["spilled"]]
    assert max(one["shared"] for one in compiled) < 227 * 1024
    assert all(one["registers"] * one["warps"] * 32 <= 65536 for one in compiled)


def test_prefill_uses_wgmma_and_decode_mma(compiled: list[dict[str, Any]]) -> None:
    wide = [one for one in compiled if one["geometry"] != "float32"]
    assert all(one["wgmma"] for one in wide if one["kernel"] == "prefill_kernel")
    assert all(one["mma"] for one in compiled if one["kernel"] == "decode_kernel")


def test_memory_is_read_sixteen_bytes_at_a_time(compiled: list[dict[str, Any]]) -> None:
    for one in compiled:
        if one["kernel"] in ("prefill_kernel", "decode_kernel"):
            assert one["wide_copies"] > 0, one
        elif one["kernel"] != "best_run_kernel":
            assert one["wide_loads"] > 0, one


@pytest.mark.skipif(bool(os.environ.get("TRITON_INTERPRET")), reason="TRITON_INTERPRET is set: nothing is compiled")
def test_no_batch_compiles_what_another_has_not() -> None:
    """Batches differ in sequences, tokens, table width and splits; only two of all these choices may compile anew."""

    def keys(seqs: int, width: int, longest: int, splits: int) -> set[str]:
        meta = partial(torch.empty, device="meta")
        q, cache = meta(seqs, 8, 64, dtype=torch.bfloat16), meta(99, 2, 16, 2, 64, dtype=torch.bfloat16)
        table, lens = meta(seqs, width, dtype=torch.int32), meta(seqs, dtype=torch.int32)
        starts, keys = meta(seqs + 1, dtype=torch.int32), meta(seqs, dtype=torch.int64)
        scratch = ops.decode_scratch(seqs, 8, 64, "meta")
        with caught_launches() as caught, use_launches(HOPPER), ops.use_backend("triton"):
            ops.paged_prefill_attention(q, q, cache, table, starts, lens, max_query_len=longest)
            ops.paged_decode_attention(q, q, cache, table, lens, scratch, num_splits=splits)
            ops.rms_norm(meta(seqs, 512), meta(512), eps=1e-6)
            ops.silu_mul(meta(seqs, 512))
            ops.gumbel_argmax(meta(seqs, 1000), meta(seqs), keys, keys)
            ops.qk_norm_rope_kv_write(q, q[:, :2], q[:, :2], keys, keys, meta(width, 64), cache)
        return {compile_source(launch)[1] for launch in caught}

    whole = keys(16, 16, 64, 2)
    for seqs, width, longest, splits in ((1, 1, 1, 16), (17, 5, 33, 4), (64, 128, 512, 8)):
        assert keys(seqs, width, longest, splits) == whole
    assert len(keys(16, 16, 64, 1) - whole) == 1, "decode without splits"
    assert len(keys(16, 16, 4096, 2) - whole) == 1, "a long prefill"


@pytest.mark.skipif(bool(os.environ.get("TRITON_INTERPRET")), reason="TRITON_INTERPRET is set: nothing is compiled")
def test_where_an_index_lies_compiles_nothing() -> None:
    """Index arrays are views into one packed buffer: they start at any multiple of four bytes."""
    by_module = {
        "prefill_attention_kernel": ["prefill_kernel"],
        "decode_attention_kernel": ["decode_kernel", "merge_kernel"],
        "rope_kv_write_kernel": ["rope_kv_write_kernel"],
        "sampling_kernel": ["gumbel_kernel"],
        "block_copy_kernel": ["block_copy_kernel"],
    }
    for module, names in by_module.items():
        for name in names:
            parameters = getattr(importlib.import_module(f"replay_kernels.{module}"), name).params
            indexes = {"table", "starts", "kv_lens", "positions", "slots", "temperature", "seed", "position", "pairs"}
            found = [each for each in parameters if each.name in indexes]
            assert found and all(each.do_not_specialize_on_alignment for each in found), name

"""Compiles every kernel for a device that is not there, and says what came out: registers, spills, shared memory, instructions.

    python -m replay_kernels.ahead_of_time [--arch 90] [--only TEXT] [--brief] [--json]

The ops are called as the engine calls them, on tensors without storage; their launches are caught and compiled with the
arguments, constants and alignments that a launch would have compiled them with. No device and no driver is needed; triton
brings the assembler.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import replay_kernels as ops
from replay_kernels.launch import HOPPER, OLDER, Launches, use_launches

__all__ = ["GEOMETRIES", "Compiled", "Geometry", "caught_launches", "compile_all", "compile_source", "main"]


class Geometry(NamedTuple):
    """What of a model the kernels are compiled for: ``prefill`` by the longest query of a launch, decode by its KV splits.
    ``brief`` ones are enough to compile every op and every configuration of the launch table once."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    dtype: torch.dtype
    block_size: int
    splits: tuple[int, ...]
    qk_norm: bool = False
    prefill: tuple[int, ...] = (64, 4096)
    brief: bool = False


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
GEOMETRIES = (
    Geometry("llama-3.1-8b", 32, 8, 128, 4096, BF16, 16, (1, 16), brief=True),
    Geometry("qwen3-0.6b", 16, 8, 128, 1024, BF16, 16, (4,), qk_norm=True),
    Geometry("qwen2.5-7b", 28, 4, 128, 3584, BF16, 32, (2,)),
    Geometry("float16, heads of 64", 32, 8, 64, 2048, FP16, 16, (1,)),
    Geometry("heads of 256", 16, 8, 256, 2048, BF16, 16, (8,), brief=True),
    Geometry("one kv head", 32, 1, 128, 4096, BF16, 64, (16,), prefill=()),
    Geometry("float32", 8, 4, 128, 1024, FP32, 16, (4,), qk_norm=True, prefill=(64,), brief=True),
)


class Compiled(NamedTuple):
    """One kernel with one set of constants: what its assembly holds.

    ``shared`` and ``spilled`` (the stack frame, which is what spilled registers need) in bytes; ``wide_copies`` and
    ``wide_loads`` count 16-byte copies into shared memory and 16-byte loads; ``seconds`` is the work of compiling it.
    """

    geometry: str
    kernel: str
    constants: dict[str, Any]
    warps: int
    stages: int
    registers: int
    spilled: int
    shared: int
    wgmma: bool
    mma: bool
    wide_copies: int
    wide_loads: int
    seconds: float


class Launch(NamedTuple):
    """A caught launch: the jitted function, its positional arguments and its keywords."""

    kernel: Any
    args: tuple[Any, ...]
    keywords: dict[str, Any]


@contextmanager
def caught_launches() -> Iterator[list[Launch]]:
    """Collects the launches of the block instead of making them."""
    from triton.runtime.jit import JITFunction

    caught: list[Launch] = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        caught.append(Launch(self, args, keywords))

    before = JITFunction.run
    JITFunction.run = run
    try:
        yield caught
    finally:
        JITFunction.run = before


def op_calls(model: Geometry) -> Iterator[Callable[[], Any]]:
    """Every op of one geometry as a call on tensors without storage, prefill both short and long."""

    def made(*shape: int, dtype: torch.dtype = model.dtype) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    tokens, seqs, vectors = 64, 32, (model.heads, model.head_dim)
    int32 = torch.int32
    cache = made(1024, 4, 2, model.block_size, model.kv_heads, model.head_dim)[:, 1]
    table, lens, starts = made(seqs, 513, dtype=int32), made(seqs, dtype=int32), made(seqs + 1, dtype=int32)
    width = (model.heads + 2 * model.kv_heads) * model.head_dim
    packed = made(tokens, width).view(tokens, -1, model.head_dim)
    q, k, v = torch.split(packed, [model.heads, model.kv_heads, model.kv_heads], 1)
    out = made(tokens, *vectors)
    weight = made(model.head_dim) if model.qk_norm else None
    scratch = ops.decode_scratch(seqs, *vectors, "meta")
    place = made(tokens, dtype=torch.int64)
    for longest in model.prefill:
        yield partial(ops.paged_prefill_attention, out, q, cache, table, starts, lens, max_query_len=longest)
    for splits in model.splits:
        yield partial(ops.paged_decode_attention, out[:seqs], q[:seqs], cache, table, lens, scratch, num_splits=splits)
    angles = made(4096, model.head_dim, dtype=FP32)
    yield partial(ops.qk_norm_rope_kv_write, q, k, v, place, place, angles, cache, q_weight=weight, k_weight=weight)
    for residual in (None, made(tokens, model.hidden)):
        yield partial(ops.rms_norm, made(tokens, model.hidden), made(model.hidden), residual, eps=1e-6)
    yield partial(ops.silu_mul, made(tokens, 8 * model.hidden))
    yield partial(ops.gumbel_argmax, made(seqs, 151_936), made(seqs, dtype=FP32), place[:seqs], place[:seqs])
    yield partial(ops.copy_blocks, cache.new_empty(64, 4096), cache.new_empty(64, 4096), made(8, 2, dtype=torch.int64))


def compile_all(arch: int = 90, only: str = "", chosen: Launches | None = None, brief: bool = False) -> Iterator[Compiled]:
    """Compiles what ``GEOMETRIES`` call, each distinct kernel once; ``only`` keeps names (geometry or kernel) that contain it.

    ``brief`` leaves out geometries that bring no new configuration.
    """
    seen = set()
    with use_launches(chosen or (HOPPER if arch >= 90 else OLDER)), ops.use_backend("triton"):
        for model in (each for each in GEOMETRIES if each.brief or not brief):
            with caught_launches() as caught:
                for call in op_calls(model):
                    call()
            for launch in caught:
                source, key = compile_source(launch)
                if key in seen or only not in f"{model.name} {launch.kernel.__name__}":
                    continue
                seen.add(key)
                yield _compiled(model.name, launch, source, arch)


def compile_source(launch: Launch) -> tuple[Any, str]:
    """What a launch would compile: argument types, constants, which arguments are multiples of 16; and what identifies that."""
    from triton.compiler import ASTSource

    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    bound = dict(zip(launch.kernel.arg_names, launch.args, strict=False)) | launch.keywords
    for place, parameter in enumerate(launch.kernel.params):
        value = bound[parameter.name]
        special = not parameter.do_not_specialize
        if parameter.is_constexpr or (special and isinstance(value, int) and value == 1):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        signature[parameter.name] = _type_name(value)
        lies = special and not parameter.do_not_specialize_on_alignment
        if (lies and isinstance(value, torch.Tensor)) or (special and isinstance(value, int) and value % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
    options = {name: launch.keywords[name] for name in ("num_warps", "num_stages") if name in launch.keywords}
    key = repr((launch.kernel.__name__, signature, constants, attributes, options))
    return ASTSource(launch.kernel, signature, constants, attributes), key


def _type_name(value: Any) -> str:
    names = {BF16: "bf16", FP16: "fp16", FP32: "fp32", torch.int32: "i32", torch.int64: "i64"}
    if isinstance(value, torch.Tensor):
        return f"*{names[value.dtype]}"
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _compiled(geometry: str, launch: Launch, source: Any, arch: int) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget

    start = time.perf_counter()
    options = {name: launch.keywords[name] for name in ("num_warps", "num_stages") if name in launch.keywords}
    done = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    ptx = done.asm["ptx"]
    registers, spilled = _resources(done.asm["cubin"])
    return Compiled(
        geometry=geometry,
        kernel=launch.kernel.__name__,
        constants={name: value for (place,), value in source.constants.items() for name in [launch.kernel.arg_names[place]]},
        warps=done.metadata.num_warps,
        stages=done.metadata.num_stages,
        registers=registers,
        spilled=spilled,
        shared=done.metadata.shared,
        wgmma="wgmma.mma_async" in ptx,
        mma="mma.sync" in ptx,
        wide_copies=len(re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^\]]*\], \[[^\]]*\], 0x10", ptx)),
        wide_loads=len(re.findall(r"ld\.global[.\w:]*v4\.b32", ptx)),
        seconds=round(time.perf_counter() - start, 2),
    )


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack frame per thread of a compiled kernel, by the disassembler that triton brings."""
    import triton

    reader = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([str(reader), "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", said)
    if found is None:
        raise ValueError(f"cuobjdump does not name registers and stack: {said[-300:]!r}")
    return int(found[1]), int(found[2]) + int(found[3])


def main(words: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m replay_kernels.ahead_of_time", description="Compile without a device.")
    parser.add_argument("--arch", type=int, default=90, help="compute capability, 90 for H100 and H200")
    parser.add_argument("--only", default="", help="only geometries or kernels whose name contains this")
    parser.add_argument("--brief", action="store_true", help="every op and configuration once, not every model's shape")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    given = parser.parse_args(words)
    for one in compile_all(given.arch, given.only, brief=given.brief):
        if given.json:
            print(json.dumps(one._asdict()), flush=True)
        else:
            units = "wgmma" if one.wgmma else "mma" if one.mma else ""
            shape = " ".join(f"{name}={value}" for name, value in one.constants.items())
            said = f"{one.registers:4} registers {one.spilled:5} B spilled {one.shared / 1024:6.1f} KB shared {units:6}"
            wide = f"{one.wide_copies:3} wide copies {one.wide_loads:2} wide loads"
            print(
                f"{one.geometry:22} {one.kernel:20} {one.warps}w{one.stages}s {said} {wide} {one.seconds:5.2f} s  {shape}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Checks every op on this machine and prints a line for each finding; exit code 1 if one does not hold.

    python -m replay_kernels.check                     kernels on the GPU: float32, float16, bfloat16
    python -m replay_kernels.check --device cpu        kernels in Triton's interpreter: float32, float16, small cases

Needs torch, triton and numpy. The interpreter computes bfloat16 wrongly without a word, so that it is never asked to.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

__all__ = ["findings", "main", "refusal"]


def findings(device: str, only: str = "", dtype: str = "") -> Iterator[Any]:
    """Findings on ``device``, of parts whose name contains ``only`` and of ``dtype`` (all unless given).

    A part that raises is a finding that does not hold; the next part goes on.
    """
    import torch

    import replay_kernels as ops
    from replay_kernels.attention_checks import attention_checks
    from replay_kernels.device_checks import device_checks
    from replay_kernels.findings import Finding
    from replay_kernels.op_checks import op_checks

    narrow = (torch.float32, torch.float16)
    tier, dtypes = ("interp", narrow) if device == "cpu" else ("gpu", (*narrow, torch.bfloat16))
    parts: list[tuple[Any, ...]] = [
        (checks, tier, device, (kind,))
        for kind in dtypes
        if dtype in ("", str(kind)[6:])
        for checks in (attention_checks, op_checks)
    ]
    if device != "cpu":
        parts.append((device_checks, device))
    with ops.use_backend("triton"):
        for part, *given in (each for each in parts if only in each[0].__name__):
            try:
                yield from part(*given)
            except Exception as error:  # one check that fails must not stop the others; it is a finding
                yield Finding(f"{part.__name__} {given[-1]}", False, f"{type(error).__name__}: {error}")


def refusal(triton: str, numpy: str) -> str:
    """Why these versions cannot interpret kernels; empty if they can."""

    def number(version: str) -> tuple[int, int]:
        major, minor, *_ = version.split(".")
        return int(major), int(minor)

    if number(triton) < (3, 7) and number(numpy) >= (2, 4):
        return f"the interpreter of triton {triton} needs numpy below 2.4 and this is {numpy}; triton 3.7 takes either"
    return ""


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def main(words: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m replay_kernels.check", description="Check every kernel on this machine.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu for Triton's interpreter")
    parser.add_argument("--only", default="", help="attention, op or device: only the checks of this part")
    parser.add_argument("--dtype", default="", help="float32, float16 or bfloat16 (GPU only): only this one")
    parser.add_argument("--first", action="store_true", help="end at the first finding that does not hold")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    given = parser.parse_args(words)
    if given.device == "cpu":
        # Read when a kernel is defined: it must be there before the first one is imported.
        os.environ["TRITON_INTERPRET"] = "1"
        why = refusal(version("triton"), version("numpy"))
        if why:
            print(why, file=sys.stderr)
            return 2
    elif not _has_cuda():
        print("no CUDA device; --device cpu checks the kernels in Triton's interpreter", file=sys.stderr)
        return 2
    count = failed = 0
    for finding in findings(given.device, given.only, given.dtype):
        count, failed = count + 1, failed + (not finding.holds)
        if given.json:
            print(json.dumps(finding._asdict()), flush=True)
        else:
            print(f"{'ok' if finding.holds else 'FAILED':6} {finding.name}: {finding.said}", flush=True)
        if failed and given.first:
            break
    if not given.json:
        print(f"{count} findings, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs the interpreter's checks on mutants of the kernels, a forked process for each: torch and triton are imported once.

    python mutants.py PACKAGE MUTANTS.json     prints, for each mutant, "found" or "survived" as a JSON list

Stands alone: it must import the mutated package, not the one under test.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import triton

__all__ = ["main", "outcome"]


def outcome(package: Path, module: str, text: str, mutant: str, part: str) -> str:
    """``found`` if a finding does not hold or the process dies; ``survived`` if all hold; ``stale`` if the text is not there."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "replay_kernels"
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        source = (copy / module).read_text(encoding="utf-8")
        if text not in source:
            return "stale"
        (copy / module).write_text(source.replace(text, mutant), encoding="utf-8")
        child = os.fork()
        if child == 0:
            _check(folder, part)
        return "survived" if os.waitpid(child, 0)[1] == 0 else "found"


def _check(folder: str, part: str) -> None:
    """Never returns: the exit code is that of the checks."""
    code = 3
    try:
        sys.path.insert(0, folder)
        from replay_kernels import check

        assert check.__file__.startswith(folder)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            # float16 shows what float32 does, and roundings.
            code = check.main(["--device", "cpu", "--only", part, "--dtype", "float16", "--first", "--json"])
    finally:
        os._exit(code)


def main(package: str, listed: str) -> None:
    """All mutants, in order."""
    assert torch.get_num_threads() == 1 and triton.knobs.runtime.interpret
    mutants = json.loads(Path(listed).read_text(encoding="utf-8"))
    print(json.dumps([outcome(Path(package), *mutant) for mutant in mutants]))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Which of the two bodies of an op runs: its torch reference, or its Triton kernel.

``auto`` (the default): Triton on CUDA tensors, the reference everywhere else. ``reference`` and ``triton`` force one;
``triton`` on CPU tensors needs ``TRITON_INTERPRET=1`` set before the first kernel is imported. The environment variable
``REPLAY_KERNELS`` sets the start value.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

__all__ = ["BACKENDS", "backend", "kernel", "use_backend", "uses_triton"]

BACKENDS = ("auto", "reference", "triton")


def _from_environment() -> str:
    name = os.environ.get("REPLAY_KERNELS", "auto")
    if name not in BACKENDS:
        raise ValueError(f"REPLAY_KERNELS={name!r}: expected one of {', '.join(BACKENDS)}")
    return name


_chosen = _from_environment()


def backend() -> str:
    """The backend in force: ``auto``, ``reference`` or ``triton``."""
    return _chosen


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Runs the block with the given backend (one of ``BACKENDS``; ValueError otherwise). Not for use across threads."""
    global _chosen
    if name not in BACKENDS:
        raise ValueError(f"backend {name!r}: expected one of {', '.join(BACKENDS)}")
    before, _chosen = _chosen, name
    try:
        yield
    finally:
        _chosen = before


def uses_triton(tensor: torch.Tensor) -> bool:
    """Whether an op on ``tensor`` runs its Triton kernel."""
    return tensor.is_cuda if _chosen == "auto" else _chosen == "triton"


@cache
def kernel(module: str) -> Any:
    """The module ``replay_kernels.<module>``, imported at its first use, so that references need no triton."""
    return importlib.import_module(f"replay_kernels.{module}")

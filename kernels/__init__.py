"""Triton kernels, each beside its torch reference. Installed under the import name ``replay_kernels``. Nothing here yet."""

from __future__ import annotations

__all__: list[str] = []

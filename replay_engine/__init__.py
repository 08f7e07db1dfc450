"""Replays requests through a continuous-batching engine. Needs numpy and nothing else."""

from __future__ import annotations

__all__: list[str] = []

"""A gate: limits that a replay must keep, absolute, against a baseline, or on what the diagnosis finds."""

from __future__ import annotations

__all__: list[str] = []

"""The local dashboard: pages over the record, read while it is written. ``tracekit dashboard`` starts it."""

from __future__ import annotations

__all__: list[str] = []

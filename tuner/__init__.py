"""Policy search over a trace. Nothing here yet."""

from __future__ import annotations

__all__: list[str] = []

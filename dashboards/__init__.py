"""Pages, figures and queries of the local dashboard. Nothing here yet."""

from __future__ import annotations

__all__: list[str] = []

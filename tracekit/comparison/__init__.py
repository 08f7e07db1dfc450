"""Two recorded runs compared: figures with intervals, and who won and who lost, request by request."""

from __future__ import annotations

__all__: list[str] = []

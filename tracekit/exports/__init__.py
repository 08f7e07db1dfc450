"""What a run gives to others: traces for viewers, tables, tickets, flags to paste. Every file appears whole or not at all."""

from __future__ import annotations

__all__: list[str] = []

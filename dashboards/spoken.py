"""Errors as a page says them: the words a terminal gets, without the backticks that set commands off there."""

from __future__ import annotations

__all__ = ["spoken"]


def spoken(error: BaseException | str) -> str:
    """What an error says, for a page."""
    return str(error).replace("`", "")

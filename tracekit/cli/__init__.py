"""The command line: one module per group of verbs, each verb a thin call of the library."""

from __future__ import annotations

__all__: list[str] = []

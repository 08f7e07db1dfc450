"""A gate: limits that a replay must keep, absolute, against a baseline, or on what the diagnosis finds."""

from __future__ import annotations

from typing import Any

from tracekit.callable_module import make_callable

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    """The verb, whose imports are heavy."""
    if name != "gate":
        raise AttributeError(f"module 'tracekit.gate' has no attribute {name!r}")
    from tracekit.gate.run import gate

    return gate


make_callable(__name__)

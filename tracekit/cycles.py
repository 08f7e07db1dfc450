"""When Python looks for cycles of objects that nobody reaches any more."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_gc"]


@contextmanager
def quiet_gc() -> Iterator[None]:
    """No cycle collection while the loop runs: it makes no cycles, and looking for them costs up to a third of the time. Nothing
    is collected before either: a process with many objects, as a notebook's, pays for that as much as for a short replay."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

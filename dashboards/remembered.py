"""Things that take long to make and never change, kept while they are looked at."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar, cast

__all__ = ["Remembered"]

T = TypeVar("T")


class Remembered:
    """At most ``most`` values by key, the least recently asked for going first. Safe from any thread; a value is made once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.RLock()
        self._values: OrderedDict[str, object] = OrderedDict()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """The value of ``key``, made now if it is not there."""
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
                while len(self._values) > self._most:
                    self._values.popitem(last=False)
            self._values.move_to_end(key)
            return cast(T, self._values[key])

"""Things that take long to make and never change, kept while they are looked at."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar, cast
from weakref import WeakValueDictionary

import numpy as np

__all__ = ["Coming", "Remembered", "array_bytes"]

T = TypeVar("T")
V = TypeVar("V")


def array_bytes(value: object) -> int:
    """Of the arrays in a tuple, and in tuples in it."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sum(map(array_bytes, value)) if isinstance(value, tuple) else 0


class Remembered(Generic[V]):
    """Values by key, of ``most`` weight together, the least recently asked for going first; one always stays.

    ``weigh``: the weight of a value, 1 unless said. Safe from any thread. A value is made once: whoever asks for it meanwhile
    waits for it, and whoever asks for another key does not.
    """

    def __init__(self, most: int, weigh: Callable[[V], int] | None = None) -> None:
        self._most = most
        self._weigh = weigh or (lambda _: 1)
        self._lock = threading.Lock()
        self._values: OrderedDict[str, V] = OrderedDict()
        self._making: WeakValueDictionary[str, Any] = WeakValueDictionary()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """The value of ``key``, made now if it is not there. What ``make`` raises is raised, and nothing is kept."""
        with self._lock:
            if key in self._values:
                return cast(T, self._found(key))
            making = self._making.get(key)
            if making is None:
                making = self._making[key] = threading.RLock()
        with making:
            with self._lock:
                if key in self._values:
                    return cast(T, self._found(key))
            made = make()
            self.put(key, cast(V, made))
        return made

    def put(self, key: str, value: V) -> None:
        """Keep a value that is there already."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > 1 and sum(map(self._weigh, self._values.values())) > self._most:
                self._values.popitem(last=False)

    def _found(self, key: str) -> object:
        self._values.move_to_end(key)
        return self._values[key]


class Coming:
    """Things that take long to make, by key, for those who would rather ask again than wait. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._coming: dict[str, Future[object]] = {}

    def soon(self, key: str, make: Callable[[], T], within_s: float) -> T | None:
        """What ``make`` gives, if it is there ``within_s`` from now; ``None`` while a thread, the one for all, still makes it.
        What ``make`` raises is raised; nothing is kept."""
        with self._lock:
            coming = self._coming.get(key)
            if coming is None:
                coming = self._coming[key] = Future()
                threading.Thread(target=_fulfil, args=(coming, make), daemon=True).start()
        try:
            return cast(T, coming.result(within_s))
        except TimeoutError:  # of waiting for it, or its own
            return cast(T, coming.result()) if coming.done() else None
        finally:
            if coming.done():
                with self._lock:
                    if self._coming.get(key) is coming:
                        del self._coming[key]


def _fulfil(coming: Future[object], make: Callable[[], object]) -> None:
    try:
        coming.set_result(make())
    except Exception as error:  # whatever it is, it is raised again before whoever asked
        coming.set_exception(error)

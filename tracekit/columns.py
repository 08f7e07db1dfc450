"""A table whose columns lie each by itself and come when they are asked for: less memory than rows, and faster to go through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast, overload

import numpy as np
import numpy.typing as npt

__all__ = ["Columns", "as_rows"]

Cut = Callable[[str], Mapping[str, npt.NDArray[Any]]]


class Columns:
    """Asked like a structured array: ``table["duration_ns"]`` is a column, ``table[which]`` are the rows of a slice, a mask or
    indices; ``table[7]`` is a row, and so are those that it is walked by, which takes time. Columns must not be written to.

    ``cut(name)`` is called once for a column, and may give others along with it that are cheap to have then.
    """

    __slots__ = ("_cut", "_kept", "_length", "dtype")

    def __init__(self, dtype: np.dtype[np.void], length: int, cut: Cut) -> None:
        self.dtype = dtype
        self._length = length
        self._cut = cut
        self._kept: dict[str, npt.NDArray[Any]] = {}

    @classmethod
    def of(cls, rows: npt.NDArray[np.void]) -> Columns:
        """The columns of a structured array."""
        return cls(rows.dtype, len(rows), lambda name: {name: np.ascontiguousarray(rows[name])})

    def __len__(self) -> int:
        return self._length

    @property
    def size(self) -> int:
        return self._length

    @overload
    def __getitem__(self, which: str) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, which: slice | npt.NDArray[Any]) -> Columns: ...
    @overload
    def __getitem__(self, which: int) -> np.void: ...
    def __getitem__(self, which: str | slice | npt.NDArray[Any] | int) -> npt.NDArray[Any] | Columns | np.void:
        if isinstance(which, int | np.integer):
            row: np.void = np.asarray(self._part(np.array([which])))[0]
            return row
        if not isinstance(which, str):
            return self._part(which)
        if which not in self._kept:
            if which not in (self.dtype.names or ()):
                raise ValueError(f"no field of name {which}")  # as numpy says it
            self._kept.update(self._cut(which))
        return self._kept[which]

    def _part(self, which: slice | npt.NDArray[Any]) -> Columns:
        if not isinstance(which, slice):
            which = np.asarray(which)
            which = np.flatnonzero(which) if which.dtype == np.bool_ else which
        length = len(range(*which.indices(self._length))) if isinstance(which, slice) else len(which)
        return Columns(self.dtype, length, lambda name: {name: self[name][which]})

    def __iter__(self) -> Iterator[np.void]:
        return iter(np.asarray(self))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """The rows, for whoever needs them as such."""
        rows = np.empty(self._length, self.dtype)
        for name in self.dtype.names or ():
            rows[name] = self[name]
        return rows if dtype is None else rows.astype(dtype)


def as_rows(columns: Columns) -> npt.NDArray[np.void]:
    """``columns`` for those who only ask for columns and parts of a table, whichever way it lies."""
    return cast(npt.NDArray[np.void], columns)

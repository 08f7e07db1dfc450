"""Columns of Arrow tables as the arrays the engine takes: int64 with a number for unknown, labels as codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["aligned", "codes", "column_of", "ints", "known", "taken"]

Ints = npt.NDArray[np.int64]


def aligned(extras: pa.Table | None, req_idx: Ints) -> pa.Table | None:
    """``extras`` with one row per request of ``req_idx``, NULL where it had none."""
    import pyarrow as pa

    if extras is None or not extras.num_rows:
        return None
    owner = ints(extras, "req_idx")
    at = np.minimum(np.searchsorted(owner, req_idx), len(owner) - 1)
    return extras.take(pa.array(at, mask=owner[at] != req_idx))


def ints(table: pa.Table, name: str, null: int = -1) -> Ints:
    """A column as int64, NULL as ``null``."""
    column = table[name]
    if column.null_count:
        import pyarrow as pa
        import pyarrow.compute as pc

        column = pc.fill_null(column.cast(pa.int64()), null)
    return np.asarray(column.to_numpy(), np.int64)


def taken(table: pa.Table, rows: Ints) -> pa.Table:
    """The rows of a table at ``rows``; where they follow each other, without Arrow's own ``take``, which loads all its functions
    first: that takes as long as reading ten thousand requests."""
    first = int(rows[0]) if len(rows) else 0
    if np.array_equal(rows, np.arange(first, first + len(rows))):
        return table.slice(first, len(rows))
    return table.take(rows)


def column_of(table: pa.Table | None, name: str) -> Any:
    """A column, or ``None`` when the table lacks it or it says nothing."""
    if table is None or name not in table.column_names or table[name].null_count == len(table):
        return None
    return table[name]


def known(table: pa.Table | None, name: str, null: int = -1) -> Ints | None:
    """A column as int64 with ``null`` for unknown, ``None`` when nothing is known."""
    return None if table is None or column_of(table, name) is None else ints(table, name, null)


def codes(table: pa.Table | None, name: str) -> tuple[npt.NDArray[np.int32] | None, list[str]]:
    """Codes and names in order of first appearance."""
    column = column_of(table, name)
    if column is None:
        return None, []
    import pyarrow.compute as pc

    coded = column.combine_chunks().dictionary_encode()
    codes = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)
    return np.asarray(codes, np.int32), coded.dictionary.to_pylist()

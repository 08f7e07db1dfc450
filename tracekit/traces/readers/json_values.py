"""Lists of JSON values to canonical arrays: at array speed where all are of the plain type, one by one where they are not."""

from __future__ import annotations

import calendar
import math
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.traces.readers.cells import ABSENT, GROUPED

__all__ = ["Values", "block_ids", "dates", "numbers", "parse_date", "texts", "wholes"]

Ints = npt.NDArray[np.int64]
INT64 = 9 * 10**18
_GROUPED = re.compile(GROUPED.replace("''", "'"))
_DATE = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](\d{1,9})\d*)?\s*(Z|[+-]\d\d:?\d\d)?$")


@dataclass(slots=True)
class Values:
    """One column of a chunk: ``data`` int64 (or a list of texts), ``null`` where unknown, ``bad`` with a reason per row."""

    data: Any
    null: npt.NDArray[np.bool_] | None = None
    bad: dict[int, str] = field(default_factory=dict)

    def arrow(self, keep: npt.NDArray[np.bool_] | None) -> Any:
        """As an Arrow array of the rows to keep."""
        import pyarrow as pa

        if isinstance(self.data, list):
            kept = self.data if keep is None else [text for text, take in zip(self.data, keep, strict=True) if take]
            return pa.array(kept, pa.string())
        data, null = (self.data, self.null) if keep is None else (self.data[keep], None if self.null is None else self.null[keep])
        return pa.array(data, mask=null)


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in ABSENT) or value != value


def _each(values: list[Any], one: Callable[[Any], int | str], required: bool) -> Values:
    """The careful way: ``one`` returns the number, or the reason why there is none."""
    data = np.zeros(len(values), np.int64)
    null = np.zeros(len(values), bool)
    bad: dict[int, str] = {}
    for i, value in enumerate(values):
        if _absent(value):
            null[i] = True
            if required:
                bad[i] = "missing"
            continue
        result = one(value)
        if isinstance(result, str):
            bad[i] = result
        else:
            data[i] = result
    return Values(data, null if null.any() else None, bad)


def _plain(values: list[Any], low: int, high: int) -> Ints | None:
    if set(map(type, values)) != {int}:
        return None
    try:
        data = np.array(values, np.int64)
    except OverflowError:
        return None
    return data if len(data) and data.min() >= low and data.max() <= high else None


def wholes(values: list[Any], low: int, high: int, required: bool) -> Values:
    """Whole numbers between ``low`` and ``high``; integral floats and texts of them pass."""
    data = _plain(values, low, high)
    if data is not None:
        return Values(data)

    def one(value: Any) -> int | str:
        number = _number(value)
        if isinstance(number, str):
            return number
        if number < low:
            return "negative" if low == 0 else "too small"
        if number != math.floor(number):
            return "not a whole number"
        return "too large" if number > high else int(number)

    return _each(values, one, required)


def _number(value: Any) -> float | int | str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return "not a number"
    if isinstance(value, str) and _GROUPED.fullmatch(value.strip()):
        return "a thousands separator or a fraction"
    try:
        number = value if isinstance(value, int) else float(value)
    except ValueError:
        return "not a number"
    return number if math.isfinite(number) else "not a number"


def numbers(values: list[Any], factor: int, required: bool, *, signed: bool) -> Values:
    """Numbers of a time unit to ns (``factor`` ns in one)."""
    limit = INT64 // factor
    kinds = set(map(type, values))
    if kinds <= {int, float} and kinds:
        if kinds == {int}:
            whole = _plain(values, -limit if signed else 0, limit)
            if whole is not None:
                return Values(whole * factor)
        else:
            data = np.array(values, np.float64)
            if np.isfinite(data).all() and np.abs(data).max() < limit and (signed or data.min() >= 0):
                return Values(_scaled(data, factor))

    def one(value: Any) -> int | str:
        number = _number(value)
        if isinstance(number, str):
            return "not a time" if signed else number
        if not signed and number < 0:
            return "negative"
        return "too large" if abs(number) > limit else int(_scaled(np.array([number], np.float64), factor)[0])

    return _each(values, one, required)


def _scaled(data: npt.NDArray[np.float64], factor: int) -> Ints:
    # the fraction apart: at epoch scale the product would lose another 100 ns
    whole = np.floor(data)
    return whole.astype(np.int64) * factor + np.rint((data - whole) * factor).astype(np.int64)


def parse_date(text: str) -> int | None:
    """ns since 1970 of an ISO date (no offset: UTC, up to nine digits of seconds), or ``None``."""
    match = _DATE.match(text.strip())
    if match is None:
        return None
    try:
        # a leap second is the first of the next minute, as clocks that do not know it would have it
        leap = match[1].endswith(":60")
        moment = datetime.fromisoformat((match[1][:-2] + "59" if leap else match[1]) + (match[3] or "+00:00"))
        seconds = calendar.timegm(moment.utctimetuple())
    except (ValueError, OverflowError):
        return None
    return (seconds + leap) * 10**9 + int((match[2] or "0").ljust(9, "0"))


def dates(values: list[Any], required: bool) -> Values:
    """ISO dates to ns since 1970."""

    def one(value: Any) -> int | str:
        moment = parse_date(value) if isinstance(value, str) else None
        return "not a time" if moment is None else moment if abs(moment) < INT64 else "too far from now"

    return _each(values, one, required)


def texts(values: list[Any]) -> Values:
    """Texts; numbers are written out, empty ones are unknown."""
    kinds = set(map(type, values))
    if kinds <= {str, type(None)}:
        return Values([text or None for text in values])
    bad = {i: "not a text" for i, value in enumerate(values) if isinstance(value, dict | list)}
    return Values([None if i in bad or value is None or value == "" else str(value) for i, value in enumerate(values)], None, bad)


def block_ids(values: list[Any]) -> tuple[npt.NDArray[np.uint64], Ints, dict[int, str]]:
    """Lists of block ids: all ids in one flat uint64 array, how many each row has, and bad rows (which have none)."""
    lists, bad = values, {}
    if set(map(type, values)) != {list}:
        bad = {i: "not a list of block ids" for i, value in enumerate(values) if not isinstance(value, list | type(None))}
        lists = [value if isinstance(value, list) else [] for value in values]
    flat: list[Any] = []
    for one in lists:
        flat += one
    ids = _unsigned(flat)
    if ids is None:
        lists = list(lists)
        for i, one in enumerate(lists):
            parsed = [_block_id(value) for value in one]
            if None in parsed:
                bad[i] = "a block id is not a whole number from 0 to 2^64 - 1"
                parsed = []
            lists[i] = parsed
        ids = np.array([value for one in lists for value in one], np.uint64)
    return ids, np.fromiter(map(len, lists), np.int64, len(lists)), bad


def _unsigned(flat: list[Any]) -> npt.NDArray[np.uint64] | None:
    # unlike numpy, this takes whole numbers only, at half the price
    try:
        return np.frombuffer(array("Q", flat), np.uint64)
    except (TypeError, OverflowError):
        return None


def _block_id(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        value = int(value) if value.is_integer() and abs(value) < 2**53 else None
    elif isinstance(value, str):
        try:
            value = int(value, 16 if value.lower().startswith("0x") or re.search("[a-fA-F]", value) else 10)
        except ValueError:
            value = None
    return value if isinstance(value, int) and 0 <= value < 2**64 else None

"""From the columns a file has to the canonical ones: as mapped by hand, else as recognised by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from tracekit.errors import InputError, shown
from tracekit.traces.columns import COLUMNS, REQUIRED, Mapped, guess_mapping
from tracekit.traces.stage import Facts

__all__ = ["choose_fields", "told_names"]

TOLD = 12

LENGTHS_ONLY = ", or --arrival poisson:rate=5 for a file of lengths only"


def told_names(names: Sequence[str], most: int = TOLD) -> str:
    """Column names for a message: escaped, clipped, some of them; what may be a row of data instead is only described."""
    told = [f"a text of {len(name)} characters" if _is_prose(name) else shown(name, 48) or "''" for name in names[:most]]
    return ", ".join(told) + (", ..." if len(names) > most else "")


def _is_prose(name: str) -> bool:
    return "@" in name or len(re.findall(r"[^\W\d_]{2,}", name[:400])) > 5 or re.search(r"[^\x00-\x7f]{9}", name) is not None


def _is_data(name: str) -> bool:
    return re.fullmatch(r"\s*([+-]?[\d.,eE+-]*\d|\d{4}-\d\d-\d\d.*|)\s*", name) is not None


def choose_fields(file: str, names: list[str], mapping: Mapping[str, Mapped], facts: Facts, *,
                  blocks: bool = False, timed: bool = True) -> list[Mapped]:  # fmt: skip
    """The fields to read from a file with columns ``names``; not ``timed``: it may have no arrivals.

    Errors: ``InputError`` listing what is missing and what is near.
    """
    for mapped in mapping.values():
        if mapped.source not in names:
            near = difflib.get_close_matches(mapped.source, names, n=3, cutoff=0.4)
            raise InputError(
                f"no column {mapped.source} for {mapped.column.name}", file=file,
                expected=f"one of {told_names(near or names)}",
            )  # fmt: skip
    chosen = guess_mapping(names) | dict(mapping)
    missing = [name for name in REQUIRED if name not in chosen and (timed or name != "arrival")]
    if missing and len(names) > 1 and sum(map(_is_data, names)) * 2 > len(names):
        raise InputError("the first line is a row of data, not a header", file=file, line=1, expected="a line of column names")
    if missing:
        raise InputError(
            f"no column for {', '.join(missing)}; the file has {told_names(names)}", file=file,
            expected=f"--map {missing[0]}=COLUMN for each of them{LENGTHS_ONLY if missing == ['arrival'] else ''}",
        )  # fmt: skip
    fields = [chosen[name] for name in COLUMNS if name in chosen and (blocks or COLUMNS[name].kind != "blocks")]
    read = {field.source for field in fields}
    facts.ignore(name for name in names if name not in read)
    return fields

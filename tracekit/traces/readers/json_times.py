"""Moments in JSON rows: dates or numbers, in which unit, decided once per file by its first rows; a later change is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.errors import InputError
from tracekit.traces.columns import UNITS, Mapped
from tracekit.traces.inputs import Source
from tracekit.traces.readers import json_values
from tracekit.traces.readers.cell_times import NAIVE
from tracekit.traces.readers.json_values import Values
from tracekit.traces.stage import Stage
from tracekit.traces.units import DATED, bucket, epoch_unit, nanoseconds

__all__ = ["Units", "times"]

Ints = npt.NDArray[np.int64]
_ZONED = re.compile(r":.*(Z|[+-]\d\d:?\d\d)\s*$")


@dataclass(slots=True)
class Units:
    """What is decided once per file: the units."""

    units: dict[str, str] = field(default_factory=dict)
    dates: dict[str, bool] = field(default_factory=dict)
    buckets: dict[str, str | None] = field(default_factory=dict)


def times(mapped: Mapped, values: list[Any], lines: Ints, source: Source, stage: Stage, state: Units) -> Values:
    """ns of a column of moments. Errors: ``InputError`` where the unit changes."""
    name, required = mapped.column.name, not mapped.column.nullable
    if name not in state.dates:
        known = [value for value in values if isinstance(value, int | float)]
        state.dates[name] = mapped.unit is None and len(known) * 2 < len(values)
        # what most are tells; one of another unit is found out below
        dated = [value for value in map(abs, known) if value * UNITS[mapped.unit or "s"] >= DATED]
        largest = dated[0] if len(dated) * 2 > len(known) else max((v for v in map(abs, known) if v < 1e8), default=0.0)
        unit, absolute = ("ns", True) if state.dates[name] else epoch_unit(mapped, largest, stage.facts)
        state.units[name], state.buckets[name] = unit, None if state.dates[name] else bucket(largest)
        if name == "arrival":
            stage.facts.absolute = absolute
            zoned = any(_ZONED.search(str(value)) for value in values[:10])
            stage.facts.zone_assumed = state.dates[name] and not zoned
            if state.dates[name]:
                stage.facts.times[mapped.source] = "dates with an offset" if zoned else NAIVE
    if state.dates[name]:
        return json_values.dates(values, required)
    if mapped.unit is None:
        _same_unit(mapped, values, lines, source, state)
    found = json_values.numbers(values, nanoseconds(state.units[name]), required, signed=True)
    if name == "arrival" and stage.facts.absolute:
        for i in np.flatnonzero(np.abs(found.data) < DATED).tolist():
            found.bad.setdefault(i, "not a date, as the others are")
    return found


def _same_unit(mapped: Mapped, values: list[Any], lines: Ints, source: Source, state: Units) -> None:
    expected = state.buckets[mapped.column.name]
    sizes = np.array([abs(value) if isinstance(value, int | float) else 0 for value in values], np.float64)
    dated = sizes[sizes >= 1e8]
    if not len(dated) or bucket(float(dated.min())) == bucket(float(dated.max())) == expected:
        return
    for line, value, size in zip(lines.tolist(), values, sizes.tolist(), strict=True):
        found = bucket(size)
        if found is not None and found != expected:
            raise InputError(
                f"the unit of time changes from {expected or 'small numbers'} to {found}", file=source.name, line=line,
                column=mapped.source, value=value, expected="one unit in a file",
            )  # fmt: skip

"""How much of a replay lies outside of what its profile was fitted for, counted while its iterations go by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.profile import Profile
from replay_engine.types import EventSink
from tracekit.metrics.wording import count
from tracekit.trust.regime import RANGES, reached_in

__all__ = ["LEAST", "RangeMeter", "fitted_ranges", "outside_words"]

LEAST = 0.01
"""Share of the engine's time outside of a range from which a result counts as extrapolated."""


def fitted_ranges(profile: Profile) -> dict[str, tuple[float, float]]:
    """By column of ``iterations``, the lowest and highest value that the profile says it was fitted for."""
    found = {}
    for key, (column, _) in RANGES.items():
        span = profile.fit.get(key)
        if isinstance(span, list | tuple) and len(span) == 2:
            found[column] = (float(span[0]), float(span[1]))
    return found


class RangeMeter:
    """A sink before another one: sums the time of iterations outside of each range, and passes on all other tables.

    ``keep``: iterations are passed on as well.
    """

    def __init__(self, profile: Profile, sink: EventSink, *, keep: bool) -> None:
        self._ranges, self._sink, self._keep = fitted_ranges(profile), sink, keep
        self._total = 0
        self._outside = dict.fromkeys(self._ranges, 0)
        self._high = dict.fromkeys(self._ranges, 0)

    def append(self, table: str, rows: npt.NDArray[np.void]) -> None:
        """Count a chunk of iterations."""
        if table == "iterations":
            duration = rows["duration_ns"]
            self._total += int(duration.sum())
            for column, (low, high) in self._ranges.items():
                values = reached_in(rows, column)
                if values is None:
                    continue
                outside = (values > high) | ((values < low) & (values > 0))
                self._outside[column] += int(duration[outside].sum())
                self._high[column] = max(self._high[column], int(values.max(initial=0)))
            if not self._keep:
                return
        self._sink.append(table, rows)

    def result(self) -> dict[str, Any]:
        """Plain values: the engines' time and, by column, the time outside and the highest value reached."""
        columns = {column: [self._outside[column], self._high[column]] for column in self._ranges}
        return {"total_ns": self._total, "columns": columns}


def outside_words(profile: Profile, results: Iterable[Mapping[str, Any]]) -> list[str]:
    """Why results (of ``RangeMeter.result``) together are an extrapolation of the profile, a sentence each; none where they lie
    within. A profile that states no range says so itself (``unknown``)."""
    ranges, parts = fitted_ranges(profile), list(results)
    return [words for column, span in ranges.items() if (words := _words(column, span, parts)) is not None]


def _words(column: str, span: tuple[float, float], parts: Sequence[Mapping[str, Any]]) -> str | None:
    total = sum(part["total_ns"] for part in parts)
    there = [part["columns"][column] for part in parts if column in part["columns"]]
    outside, high = sum(each[0] for each in there), max((each[1] for each in there), default=0)
    if not total or outside / total < LEAST:
        return None
    what = next(words for name, words in RANGES.values() if name == column)
    return (f"{100 * outside / total:.0f} % of the engine's time has more or fewer {what} (up to {count(high)}) than the profile"
            f" was fitted for ({count(span[0])} to {count(span[1])})")  # fmt: skip

"""Two recorded runs compared: figures with intervals, and who won and who lost, request by request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.comparison.pairing import NotComparableError, load_pair
from tracekit.comparison.report import build_comparison, render_comparison
from tracekit.store import Store

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Comparison", "NotComparableError", "compare"]


@dataclass(slots=True, kw_only=True)
class Comparison:
    """The comparison's document (``tracekit.comparison/1``) and its text."""

    document: dict[str, Any]
    text: str

    @property
    def conclusive(self) -> bool:
        """Whether the measure that decides differs clearly, or not at all."""
        return bool(self.document["conclusive"])

    def figures(self) -> pl.DataFrame:
        """A row per figure: its value in both runs, the change with its 95 % interval, and the verdict."""
        import polars as pl

        rows = []
        for each in self.document["figures"]:
            interval = each["interval"]
            rows.append({"measure": each["measure"], "verdict": each["verdict"], "before": interval["base"],
                         "after": interval["level"], "change": interval["estimate"], "low": interval["low"],
                         "high": interval["high"], "scale": interval["scale"]})  # fmt: skip
        return pl.DataFrame(rows, infer_schema_length=None)


def compare(run: str | int, other: str | int, *, db: str | Path = "tracekit.duckdb") -> Comparison:
    """What changes from ``run`` to ``other`` (numbers, names, or ``last``), two replays of the same requests.

    Errors: ``UsageError`` where there is no such run; ``NotComparableError`` where trace, part of it, profile or engine differ.
    """
    pair = load_pair(Store(db), str(run), str(other))
    document = build_comparison(pair)
    return Comparison(document=document, text=render_comparison(pair, document))

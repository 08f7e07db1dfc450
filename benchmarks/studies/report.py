"""What a study says: where the claim comes from, tables, and which parts of the claim come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Claim", "Study", "Table", "document", "markdown"]

Cell = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement with the number that decides it. ``met``: whether it comes out here."""

    text: str
    value: float
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells; the first column is what varies."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """``source`` names the publication and what it says, ``setup`` what is replayed; ``reading`` a paragraph each: what agrees,
    what does not, for which traffic it holds.
    """

    name: str
    title: str
    source: str
    setup: tuple[str, ...]
    tables: list[Table] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    reading: tuple[str, ...] = ()


def document(study: Study) -> dict[str, Any]:
    """Plain values for JSON."""
    return {"schema": "tracekit.study/1", **asdict(study)}


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return f"{value:,}" if isinstance(value, int) else value


def _table(table: Table) -> list[str]:
    rows = [table.columns, *(tuple(_cell(value) for value in row) for row in table.rows)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(table.columns))
    return [f"**{table.title}**", "", *lines, ""]


def markdown(study: Study) -> str:
    """The study as a page."""
    lines = [
        f"# {study.title}", "", f"<!-- made by: python -m benchmarks.studies {study.name} --markdown -->", "",
        f"Source: {study.source}", "", *(f"* {line}" for line in study.setup), "",
    ]  # fmt: skip
    for table in study.tables:
        lines += _table(table)
    lines += ["| claim | here | comes out |", "|---|---|---|"]
    lines += [f"| {claim.text} | {_cell(claim.value)} | {'yes' if claim.met else 'NO'} |" for claim in study.claims]
    lines += ["", *(line for paragraph in study.reading for line in (paragraph, ""))]
    return "\n".join(lines).rstrip() + "\n"

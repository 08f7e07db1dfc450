"""How one column of text becomes its canonical one, as pieces of SQL."""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.traces.columns import Mapped

__all__ = ["ABSENT", "Converted"]

ABSENT = ("", "nan", "null", "none", "n/a", "-")
"""How logs write that a value is unknown (compared in lower case)."""

_ABSENT_SQL = "(" + ", ".join(f"'{word}'" for word in ABSENT) + ")"


@dataclass(frozen=True, slots=True)
class Converted:
    """SQL pieces that turn one column of text into its canonical one.

    ``fast`` is selected from the file; ``doubt`` is the cell's text where that value is not plainly right, else NULL. Only rows
    with a doubt are looked at again, with ``slow`` and ``why`` (a ``WHEN`` branch), over their value and text.
    """

    field: Mapped
    fast: str
    doubt: str
    slow: str
    why: str

    @property
    def value(self) -> str:
        return f'"v_{self.field.column.name}"'

    @property
    def text(self) -> str:
        return f'"t_{self.field.column.name}"'

    @property
    def is_doubtful(self) -> str:
        """Beside ``fast`` in one ``SELECT``: whether the row must be looked at again."""
        absent = "" if self.field.column.nullable else f"{self.value} IS NULL OR "
        return f"({absent}({self.doubt}) IS NOT NULL)"

    @property
    def careful(self) -> str:
        """The value of a row with a doubt."""
        return f"CASE WHEN {self.text} IS NULL THEN {self.value} ELSE {self.slow} END"

    @property
    def reason(self) -> str:
        """``WHEN`` branches for a ``CASE``: 'column|why' where the cell is bad."""
        name, text = self.field.column.name, self.text
        missing = f"{text} IS NULL" if not self.field.column.nullable else "false"
        absent = "'missing'" if not self.field.column.nullable else "NULL"
        own = self.field.source.lower().replace("'", "''")
        inner = (
            f"CASE WHEN lower(trim({text})) IN {_ABSENT_SQL} THEN {absent}"
            f" WHEN lower(trim({text})) = '{own}' THEN 'the header again' {self.why} END"
        )
        return (
            f"WHEN {missing} AND {self.value} IS NULL THEN '{name}|missing'"
            f" WHEN {text} IS NOT NULL AND ({inner}) IS NOT NULL THEN '{name}|' || ({inner})"
        )

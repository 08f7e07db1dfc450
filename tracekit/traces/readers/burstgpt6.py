"""BurstGPT, six columns: ``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type``.

Source: HPMLL/BurstGPT. Times are seconds from the first midnight, local; failed requests have no tokens. Columns are read by
name.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.errors import InputError
from tracekit.traces.columns import COLUMNS, Mapped
from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.delimited import header_of, read_delimited
from tracekit.traces.stage import Stage

__all__ = ["FIELDS", "NAME", "names_of", "read", "read_burst", "sniff"]

NAME = "burstgpt6"
FIELDS = (
    Mapped(COLUMNS["arrival"], "Timestamp", "s"),
    Mapped(COLUMNS["input_tokens"], "Request tokens"),
    Mapped(COLUMNS["output_tokens"], "Response tokens"),
    Mapped(COLUMNS["model"], "Model"),
    Mapped(COLUMNS["kind"], "Log Type"),
)


def names_of(head: Head) -> set[str]:
    """The column names of a comma-separated file."""
    return {name.strip() for name in head.lines[0].decode("utf-8", "replace").split(",")} if head.lines else set()


def sniff(head: Head) -> Match | None:
    """By the column names, without those of the eight-column release."""
    names = names_of(head)
    if names >= {field.source for field in FIELDS} and "Elapsed time" not in names:
        return Match(95, "columns Timestamp, Model, Request tokens, Response tokens, Log Type")
    return None


def read_burst(source: Source, stage: Stage, fields: Sequence[Mapped]) -> None:
    """Rows of either release to the stage. Errors: ``InputError`` for missing columns."""
    table = header_of(source, ",")
    missing = [field.source for field in fields if field.source not in table.names]
    if missing:
        raise InputError(f"no column {', '.join(missing)}", file=source.name, line=table.header_line,
                         expected="those of BurstGPT")  # fmt: skip
    used = {field.source for field in fields}
    stage.facts.ignore(name for name in table.names if name not in used)
    read_delimited(source, stage, table, fields)


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows to the stage."""
    read_burst(source, stage, FIELDS)

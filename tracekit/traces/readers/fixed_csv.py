"""Delimited text whose columns have fixed names, whatever their order."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.errors import InputError
from tracekit.traces.columns import Mapped
from tracekit.traces.inputs import Source
from tracekit.traces.mapping import told_names
from tracekit.traces.readers.delimited import header_of, read_delimited
from tracekit.traces.stage import Stage

__all__ = ["read_fixed"]


def read_fixed(source: Source, stage: Stage, fields: Sequence[Mapped], optional: Sequence[Mapped] = ()) -> None:
    """Read ``fields``, and those of ``optional`` that are there. Errors: ``InputError`` for a missing column."""
    table = header_of(source)
    missing = [field.source for field in fields if field.source not in table.names]
    if missing:
        raise InputError(f"no column {', '.join(missing)}; the file has {told_names(table.names)}", file=source.name,
                         line=table.header_line, expected="the columns of this format")  # fmt: skip
    chosen = [*fields, *(field for field in optional if field.source in table.names)]
    used = {field.source for field in chosen}
    stage.facts.ignore(name for name in table.names if name not in used)
    read_delimited(source, stage, table, chosen)

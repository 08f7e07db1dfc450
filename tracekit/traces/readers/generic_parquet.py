"""Any Parquet file: columns by ``--map``, or recognised by name. "Lines" are row numbers, from 1."""

from __future__ import annotations

from tracekit.errors import InputError
from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.mapping import choose_fields
from tracekit.traces.readers.delimited import read_relation
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "generic_parquet"


def sniff(head: Head) -> Match | None:
    """By the magic bytes."""
    return Match(90, "Parquet magic bytes") if head.data.startswith(b"PAR1") else None


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows to the stage."""
    scan = "read_parquet('{}')".format(str(source.path).replace("'", "''"))
    try:
        described = stage.con.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()
    except Exception as error:
        raise InputError(str(error).splitlines()[0], file=source.name, expected="a whole Parquet file") from error
    names = [row[0] for row in described]
    fields = choose_fields(source.name, names, options.mapping, stage.facts, timed=options.arrival is None)
    quoted = {field.column.name: '"{}"'.format(field.source.replace('"', '""')) for field in fields}
    texts = ", ".join(f'{cell}::VARCHAR AS "s_{name}"' for name, cell in quoted.items())
    cells = {name: f'"s_{name}"' for name in quoted}
    read_relation(source, stage, fields, cells, f"(SELECT {texts} FROM {scan})")

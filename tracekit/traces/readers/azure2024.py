"""Azure LLM inference traces 2024: the header of 2023, but dates with the offset ``+00:00`` and six digits of seconds.

Source: Azure/AzurePublicDataset, one week each of code and conversation traffic (16.8 and 27.3 million rows).
"""

from __future__ import annotations

import re

from tracekit.errors import InputError
from tracekit.traces.columns import COLUMNS, Mapped
from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.mapping import told_names
from tracekit.traces.readers.delimited import header_of, read_delimited
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "azure2024"
HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_ROW = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00:00,")


def sniff(head: Head) -> Match | None:
    """By the header and a first row whose date has the offset of UTC: the header alone is that of 2023."""
    if len(head.lines) < 2 or head.lines[0].strip() != ",".join(HEADER).encode():
        return None
    if any(_ROW.match(line) for line in head.lines[1:20]):
        return Match(96, f"header {','.join(HEADER)}, dates with the offset +00:00")
    return None


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows to the stage."""
    table = header_of(source, ",")
    if table.names != HEADER:
        raise InputError("not the header of this format", file=source.name, line=table.header_line, value=told_names(table.names),
                         expected=",".join(HEADER))  # fmt: skip
    names = ("arrival", "input_tokens", "output_tokens")
    fields = [Mapped(COLUMNS[name], column) for name, column in zip(names, HEADER, strict=True)]
    read_delimited(source, stage, table, fields, dates="+00:00")

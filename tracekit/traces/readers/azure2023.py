"""Azure LLM inference trace 2023: ``TIMESTAMP,ContextTokens,GeneratedTokens``, wall clock without a zone, 7 digits of seconds.

Source: Azure/AzurePublicDataset. The 2024 files have the same header but dates with an offset; those are generic CSV.
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

NAME = "azure2023"
HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_ROW = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?,")


def sniff(head: Head) -> Match | None:
    """By the header and a first row whose date has no offset."""
    if not head.lines or head.lines[0].strip() != ",".join(HEADER).encode():
        return None
    if len(head.lines) > 1 and any(_ROW.match(line) for line in head.lines[1:20]):
        return Match(95, f"header {','.join(HEADER)}, dates without an offset")
    return Match(40, f"header {','.join(HEADER)}")


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows to the stage; times are read as UTC."""
    table = header_of(source, ",")
    if table.names != HEADER:
        raise InputError("not the header of this format", file=source.name, line=table.header_line, value=told_names(table.names),
                         expected=",".join(HEADER))  # fmt: skip
    names = ("arrival", "input_tokens", "output_tokens")
    fields = [Mapped(COLUMNS[name], column) for name, column in zip(names, HEADER, strict=True)]
    read_delimited(source, stage, table, fields, dates="")

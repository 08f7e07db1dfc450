"""Any delimited text with a header: columns by ``--map``, or recognised by name."""

from __future__ import annotations

from tracekit.traces.columns import guess_mapping
from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.mapping import choose_fields
from tracekit.traces.readers.delimited import header_of, read_delimited
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "generic_csv"


def sniff(head: Head) -> Match | None:
    """A first line with a delimiter that is neither JSON nor binary."""
    if not head.lines or head.lines[0].lstrip()[:1] in (b"{", b"[") or b"\0" in head.data[:4096] or head.data.startswith(b"PAR1"):
        return None
    line = head.lines[0].decode("utf-8", "replace")
    mark = max(",;\t|", key=line.count)
    if not line.count(mark):
        return None
    known = guess_mapping([name.strip().strip('"') for name in line.split(mark)])
    return Match(20 + min(20, 5 * len(known)), f"a header of {line.count(mark) + 1} columns, {len(known)} of them known")


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows to the stage."""
    table = header_of(source)
    fields = choose_fields(source.name, table.names, options.mapping, stage.facts, timed=options.arrival is None)
    read_delimited(source, stage, table, fields)

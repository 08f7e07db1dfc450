"""Mooncake traces: ``timestamp`` (ms from trace start), ``input_length``, ``output_length``, ``hash_ids`` of 512 tokens.

Source: kvcache-ai/Mooncake, FAST'25 trace release. Ids are global over the file and chained; the last block may be partial.
"""

from __future__ import annotations

from tracekit.traces.columns import COLUMNS, Mapped
from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.json_lines import read_json_lines
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "mooncake"
KEYS = {"timestamp", "input_length", "output_length", "hash_ids"}
FIELDS = (
    Mapped(COLUMNS["arrival"], "timestamp", "ms"),
    Mapped(COLUMNS["input_tokens"], "input_length"),
    Mapped(COLUMNS["output_tokens"], "output_length"),
    Mapped(COLUMNS["hash_ids"], "hash_ids", "512"),
)


def sniff(head: Head) -> Match | None:
    """By the four keys, without those of a chat log (Qwen-Bailian has the same ones with blocks of 16 tokens)."""
    records = head.records()
    if records and all(record.keys() >= KEYS and "chat_id" not in record for record in records[:5]):
        return Match(95, "keys timestamp, input_length, output_length, hash_ids")
    return None


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows and prefix runs to the stage."""
    read_json_lines(source, stage, FIELDS)

"""Qwen-Bailian traces: ``chat_id``, ``parent_chat_id`` (-1: a first turn), ``timestamp`` (s), lengths, ``type``, ``turn``,
``hash_ids`` of 16 tokens.

Source: alibaba-edu/qwen-bailian-usagetraces-anon. The end of an answer is not logged, so a turn is released at its recorded time
and not before its parent's completion.
"""

from __future__ import annotations

from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.json_lines import json_line_batches
from tracekit.traces.readers.record_rows import canonical, read_rows
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "bailian"
KEYS = {"chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"}
FIELDS = (
    canonical("arrival", "timestamp", "s"),
    canonical("input_tokens", "input_length"),
    canonical("output_tokens", "output_length"),
    canonical("request_id", "chat_id"),
    canonical("parent_id", "parent_chat_id"),
    canonical("kind", "type"),
    canonical("turn"),
    canonical("hash_ids", unit="16"),
)


def sniff(head: Head) -> Match | None:
    """By the keys."""
    records = head.records()
    if records and all(record.keys() >= KEYS for record in records[:5]):
        return Match(96, f"keys {', '.join(sorted(KEYS))}")
    return None


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows with parents and prefix runs to the stage."""
    used = {field.source for field in FIELDS}
    read_rows(source, stage, FIELDS, json_line_batches(source, stage), lambda record: [record], used=used)

"""Mooncake rows with sessions, as Dynamo and AIPerf read them: ``session_id``, ``timestamp`` (ms) for a first turn, ``delay`` (ms
after the answer before) for later ones, ``input_length``, ``output_length``, ``hash_ids`` of 512 tokens.

Sources: ai-dynamo/dynamo, ai-dynamo/aiperf. A later turn's arrival is only estimated here (the first turn's plus the delays).
"""

from __future__ import annotations

from typing import Any

from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.json_lines import json_line_batches
from tracekit.traces.readers.record_rows import Row, canonical, read_rows
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "mooncake_sessions"
KEYS = {"session_id", "input_length", "output_length"}
FIELDS = (
    canonical("arrival", "timestamp", "ms"),
    canonical("input_tokens", "input_length"),
    canonical("output_tokens", "output_length"),
    canonical("request_id"),
    canonical("session_id"),
    canonical("priority"),
    canonical("think_time", "delay", "ms"),
    canonical("hash_ids", unit="512"),
)


def sniff(head: Head) -> Match | None:
    """By the keys, and a delay in one of the first rows."""
    records = head.records()[:50]
    if not records or not all(record.keys() >= KEYS and record.keys() & {"timestamp", "delay"} for record in records):
        return None
    if any("delay" in record for record in records):
        return Match(96, "keys session_id, input_length, output_length, timestamp or delay")
    return None


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows, think times and prefix runs to the stage."""
    last: dict[Any, float] = {}

    def flatten(record: Row) -> list[Row | str]:
        session = str(record.get("session_id"))
        at, delay = record.get("timestamp"), _number(record.get("delay"))
        if at is None and session in last:
            at = last[session] + (delay or 0)
        known = _number(at)
        if known is not None:
            last[session] = known
        return [{**record, "timestamp": at}]

    used = {field.source for field in FIELDS}
    read_rows(source, stage, FIELDS, json_line_batches(source, stage), flatten, used=used)

"""Agent runs as OpenTelemetry spans, a model's call a line: ``start_time_iso``, ``duration_ms``, ``session_id``, ``span_index``.

Source: the data set Exgentic/agent-llm-traces as normalised by fnstggl/energy2. Failed calls have no tokens and no duration; each
time is written in three ways, of which the date is exact.
"""

from __future__ import annotations

from typing import Any

from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.json_lines import json_line_batches
from tracekit.traces.readers.json_values import parse_date
from tracekit.traces.readers.record_rows import Row, canonical, read_rows
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "exgentic_spans"
KEYS = {"session_id", "span_index", "start_time_s", "duration_ms", "input_tokens", "output_tokens"}
FIELDS = (
    canonical("arrival", unit="ns"),
    canonical("input_tokens"),
    canonical("output_tokens"),
    canonical("request_id", "span_id"),
    canonical("session_id"),
    canonical("turn", "span_index"),
    canonical("obs_e2e", "duration_ms", "ms"),
    canonical("model", "request_model"),
    canonical("kind", "operation_name"),
    canonical("status"),
    canonical("finish_reason"),
)


def sniff(head: Head) -> Match | None:
    """By the keys."""
    records = head.records()
    if records and all(record.keys() >= KEYS for record in records[:5]):
        return Match(96, f"keys {', '.join(sorted(KEYS))}")
    return None


def _arrival(record: Row) -> Any:
    said, seconds = record.get("start_time_iso"), record.get("start_time_s")
    if isinstance(said, str):
        found = parse_date(said)
        return said if found is None else found
    if isinstance(seconds, int | float) and abs(seconds) < 9e9:
        return round(seconds * 1e6) * 1000
    return seconds


def _flatten(record: Row) -> list[Row | str]:
    reasons = record.get("finish_reasons")
    reason = ",".join(map(str, reasons)) if isinstance(reasons, list) else None
    status = "error" if record.get("is_error") is True else "ok"
    return [{**record, "arrival": _arrival(record), "finish_reason": reason, "status": status}]


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows with end-to-end latency as the client saw it to the stage."""
    stage.facts.obs_clock = "client"
    used = {field.source for field in FIELDS} | {"start_time_iso", "start_time_s", "finish_reasons", "is_error"}
    read_rows(source, stage, FIELDS, json_line_batches(source, stage), _flatten, used=used)

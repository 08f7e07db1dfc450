"""AIPerf's ``profile_export.jsonl``: one record a request, ``metadata``, ``metrics`` with a unit each, ``error``.

Early files say ``ttft`` and ``timestamp_ns`` where later ones say ``time_to_first_token`` and ``request_start_ns``. The unit
is always read. Failed requests have no lengths: they are kept with 0 tokens and their status.
"""

from __future__ import annotations

from typing import Any

from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.json_documents import head_objects, json_batches
from tracekit.traces.readers.json_values import Values
from tracekit.traces.readers.record_rows import Row, canonical, first_of, inner, per_token, read_rows, real
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "aiperf"
UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9, "seconds": 1e9, "milliseconds": 1e6}
CANCELLED = (499, "499")
FIELDS = (
    canonical("arrival", "request_start_ns", "ns"),
    canonical("input_tokens", "input_sequence_length"),
    canonical("output_tokens", "output_sequence_length"),
    canonical("obs_ttft", "time_to_first_token", "ns"),
    canonical("obs_e2e", "request_latency", "ns"),
    canonical("reasoning_tokens", "reasoning_token_count"),
    canonical("request_id", "x_request_id"),
    canonical("session_id", "conversation_id"),
    canonical("turn", "turn_index"),
    canonical("kind", "benchmark_phase"),
    canonical("status"),
    canonical("error_code"),
)


def sniff(head: Head) -> Match | None:
    """By ``metadata.x_request_id`` beside ``metrics``."""
    records = head_objects(head)
    if records and all(isinstance(r.get("metrics"), dict) and inner(r, "metadata", "x_request_id") for r in records[:5]):
        return Match(95, "keys metadata.x_request_id, metrics, error")
    return None


def _count(metrics: Row, *names: str) -> Any:
    return next((inner(metrics, name, "value") for name in names if name in metrics), None)


def _time(metrics: Row, *names: str) -> Any:
    for name in names:
        value, unit = real(inner(metrics, name, "value")), inner(metrics, name, "unit")
        if value is not None:
            return value * UNITS[unit] if isinstance(unit, str) and unit in UNITS else "a value of unknown unit"
    return None


def _flatten(record: Row) -> list[Row | str]:
    metadata, metrics, error = record.get("metadata"), record.get("metrics"), record.get("error")
    metrics = metrics if isinstance(metrics, dict) else {}
    code = first_of(error, "code", "type")
    cancelled = inner(metadata, "was_cancelled") is True or code in CANCELLED
    failed = cancelled or error is not None
    output = _count(metrics, "output_sequence_length")
    if output is None:
        parts = [real(_count(metrics, name)) for name in ("output_token_count", "reasoning_token_count")]
        output = sum(part or 0 for part in parts) if parts[0] is not None else None
    prompt = _count(metrics, "input_sequence_length")
    return [
        {
            "request_start_ns": first_of(metadata, "request_start_ns", "timestamp_ns")
            or _count(metrics, "min_request_timestamp"),
            "input_sequence_length": 0 if failed and prompt is None else prompt,
            "output_sequence_length": 0 if failed and output is None else output,
            "time_to_first_token": _time(metrics, "time_to_first_token", "ttft"),
            "request_latency": _time(metrics, "request_latency"),
            "reasoning_token_count": _count(metrics, "reasoning_token_count"),
            "x_request_id": inner(metadata, "x_request_id"),
            "conversation_id": inner(metadata, "conversation_id"),
            "turn_index": inner(metadata, "turn_index"),
            "benchmark_phase": first_of(metadata, "benchmark_phase", "credit_phase"),
            "status": "cancelled" if cancelled else "error" if failed else "ok",
            "error_code": code if isinstance(code, int | str) else None,
        }
    ]


def _derive(columns: dict[str, Values]) -> dict[str, Values]:
    return columns | {"obs_tpot": per_token(columns["obs_ttft"], columns["obs_e2e"], columns["output_tokens"])}


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows with client-side latencies to the stage."""
    stage.facts.obs_clock = "client"
    used = ("metadata", "metrics", "error")
    read_rows(source, stage, FIELDS, json_batches(source, stage), _flatten, used=used, derive=_derive)

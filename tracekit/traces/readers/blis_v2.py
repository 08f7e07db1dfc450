"""BLIS TraceV2: a YAML header (in a file of its own, or before the table) and a CSV; times in microseconds, 0 is "unknown".

Columns came over the versions and are read by name. Latencies count from ``send_time_us``, the moment the client sent, which
may be after the planned arrival. Prompt lengths are the server's own count where there is one.
"""

from __future__ import annotations

import csv
from typing import Any

from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.csv_records import csv_batches
from tracekit.traces.readers.delimited import Table
from tracekit.traces.readers.json_values import Values
from tracekit.traces.readers.record_rows import Row, between, canonical, moment, per_token, read_rows
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "blis_v2"
KEYS = {"arrival_time_us", "input_tokens", "output_tokens", "first_chunk_time_us", "last_chunk_time_us"}
FIELDS = (
    canonical("arrival", "arrival_time_us", "us"),
    moment("sent", "send_time_us", "us"),
    moment("first", "first_chunk_time_us", "us"),
    moment("last", "last_chunk_time_us", "us"),
    canonical("deadline", "deadline_us", "us"),
    canonical("slo_ttft", "slo_target_us", "us"),
    canonical("input_tokens"),
    canonical("output_tokens"),
    canonical("request_id"),
    canonical("tenant", "tenant_id"),
    canonical("class", "slo_class"),
    canonical("priority", "vllm_priority"),
    canonical("session_id"),
    canonical("turn", "round_index"),
    canonical("image_tokens"),
    canonical("audio_tokens"),
    canonical("video_tokens"),
    canonical("model"),
    canonical("adapter"),
    canonical("status"),
    canonical("finish_reason"),
)
USED = (*(field.source for field in FIELDS), "client_id", "server_input_tokens", "num_chunks", "streaming", "reason_ratio")
UNKNOWN_AT_0 = ("send_time_us", "first_chunk_time_us", "last_chunk_time_us", "deadline_us", "slo_target_us")


def _header(head: Head) -> int | None:
    """Which line of the file, from 1, holds the table's column names."""
    for number, line in enumerate(head.data.split(b"\n")[:500], 1):
        if line.startswith(b"request_id,") and {name.encode() for name in KEYS} <= set(line.strip().split(b",")):
            return number
    return None


def sniff(head: Head) -> Match | None:
    """By the table's column names, or by the keys of its header."""
    if _header(head) is not None:
        return Match(95, f"columns {', '.join(sorted(KEYS))}")
    if head.data.startswith(b"trace_version:") and b"time_unit:" in head.data:
        return Match(90, "the YAML header of a BLIS trace")
    return None


def _flatten(record: Row) -> list[Row | str]:
    row: Row = {field.source: record.get(field.source) for field in FIELDS}
    for key in UNKNOWN_AT_0:
        row[key] = None if _is_zero(row[key]) else row[key]
    if row["send_time_us"] is None:
        row["send_time_us"] = row["arrival_time_us"]
    if str(record.get("streaming")).lower() == "false" or str(record.get("num_chunks")) in ("0", "1"):
        row["first_chunk_time_us"] = None  # the whole answer came at once
    counted = record.get("server_input_tokens")
    row["input_tokens"] = row["input_tokens"] if counted is None or _is_zero(counted) else counted
    row["tenant_id"] = row["tenant_id"] or record.get("client_id")
    return [row]


def _is_zero(value: Any) -> bool:
    return isinstance(value, str) and value.strip() in ("0", "0.0")


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows with client-side latencies to the stage; a header without its table has none."""
    line = _header(source.head)
    if line is None:
        stage.facts.warn(f"{source.name}: the header of a BLIS trace; its requests are in the CSV beside it")
        return
    stage.facts.obs_clock = "client"
    names = next(csv.reader([source.head.data.split(b"\n")[line - 1].decode("utf-8", "replace").replace("\r", "")]))

    def derive(columns: dict[str, Values]) -> dict[str, Values]:
        out = {name: values for name, values in columns.items() if name not in ("sent", "first", "last")}
        out["obs_ttft"] = between(columns["sent"], columns["first"], stage.facts, "TTFT")
        out["obs_e2e"] = between(columns["sent"], columns["last"], stage.facts, "end-to-end latency")
        out["obs_tpot"] = per_token(out["obs_ttft"], out["obs_e2e"], out["output_tokens"])
        return out

    batches = csv_batches(source, stage, USED, Table(",", [name.strip() for name in names], line))
    read_rows(source, stage, FIELDS, batches, _flatten, used=USED, derive=derive)

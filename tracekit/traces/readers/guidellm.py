"""guidellm's report: benchmarks, each with its requests in buckets (successful, errored, incomplete); moments in unix seconds.

A sweep holds several benchmarks, one after another: their arrivals follow each other. Arrival is when the request was sent,
not when the load generator meant to send it. Request arguments and outputs are text and are never looked at.
"""

from __future__ import annotations

from typing import Any

from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.json_documents import is_json, json_batches
from tracekit.traces.readers.json_values import Values
from tracekit.traces.readers.record_rows import Row, between, canonical, first_of, inner, moment, per_token, read_rows
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "guidellm"
STATUS = {"successful": "ok", "errored": "error", "incomplete": "cancelled"}
PARTS = ("cached_tokens", "image_tokens", "audio_tokens", "video_tokens")
FIELDS = (
    canonical("arrival", "request_start", "s"),
    moment("first", "first_token_iteration", "s"),
    moment("end", "request_end", "s"),
    canonical("input_tokens", "input_metrics.text_tokens"),
    canonical("output_tokens", "output_metrics.text_tokens"),
    canonical("obs_cached_tokens", "input_metrics.cached_tokens"),
    canonical("image_tokens", "input_metrics.image_tokens"),
    canonical("audio_tokens", "input_metrics.audio_tokens"),
    canonical("video_tokens", "input_metrics.video_tokens"),
    canonical("request_id"),
    canonical("status"),
)


def sniff(head: Head) -> Match | None:
    """By ``benchmarks`` with guidellm's buckets or its own name near the top."""
    start = head.data[:65536]
    if is_json(head) and b'"benchmarks"' in start and (b"guidellm" in start or b'"successful"' in head.data):
        return Match(94, "guidellm report: benchmarks with successful, errored, incomplete")
    return None


def _row(request: Row, bucket: str) -> Row:
    info = request.get("info")
    times = inner(info, "timings") or info or request
    inputs, outputs = request.get("input_metrics"), request.get("output_metrics")
    prompt = first_of(inputs, "text_tokens", "total_tokens") or request.get("prompt_tokens")
    answer = first_of(outputs, "text_tokens", "total_tokens") or request.get("output_tokens")
    failed = bucket != "successful"
    return {
        "request_start": first_of(times, "request_start", "resolve_start", "start_time", "scheduled_at"),
        "first_token_iteration": first_of(times, "first_token_iteration", "first_iteration", "first_token_time"),
        "request_end": first_of(times, "request_end", "end_time", "resolve_end"),
        "input_metrics.text_tokens": 0 if failed and prompt is None else prompt,
        "output_metrics.text_tokens": 0 if failed and answer is None else answer,
        **{f"input_metrics.{name}": inner(inputs, name) for name in PARTS},
        "request_id": request.get("request_id"),
        "status": STATUS[bucket],
    }


def _requests(benchmark: Any) -> list[Row | str]:
    buckets = inner(benchmark, "requests")
    rows: list[Row | str] = []
    for bucket in STATUS:
        listed = inner(buckets, bucket)
        for request in listed if isinstance(listed, list) else ():
            rows.append(_row(request, bucket) if isinstance(request, dict) else "not a JSON object")
    return rows


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows of every benchmark to the stage; "lines" are their numbers in the file."""
    stage.facts.obs_clock = "client"

    def flatten(document: Row) -> list[Row | str]:
        benchmarks = document.get("benchmarks")
        benchmarks = benchmarks if isinstance(benchmarks, list) else [document]
        if len(benchmarks) > 1:
            stage.facts.warn(f"{len(benchmarks)} benchmarks of a sweep follow each other: each has a load of its own")
        return [row for benchmark in benchmarks for row in _requests(benchmark)]

    def derive(columns: dict[str, Values]) -> dict[str, Values]:
        out = {name: values for name, values in columns.items() if name not in ("first", "end")}
        out["obs_ttft"] = between(columns["arrival"], columns["first"], stage.facts, "TTFT")
        out["obs_e2e"] = between(columns["arrival"], columns["end"], stage.facts, "end-to-end latency")
        out["obs_tpot"] = per_token(out["obs_ttft"], out["obs_e2e"], out["output_tokens"])
        return out

    used = ("benchmarks", "requests")
    read_rows(source, stage, FIELDS, json_batches(source, stage), flatten, used=used, derive=derive, numbered=True)

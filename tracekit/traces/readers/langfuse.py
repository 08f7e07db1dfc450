"""Langfuse observations, exported as JSON, JSON lines or CSV: generations are requests, other observations are set aside.

Whether ``input`` has the cached tokens in it depends on the SDK that wrote it: the totals tell, and where both readings fit the
file is refused until ``--cached`` says which. ``input`` and ``output`` of the observation itself are texts and are never
looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracekit.traces.cached_tokens import Reading, agreed_reading
from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.csv_records import csv_batches, csv_header
from tracekit.traces.readers.json_documents import head_objects, is_json, json_batches
from tracekit.traces.readers.json_lines import Batches
from tracekit.traces.readers.json_values import Values
from tracekit.traces.readers.record_rows import Row, between, canonical, first_of, inner, loaded, moment, per_token, read_rows
from tracekit.traces.stage import Facts, Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "langfuse"
FIELDS = (
    canonical("arrival", "startTime"),
    moment("first", "completionStartTime"),
    moment("end", "endTime"),
    canonical("input_tokens", "usageDetails.input"),
    canonical("output_tokens", "usageDetails.output"),
    canonical("obs_cached_tokens", "usageDetails.input_cached_tokens"),
    canonical("reasoning_tokens", "usageDetails.output_reasoning_tokens"),
    canonical("request_id", "id"),
    canonical("model"),
    canonical("tenant", "userId"),
    canonical("session_id", "sessionId"),
    canonical("max_tokens", "modelParameters.maxTokens"),
    canonical("status", "level"),
)
OWN = {"traceId", "parentObservationId", "completionStartTime", "usageDetails", "providedModelName", "costDetails", "level",
       "timeToFirstToken", "modelParameters", "promptTokens", "inputUsage"}  # fmt: skip
INPUT = ("input", "prompt_tokens", "input_tokens")
OUTPUT = ("output", "completion_tokens", "output_tokens")
CACHED = ("input_cached_tokens", "cache_read_input_tokens", "input_cache_read", "cached_tokens")
WRITTEN = ("cache_creation_input_tokens", "input_cache_creation")
USED = ("id", "type", "startTime", "endTime", "completionStartTime", "model", "providedModelName", "modelParameters",
        "usageDetails", "usage", "promptTokens", "completionTokens", "totalTokens", "inputUsage", "outputUsage", "totalUsage",
        "inputTokens", "outputTokens", "level", "userId", "sessionId", "data")  # fmt: skip


def sniff(head: Head) -> Match | None:
    """By ``startTime`` and ``type`` beside at least two names that only Langfuse has."""
    names = set(csv_header(head))
    if not names and is_json(head):
        records = [one for record in head_objects(head)[:1] for one in _observations(record)]
        names = set(records[0]) if records else set()
    if {"startTime", "type"} <= names and len(names & OWN) >= 2:
        return Match(95, f"Langfuse's {', '.join(sorted(names & OWN)[:4])}")
    return None


def _observations(record: Row) -> list[Row]:
    listed = record.get("data")
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else [record]


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20 else value


def _counts(record: Row) -> tuple[Any, Any, Any, Any, Any]:
    """Input, output, cached, written to the cache, total, each as it stands there."""
    details, usage = loaded(record.get("usageDetails")), loaded(record.get("usage"))
    given = first_of(details, *INPUT)
    if given is None:
        given = first_of(usage, *INPUT, "promptTokens")
    if given is None:
        given = first_of(record, "promptTokens", "inputUsage", "inputTokens")
    output = first_of(details, *OUTPUT)
    if output is None:
        output = first_of(usage, *OUTPUT, "completionTokens")
    if output is None:
        output = first_of(record, "completionTokens", "outputUsage", "outputTokens")
    total = first_of(details, "total", "total_tokens")
    if total is None:
        total = first_of(usage, "total", "totalTokens") or first_of(record, "totalTokens", "totalUsage")
    return _whole(given), _whole(output), _whole(first_of(details, *CACHED)), _whole(first_of(details, *WRITTEN)), _whole(total)


def _readings(batches: Batches) -> Iterator[Reading]:
    for lines, records in batches:
        for line, record in zip(lines.tolist(), records, strict=True):
            for one in _observations(record):
                given, output, cached, written, total = _counts(one)
                beside = sum(count for count in (cached, written) if isinstance(count, int))
                if beside > 0 and isinstance(given, int) and isinstance(output, int):
                    yield Reading(line, given, beside, output, total if isinstance(total, int) else None)


def _row(record: Row, outside: bool) -> Row | str:
    kind = str(record.get("type") or "GENERATION").upper()
    if kind != "GENERATION":
        return "an observation that is no generation"
    given, output, cached, written, _ = _counts(record)
    if outside and isinstance(given, int):
        given += sum(count for count in (cached, written) if isinstance(count, int))
    failed = str(record.get("level") or "").upper() == "ERROR"
    first = record.get("completionStartTime")
    return {
        "startTime": record.get("startTime"),
        "completionStartTime": None if first == record.get("endTime") else first,
        "endTime": record.get("endTime"),
        "usageDetails.input": 0 if failed and given is None else given,
        "usageDetails.output": 0 if failed and output is None else output,
        "usageDetails.input_cached_tokens": cached,
        "usageDetails.output_reasoning_tokens": inner(loaded(record.get("usageDetails")), "output_reasoning_tokens"),
        "id": record.get("id"),
        "model": first_of(record, "model", "providedModelName"),
        "userId": record.get("userId"),
        "sessionId": record.get("sessionId"),
        "modelParameters.maxTokens": first_of(loaded(record.get("modelParameters")), "maxTokens", "max_tokens"),
        "level": "error" if failed else "ok",
    }


class _FirstPass(Stage):
    """Takes nothing: the counts are only looked at."""

    def __init__(self) -> None:
        self.facts = Facts()

    def reject(self, file: str, line: int, column: str | None, value: object, reason: str) -> None:
        """What is bad is told in the second pass."""


def _batches(source: Source, stage: Stage) -> Batches:
    return json_batches(source, stage) if is_json(source.head) else csv_batches(source, stage, USED)


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Generations to the stage, cached tokens inside the input count."""
    stage.facts.obs_clock = "gateway"
    place = options.cached
    if place is None:
        place = agreed_reading(_readings(_batches(source, _FirstPass())), source.name, "usageDetails")

    def flatten(record: Row) -> list[Row | str]:
        return [_row(one, place == "outside") for one in _observations(record)]

    def derive(columns: dict[str, Values]) -> dict[str, Values]:
        out = {name: values for name, values in columns.items() if name not in ("first", "end")}
        out["obs_ttft"] = between(columns["arrival"], columns["first"], stage.facts, "TTFT")
        out["obs_e2e"] = between(columns["arrival"], columns["end"], stage.facts, "end-to-end latency")
        out["obs_tpot"] = per_token(out["obs_ttft"], out["obs_e2e"], out["output_tokens"])
        return out

    read_rows(source, stage, FIELDS, _batches(source, stage), flatten, used=USED, derive=derive)

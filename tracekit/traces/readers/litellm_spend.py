"""LiteLLM's spend logs: the table as CSV or JSON, or what its callbacks write.

Times without a zone are UTC. Cached tokens are inside ``prompt_tokens``. ``completionStartTime`` equals the end where the answer
was not streamed: there is no TTFT then. Answers from the gateway's own cache never reached an engine and are set aside.
Messages, responses, proxied requests and addresses are never looked at.
"""

from __future__ import annotations

from typing import Any

from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.csv_records import csv_batches, csv_header
from tracekit.traces.readers.json_documents import head_objects, is_json, json_batches
from tracekit.traces.readers.json_values import Values
from tracekit.traces.readers.record_rows import Row, between, canonical, first_of, inner, loaded, moment, per_token, read_rows
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "litellm_spend"
KEYS = {"startTime", "endTime", "prompt_tokens", "completion_tokens"}
OWN = {"call_type", "completionStartTime", "spend", "response_cost", "custom_llm_provider", "model_group"}
OTHER_CALLS = ("embedding", "image", "transcription", "speech", "moderation", "rerank")
FIELDS = (
    canonical("arrival", "startTime"),
    moment("first", "completionStartTime"),
    moment("end", "endTime"),
    canonical("input_tokens", "prompt_tokens"),
    canonical("output_tokens", "completion_tokens"),
    canonical("obs_cached_tokens", "cached_tokens"),
    canonical("reasoning_tokens"),
    canonical("request_id"),
    canonical("model"),
    canonical("tenant", "api_key"),
    canonical("session_id"),
    canonical("max_tokens", "model_parameters.max_tokens"),
    canonical("kind", "call_type"),
    canonical("status"),
    canonical("error_code", "error_information"),
)
USED = (*KEYS, "completionStartTime", "request_id", "id", "call_type", "api_key", "team_id", "user", "model", "model_group",
        "session_id", "trace_id", "status", "cache_hit", "metadata", "error_information", "error_str", "model_parameters",
        "stream", "data")  # fmt: skip


def sniff(head: Head) -> Match | None:
    """By start, end and token counts under LiteLLM's names, and at least two names that only it has."""
    names = set(csv_header(head))
    if not names and is_json(head):
        records = head_objects(head)
        listed = inner(records[0], "data") if records else None
        record = listed[0] if isinstance(listed, list) and listed else records[0] if records else None
        names = set(record) if isinstance(record, dict) else set()
    if names >= KEYS and len(names & OWN) >= 2:
        return Match(95, f"LiteLLM's {', '.join(sorted(KEYS))}, {', '.join(sorted(names & OWN)[:3])}")
    return None


def _is_true(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", "t", "1"))


def _error(record: Row, metadata: Any) -> Any:
    told = loaded(record.get("error_information")) or inner(metadata, "error_information")
    code = first_of(told, "error_code", "error_class")
    return code if isinstance(code, str | int) else None


def _row(record: Row) -> Row | str:
    call = str(record.get("call_type") or "").lower()
    if any(word in call for word in OTHER_CALLS):
        return "no text generation (embedding, image, audio, ranking)"
    if _is_true(record.get("cache_hit")):
        return "answered from the gateway's cache"
    metadata = loaded(record.get("metadata"))
    usage = inner(metadata, "usage_object")
    cached = inner(usage, "prompt_tokens_details", "cached_tokens")
    code = _error(record, metadata)
    status = record.get("status") or ("failure" if code or record.get("error_str") else "success")
    first = record.get("completionStartTime")
    row = {
        **{key: record.get(key) for key in KEYS},
        # an answer that was not streamed comes at once: its first token was not seen
        "completionStartTime": None if first == record.get("endTime") else first,
        "cached_tokens": first_of(usage, "cache_read_input_tokens") if cached is None else cached,
        "reasoning_tokens": inner(usage, "completion_tokens_details", "reasoning_tokens"),
        "request_id": first_of(record, "request_id", "id"),
        "model": first_of(record, "model_group", "model"),
        "api_key": first_of(record, "api_key", "team_id", "user") or inner(metadata, "user_api_key_hash"),
        "session_id": first_of(record, "session_id", "trace_id"),
        "model_parameters.max_tokens": inner(loaded(record.get("model_parameters")), "max_tokens"),
        "call_type": call or None,
        "status": status,
        "error_information": code,
    }
    for key in ("prompt_tokens", "completion_tokens") if status == "failure" else ():
        row[key] = row[key] or 0
    return row


def _flatten(record: Row) -> list[Row | str]:
    listed = record.get("data")
    if isinstance(listed, list):
        return [_row(each) if isinstance(each, dict) else "not a JSON object" for each in listed]
    return [_row(record)]


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows with the gateway's latencies to the stage."""
    stage.facts.obs_clock = "gateway"

    def derive(columns: dict[str, Values]) -> dict[str, Values]:
        out = {name: values for name, values in columns.items() if name not in ("first", "end")}
        out["obs_ttft"] = between(columns["arrival"], columns["first"], stage.facts, "TTFT")
        out["obs_e2e"] = between(columns["arrival"], columns["end"], stage.facts, "end-to-end latency")
        out["obs_tpot"] = per_token(out["obs_ttft"], out["obs_e2e"], out["output_tokens"])
        return out

    batches = json_batches(source, stage) if is_json(source.head) else csv_batches(source, stage, USED)
    read_rows(source, stage, FIELDS, batches, _flatten, used=USED, derive=derive)

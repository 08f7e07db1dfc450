"""OpenTelemetry spans as OTLP/JSON: vLLM's ``llm_request``, and any client's spans of the GenAI conventions.

Whole numbers and nanoseconds come as strings, spans in the order of export, several to a document. vLLM's spans have no finish
reason and no cached tokens; latency attributes are seconds. In the GenAI conventions cached tokens are inside the input count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracekit.traces.columns import Column, Mapped
from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.json_documents import head_objects, is_json, json_batches
from tracekit.traces.readers.json_values import Values
from tracekit.traces.readers.record_rows import Row, between, canonical, first_of, inner, moment, per_token, read_rows
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "otlp_spans"
OPERATIONS = ("chat", "text_completion", "generate_content")
LATENCY = "gen_ai.latency."
NAMES = {
    "input_tokens": ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens"),
    "output_tokens": ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens"),
    "obs_cached_tokens": ("gen_ai.usage.cache_read.input_tokens",),
    "reasoning_tokens": ("gen_ai.usage.reasoning.output_tokens",),
    "max_tokens": ("gen_ai.request.max_tokens",),
    "n_sequences": ("gen_ai.request.n", "gen_ai.request.choice.count", "gen_ai.usage.num_sequences"),
    "request_id": ("gen_ai.request.id", "gen_ai.response.id"),
    "model": ("gen_ai.response.model", "gen_ai.request.model"),
    "session_id": ("gen_ai.conversation.id",),
    "error_code": ("error.type",),
    "obs_ttft": (f"{LATENCY}time_to_first_token", "gen_ai.response.time_to_first_chunk"),
    "obs_queue": (f"{LATENCY}time_in_queue",),
    "obs_prefill": (f"{LATENCY}time_in_model_prefill",),
    "obs_decode": (f"{LATENCY}time_in_model_decode",),
    "e2e": (f"{LATENCY}e2e",),
}
FIELDS = (
    canonical("arrival", "startTimeUnixNano", "ns"),
    moment("end", "endTimeUnixNano", "ns"),
    Mapped(Column("e2e", "duration", "e2e"), f"{LATENCY}e2e", "s"),
    *(canonical(name, keys[0], "s" if name.startswith("obs_") and name != "obs_cached_tokens" else None)
      for name, keys in NAMES.items() if name != "e2e"),
    canonical("finish_reason", "gen_ai.response.finish_reasons"),
    canonical("status"),
)  # fmt: skip


def sniff(head: Head) -> Match | None:
    """By ``resourceSpans`` with GenAI attributes."""
    objects = head_objects(head)
    if any("resourceSpans" in record for record in objects[:5]) or (is_json(head) and b'"resourceSpans"' in head.data[:2000]):
        return Match(95 if b"gen_ai." in head.data else 50, "OTLP resourceSpans")
    return None


def _plain(value: Any) -> Any:
    """What an OTLP attribute value holds."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    ((kind, held),) = value.items()
    if kind == "intValue":
        return _whole(held)
    if kind == "arrayValue":
        values = inner(held, "values")
        return [_plain(each) for each in values] if isinstance(values, list) else None
    return held


def _whole(text: Any) -> Any:
    # as a number: the detour of a string over a float would lose nanoseconds
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20 else text


def _spans(document: Row) -> Iterator[Row]:
    for resource in _list(document.get("resourceSpans")):
        for scope in _list(inner(resource, "scopeSpans") or inner(resource, "instrumentationLibrarySpans")):
            yield from (span for span in _list(inner(scope, "spans")) if isinstance(span, dict))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _row(span: Row, attributes: Row) -> Row:
    row = {keys[0]: first_of(attributes, *keys) for keys in NAMES.values()}
    reasons = attributes.get("gen_ai.response.finish_reasons")
    row["gen_ai.response.finish_reasons"] = reasons[0] if isinstance(reasons, list) and reasons else None
    row["startTimeUnixNano"] = _whole(span.get("startTimeUnixNano"))
    row["endTimeUnixNano"] = _whole(span.get("endTimeUnixNano"))
    failed = inner(span, "status", "code") in (2, "STATUS_CODE_ERROR") or row["error.type"] is not None
    row["status"] = "error" if failed else None
    if failed:
        for name in ("input_tokens", "output_tokens"):
            row[NAMES[name][0]] = row[NAMES[name][0]] or 0
    return row


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Spans that are requests to the stage, the others set aside."""
    from_vllm = b'"llm_request"' in source.head.data
    stage.facts.obs_clock = "server" if from_vllm else "client"

    def flatten(document: Row) -> list[Row | str]:
        rows: list[Row | str] = []
        for span in _spans(document):
            attributes = {str(inner(one, "key")): _plain(inner(one, "value")) for one in _list(span.get("attributes"))}
            counted = any(attributes.get(key) is not None for key in NAMES["input_tokens"])
            asked = attributes.get("gen_ai.operation.name") in OPERATIONS
            is_request = span.get("name") == "llm_request" or asked or ("gen_ai.operation.name" not in attributes and counted)
            rows.append(_row(span, attributes) if is_request else "a span that is no model request")
        return rows

    def derive(columns: dict[str, Values]) -> dict[str, Values]:
        out = {name: values for name, values in columns.items() if name not in ("end", "e2e")}
        measured = columns["e2e"]
        whole = between(columns["arrival"], columns["end"], stage.facts, "span")
        out["obs_e2e"] = whole if measured.null is not None and measured.null.all() else measured
        out["obs_tpot"] = per_token(out["obs_ttft"], out["obs_e2e"], out["output_tokens"])
        return out

    read_rows(source, stage, FIELDS, json_batches(source, stage), flatten, used=("resourceSpans",), derive=derive)

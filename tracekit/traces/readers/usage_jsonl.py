"""Any JSON log whose records hold a provider's ``usage`` object, with the provider's own way of counting cached tokens.

OpenAI: ``prompt_tokens`` (or ``input_tokens``) with the cached ones inside, told in ``..._details.cached_tokens``. Anthropic:
``input_tokens`` with ``cache_read_input_tokens`` and ``cache_creation_input_tokens`` beside it.
"""

from __future__ import annotations

from typing import Any, Literal

from tracekit.errors import InputError
from tracekit.traces.columns import Mapped, canonical_name
from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.json_documents import head_objects, json_batches
from tracekit.traces.readers.record_rows import Row, canonical, first_of, inner, read_rows
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "usage_jsonl"
HOLDERS = ("usage", "response.usage", "body.usage", "response.body.usage", "message.usage", "data.usage")
BESIDE = ("cache_read_input_tokens", "cache_creation_input_tokens")
ARRIVALS = ("created", "created_at")
FIELDS = (
    canonical("input_tokens", "usage.input"),
    canonical("output_tokens", "usage.output"),
    canonical("obs_cached_tokens", "usage.cached"),
    canonical("reasoning_tokens", "usage.reasoning"),
    canonical("model"),
)
OTHERS = ("request_id", "tenant", "class", "session_id", "max_tokens", "priority", "status", "obs_ttft", "obs_tpot", "obs_e2e",
          "obs_queue", "finish_reason")  # fmt: skip


def _usage(record: Row) -> Any:
    return next((found for path in HOLDERS if isinstance(found := inner(record, *path.split(".")), dict)), None)


def _is_usage(usage: Any) -> bool:
    return isinstance(usage, dict) and (usage.keys() >= {"prompt_tokens", "completion_tokens"}
                                        or usage.keys() >= {"input_tokens", "output_tokens"})  # fmt: skip


def sniff(head: Head) -> Match | None:
    """By a ``usage`` object with OpenAI's or Anthropic's names."""
    records = head_objects(head)[:5]
    if records and all(_is_usage(_usage(record)) for record in records):
        return Match(80, "a provider's usage object in every record")
    return None


def _cached(usage: Row) -> tuple[Any, int, bool]:
    """Cached tokens, those beside the input count, and whether the names say that they are beside it."""
    details = first_of(usage, "prompt_tokens_details", "input_tokens_details")
    cached = inner(details, "cached_tokens")
    if cached is not None:
        return cached, cached if isinstance(cached, int) else 0, False
    beside = sum(count for key in BESIDE if isinstance(count := usage.get(key), int))
    return usage.get(BESIDE[0]), beside, "prompt_tokens" not in usage and any(key in usage for key in BESIDE)


def _flat_usage(usage: Any, said: Literal["inside", "outside"] | None) -> Row:
    if not isinstance(usage, dict):
        return {}
    cached, beside, outside = _cached(usage)
    given = first_of(usage, "prompt_tokens", "input_tokens")
    if (outside if said is None else said == "outside") and isinstance(given, int):
        given += beside
    details = first_of(usage, "completion_tokens_details", "output_tokens_details")
    return {"usage.input": given, "usage.output": first_of(usage, "completion_tokens", "output_tokens"), "usage.cached": cached,
            "usage.reasoning": inner(details, "reasoning_tokens")}  # fmt: skip


def _others(records: list[Row]) -> dict[str, Mapped]:
    """Fields beside the usage object, recognised by name; the arrival among them."""
    found: dict[str, Mapped] = {}
    for key in {key: None for record in records for key in record}:
        hit = ("arrival", None) if key in ARRIVALS else canonical_name(key)
        if hit is not None and (hit[0] == "arrival" or hit[0] in OTHERS):
            found.setdefault(hit[0], canonical(hit[0], key, hit[1]))
    return found


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows to the stage, cached tokens inside the input count."""
    head = head_objects(source.head)
    others = _others(head)
    nested = next((path for path in HOLDERS if any(isinstance(inner(one, *path.split(".")), dict) for one in head)), "")
    if "arrival" not in others and nested.count("."):
        others["arrival"] = canonical("arrival", f"{nested.rpartition('.')[0]}.created")
    told = {True: 0, False: 0}
    keys = [mapped.source for mapped in others.values()]

    def flatten(record: Row) -> list[Row | str]:
        row = {key: inner(record, *key.split(".")) if "." in key else record.get(key) for key in keys}
        row["model"] = record.get("model") or inner(record, *nested.split(".")[:-1], "model")
        row |= _flat_usage(_usage(record), options.cached)
        cached, given = row.get("usage.cached"), row.get("usage.input")
        if isinstance(cached, int) and isinstance(given, int) and cached > 0:
            told[cached <= given] += 1
            if cached > given:
                row["usage.cached"] = None
        return [row]

    used = ("usage", "model", nested.split(".")[0], *keys)
    read_rows(source, stage, (*others.values(), *FIELDS), json_batches(source, stage), flatten, used=used)
    if told[False]:
        what = f"{told[False]} of {sum(told.values())} answers have more cached tokens than input tokens"
        if told[False] > told[True]:
            raise InputError(what, file=source.name, column="usage", expected="--cached outside, if the input leaves them out")
        stage.facts.warn(f"{what}: how many were cached is unknown there")

"""SGLang's ``--export-metrics-to-file``: one object per finished request, its parameters as JSON inside a string.

Moments are unix seconds, durations seconds; both are there only when the server ran with metrics on. A priority is more urgent
the higher it is: it is turned round. Texts and token ids in the parameters are never looked at.
"""

from __future__ import annotations

from typing import Any

from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.json_documents import head_objects, json_batches
from tracekit.traces.readers.json_values import Values
from tracekit.traces.readers.record_rows import Row, between, canonical, first_of, inner, loaded, moment, per_token, read_rows
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "sglang_metrics"
ARRIVAL = canonical("arrival", "request_received_ts", "s")
FIELDS = (
    moment("forward", "forward_entry_time", "s"),
    moment("prefilled", "prefill_finished_time", "s"),
    canonical("input_tokens", "prompt_tokens"),
    canonical("output_tokens", "completion_tokens"),
    canonical("obs_cached_tokens", "cached_tokens"),
    canonical("reasoning_tokens"),
    canonical("obs_preemptions", "num_retractions"),
    canonical("obs_queue", "queue_time", "s"),
    canonical("obs_ttft", "first_token_latency", "s"),
    canonical("obs_e2e", "e2e_latency", "s"),
    canonical("image_tokens"),
    canonical("audio_tokens"),
    canonical("video_tokens"),
    canonical("request_id", "id"),
    canonical("finish_reason", "finish_reason.type"),
    canonical("status"),
    canonical("max_tokens", "sampling_params.max_new_tokens"),
    canonical("n_sequences", "sampling_params.n"),
    canonical("priority"),
    canonical("session_id"),
    canonical("adapter", "lora_path"),
    canonical("obs_replica", "data_parallel_rank"),
    canonical("unmodelled", "spec_verify_ct"),
)
COPIED = ("request_received_ts", "forward_entry_time", "prefill_finished_time", "prompt_tokens", "completion_tokens",
          "cached_tokens", "reasoning_tokens", "num_retractions", "queue_time", "first_token_latency", "e2e_latency",
          "image_tokens", "audio_tokens", "video_tokens", "id")  # fmt: skip
USED = (*COPIED, "request_parameters", "finish_reason", "spec_verify_ct")


def sniff(head: Head) -> Match | None:
    """By ``request_parameters`` beside the token counts."""
    records = head_objects(head)
    if records and all(record.keys() >= {"request_parameters", "prompt_tokens"} for record in records[:5]):
        return Match(95, "keys request_parameters, prompt_tokens, completion_tokens")
    return None


def _flipped(priority: Any) -> Any:
    return -priority if isinstance(priority, int) and not isinstance(priority, bool) else None


def _flatten(record: Row) -> list[Row | str]:
    given = loaded(record.get("request_parameters"))
    reason = inner(record, "finish_reason", "type")
    row = {name: record.get(name) for name in COPIED}
    speculative = record.get("spec_verify_ct")
    for name in ("prompt_tokens", "completion_tokens") if reason == "abort" else ():
        row[name] = row[name] or 0
    return [
        row
        | {
            "finish_reason.type": reason,
            "status": "cancelled" if reason == "abort" else "ok" if reason else None,
            "sampling_params.max_new_tokens": inner(given, "sampling_params", "max_new_tokens"),
            "sampling_params.n": inner(given, "sampling_params", "n"),
            "priority": _flipped(inner(given, "priority")),
            "session_id": first_of(given, "session_id") or inner(given, "session_params", "id"),
            "lora_path": inner(given, "lora_path"),
            "data_parallel_rank": inner(given, "data_parallel_rank"),
            "spec_verify_ct": "speculative" if isinstance(speculative, int) and speculative > 0 else None,
        }
    ]


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows with server-side latencies to the stage; without arrivals where the server ran without metrics."""
    stage.facts.obs_clock = "server"
    timed = any(record.get("request_received_ts") is not None for record in head_objects(source.head))

    def derive(columns: dict[str, Values]) -> dict[str, Values]:
        out = {name: values for name, values in columns.items() if name not in ("forward", "prefilled")}
        out["obs_prefill"] = between(columns["forward"], columns["prefilled"], stage.facts, "prefill")
        out["obs_tpot"] = per_token(out["obs_ttft"], out["obs_e2e"], out["output_tokens"])
        return out

    fields = (ARRIVAL, *FIELDS) if timed else FIELDS
    read_rows(source, stage, fields, json_batches(source, stage), _flatten, used=USED, derive=derive)

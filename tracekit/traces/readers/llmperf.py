"""llmperf's ``*_individual_responses.json``: an array of results, lengths and client-side latencies in seconds, no arrivals.

Its ``inter_token_latency_s`` has the first token in it, so TPOT is computed from the end-to-end latency and the TTFT instead.
"""

from __future__ import annotations

from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.json_documents import head_objects, json_batches
from tracekit.traces.readers.json_values import Values
from tracekit.traces.readers.record_rows import Row, canonical, per_token, read_rows
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "llmperf"
KEYS = ("number_input_tokens", "number_output_tokens", "end_to_end_latency_s", "ttft_s", "error_code")
FIELDS = (
    canonical("input_tokens", KEYS[0]),
    canonical("output_tokens", KEYS[1]),
    canonical("obs_e2e", KEYS[2], "s"),
    canonical("obs_ttft", KEYS[3], "s"),
    canonical("error_code", KEYS[4]),
    canonical("status"),
)


def sniff(head: Head) -> Match | None:
    """By its names of token counts and latencies."""
    records = head_objects(head)
    if records and all(record.keys() >= {KEYS[0], KEYS[1]} and {KEYS[2], KEYS[3]} & record.keys() for record in records[:5]):
        return Match(95, "keys number_input_tokens, number_output_tokens, ttft_s, end_to_end_latency_s")
    return None


def _flatten(record: Row) -> list[Row | str]:
    row = {key: record.get(key) for key in KEYS}
    failed = row["error_code"] is not None
    for key in KEYS[:2] if failed else ():
        row[key] = row[key] or 0
    return [row | {"status": "error" if failed else "ok"}]


def _derive(columns: dict[str, Values]) -> dict[str, Values]:
    return columns | {"obs_tpot": per_token(columns["obs_ttft"], columns["obs_e2e"], columns["output_tokens"])}


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows without arrivals to the stage."""
    stage.facts.obs_clock = "client"
    read_rows(source, stage, FIELDS, json_batches(source, stage), _flatten, used=KEYS, derive=_derive)

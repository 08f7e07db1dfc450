"""Claude Code sessions flattened by a third party: one request a line, ``request_arrival_delta_s`` from the start of its session.

Source: the data set semianalysisai/cc-traces-weka as normalised by fnstggl/energy2. Blocks are only counted, so there is no
prefix identity; sessions have no common clock.
"""

from __future__ import annotations

from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.json_lines import json_line_batches
from tracekit.traces.readers.record_rows import canonical, read_rows
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "weka_normalized"
KEYS = {"request_arrival_delta_s", "session_id", "input_tokens", "output_tokens"}
FIELDS = (
    canonical("arrival", "request_arrival_delta_s", "s"),
    canonical("input_tokens"),
    canonical("output_tokens"),
    canonical("session_id"),
    canonical("turn", "turn_index"),
    canonical("think_time", "think_time_s", "s"),
    canonical("obs_ttft", "ttft_s", "s"),
    canonical("obs_e2e", "api_time_s", "s"),
    canonical("model", "model_id"),
)


def sniff(head: Head) -> Match | None:
    """By the keys."""
    records = head.records()
    if records and all(record.keys() >= KEYS for record in records[:5]):
        return Match(96, f"keys {', '.join(sorted(KEYS))}")
    return None


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows with think times to the stage."""
    stage.facts.arrival_kind, stage.facts.obs_clock = "session_relative", "gateway"
    used = {field.source for field in FIELDS}
    read_rows(source, stage, FIELDS, json_line_batches(source, stage), lambda record: [record], used=used)

"""InferenceX multi-turn replays: one request a row in the order of completion, ``request_start_time`` unix s, ``success``.

Source: SemiAnalysisAI/InferenceX. A failed request has TTFT 0.0, no tokens and an empty message: only ``success`` tells it from
an instant answer. ``output_tokens_expected`` is another model's length and not read; ``delay_expected`` is the think time before.
Cells with hundreds of token times are skipped.
"""

from __future__ import annotations

from tracekit.errors import InputError
from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.burstgpt6 import names_of
from tracekit.traces.readers.delimited import header_of, read_delimited
from tracekit.traces.readers.record_rows import canonical
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "inferencex"
FIELDS = (
    canonical("arrival", "request_start_time", "s"),
    canonical("input_tokens"),
    canonical("output_tokens", "output_tokens_actual"),
    canonical("tenant", "user_id"),
    canonical("session_id", "trace_id"),
    canonical("turn", "request_idx"),
    canonical("status", "success"),
    canonical("think_time", "delay_expected", "s"),
    canonical("obs_ttft", "ttft", "s"),
    canonical("obs_e2e", "ttlt", "s"),
    canonical("obs_tpot", "itl", "s"),
)


def sniff(head: Head) -> Match | None:
    """By the column names."""
    if names_of(head) >= {field.source for field in FIELDS}:
        return Match(95, "columns request_start_time, output_tokens_actual, trace_id, request_idx, success")
    return None


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows with observed latencies of the client to the stage. Errors: ``InputError`` for missing columns."""
    stage.facts.obs_clock = "client"
    table = header_of(source, ",")
    missing = [field.source for field in FIELDS if field.source not in table.names]
    if missing:
        raise InputError(f"no column {', '.join(missing)}", file=source.name, line=table.header_line,
                         expected="those of InferenceX")  # fmt: skip
    used = {field.source for field in FIELDS}
    stage.facts.ignore(name for name in table.names if name not in used)
    read_delimited(source, stage, table, FIELDS)

"""Per-request timings of a vLLM run: lengths, arrival on the wall clock, and four moments on the engine's monotonic clock.

The two clocks are never subtracted from each other: observed latencies count from ``queued_ts``.
Source: casys-kaist/LLMServingSim.
"""

from __future__ import annotations

import numpy as np

from tracekit.traces.columns import COLUMNS, Column, Mapped
from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.json_lines import read_json_lines
from tracekit.traces.readers.json_values import Values
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "vllm_measured"
MOMENTS = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
KEYS = {"input_toks", "output_toks", "arrival_time", *MOMENTS}
FIELDS = (
    Mapped(COLUMNS["arrival"], "arrival_time", "s"),
    Mapped(COLUMNS["input_tokens"], "input_toks"),
    Mapped(COLUMNS["output_tokens"], "output_toks"),
    Mapped(COLUMNS["request_id"], "request_id"),
    *(Mapped(Column(name, "duration", name), name, "s") for name in MOMENTS),
)


def sniff(head: Head) -> Match | None:
    """By the keys."""
    records = head.records()
    if records and all(record.keys() >= KEYS for record in records[:5]):
        return Match(95, f"keys {', '.join(sorted(KEYS))}")
    return None


def _observed(columns: dict[str, Values]) -> dict[str, Values]:
    out = {name: values for name, values in columns.items() if name not in MOMENTS}
    queued, scheduled, first, last = (columns[name] for name in MOMENTS)
    gaps = np.maximum(columns["output_tokens"].data - 1, 1)
    for name, begin, end, share in (
        ("obs_queue", queued, scheduled, None),
        ("obs_ttft", queued, first, None),
        ("obs_tpot", first, last, gaps),
        ("obs_e2e", queued, last, None),
    ):
        null = np.zeros(len(begin.data), bool)
        for part in (begin, end):
            if part.null is not None:
                null |= part.null
        span = end.data - begin.data
        if share is not None:
            null |= columns["output_tokens"].data < 2
            span = np.rint(span / share).astype(np.int64)
        wrong = dict.fromkeys(np.flatnonzero((span < 0) & ~null).tolist(), "ends before it begins")
        out[name] = Values(span, null if null.any() else None, wrong | begin.bad | end.bad)
    return out


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows with observed queue time, TTFT, TPOT and E2E to the stage."""
    stage.facts.obs_clock = "server"
    read_json_lines(source, stage, FIELDS, derive=_observed)

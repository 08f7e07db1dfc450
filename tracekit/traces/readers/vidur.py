"""Vidur's CSV: ``arrived_at`` (s from trace start), ``num_prefill_tokens``, ``num_decode_tokens``."""

from __future__ import annotations

from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.csv_records import csv_header
from tracekit.traces.readers.fixed_csv import read_fixed
from tracekit.traces.readers.record_rows import canonical
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "vidur"
FIELDS = (
    canonical("arrival", "arrived_at", "s"),
    canonical("input_tokens", "num_prefill_tokens"),
    canonical("output_tokens", "num_decode_tokens"),
)
OPTIONAL = (canonical("predicted_output_tokens", "num_predicted_decode_tokens"),)


def sniff(head: Head) -> Match | None:
    """By the three names."""
    if {field.source for field in FIELDS} <= set(csv_header(head)):
        return Match(95, "columns arrived_at, num_prefill_tokens, num_decode_tokens")
    return None


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows to the stage."""
    read_fixed(source, stage, FIELDS, OPTIONAL)

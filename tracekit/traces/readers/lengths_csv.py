"""Pairs of lengths without arrivals: ``num_prefill_tokens``, ``num_decode_tokens``, perhaps a predicted length.

They become a trace with ``--arrival``. ``pd_ratio`` is prefill to decode in some files and the reverse in others: not used.
"""

from __future__ import annotations

from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.csv_records import csv_header
from tracekit.traces.readers.fixed_csv import read_fixed
from tracekit.traces.readers.record_rows import canonical
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "lengths_csv"
FIELDS = (canonical("input_tokens", "num_prefill_tokens"), canonical("output_tokens", "num_decode_tokens"))
OPTIONAL = (canonical("predicted_output_tokens", "num_predicted_decode_tokens"),)


def sniff(head: Head) -> Match | None:
    """By the two names, without an arrival."""
    names = csv_header(head)
    if {field.source for field in FIELDS} <= set(names) and "arrived_at" not in names:
        return Match(90, "columns num_prefill_tokens, num_decode_tokens and no arrival")
    return None


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows without arrivals to the stage."""
    read_fixed(source, stage, FIELDS, OPTIONAL)

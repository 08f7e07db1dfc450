"""Request lists of the fair-serving experiments: ``req_id``, ``adapter_dir``, ``prompt_len``, ``output_len``, ``req_time`` (s).

``adapter_dir`` names the sender: it becomes the tenant, and the row is not marked as a LoRA request.
"""

from __future__ import annotations

from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.csv_records import csv_header
from tracekit.traces.readers.fixed_csv import read_fixed
from tracekit.traces.readers.record_rows import canonical
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "tenant_csv"
FIELDS = (
    canonical("arrival", "req_time", "s"),
    canonical("input_tokens", "prompt_len"),
    canonical("output_tokens", "output_len"),
    canonical("tenant", "adapter_dir"),
)
OPTIONAL = (canonical("request_id", "req_id"),)


def sniff(head: Head) -> Match | None:
    """By the four names."""
    if {field.source for field in FIELDS} <= set(csv_header(head)):
        return Match(95, "columns adapter_dir, prompt_len, output_len, req_time")
    return None


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows to the stage."""
    read_fixed(source, stage, FIELDS, OPTIONAL)

"""BurstGPT, eight columns: with ``Session ID`` (conversations only) and ``Elapsed time`` (whole seconds to the complete answer).

Source: HPMLL/BurstGPT, later releases; the two columns stand second and third. ``Elapsed time`` 0 means less than a second: no
latency is taken from it, but the answer's end is.
"""

from __future__ import annotations

from tracekit.traces.columns import COLUMNS, Mapped
from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.burstgpt6 import FIELDS as PLAIN
from tracekit.traces.readers.burstgpt6 import names_of, read_burst
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "burstgpt8"
FIELDS = (*PLAIN, Mapped(COLUMNS["session_id"], "Session ID"), Mapped(COLUMNS["obs_e2e"], "Elapsed time", "s"))


def sniff(head: Head) -> Match | None:
    """By the column names."""
    if names_of(head) >= {field.source for field in FIELDS}:
        return Match(95, "columns Timestamp, Session ID, Elapsed time, Model, Request tokens, Response tokens, Log Type")
    return None


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows, with sessions and end-to-end latency, to the stage."""
    stage.facts.obs_clock = "gateway"
    read_burst(source, stage, FIELDS)

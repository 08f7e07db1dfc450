"""TraceLab rounds: one call of a coding agent's model a line, with the times of what it heard and said, and of its tools.

Source: uw-syfi/TraceLab, sanitised rounds. A call arrives when the last of its input was there (``user_message`` or
``tool_result``) and ends with the last part of its answer. ``prefix_tokens`` are inside ``input_tokens_total``. Keys differ
per provider.
"""

from __future__ import annotations

from typing import Any

from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.intervals import covered
from tracekit.traces.readers.json_lines import json_line_batches
from tracekit.traces.readers.json_values import parse_date
from tracekit.traces.readers.record_rows import Row, canonical, read_rows
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "tracelab"
KEYS = {"session_id", "round_index", "input_tokens_total", "output_tokens", "timing_events"}
HEARD = ("user_message", "tool_result")
SAID = ("reasoning", "text", "tool_call")
FIELDS = (
    canonical("arrival", unit="ns"),
    canonical("input_tokens", "input_tokens_total"),
    canonical("output_tokens"),
    canonical("request_id", "round_id"),
    canonical("session_id"),
    canonical("turn", "round_index"),
    canonical("model"),
    canonical("tenant", "project"),
    canonical("obs_cached_tokens", "prefix_tokens"),
    canonical("reasoning_tokens", "reasoning_output_tokens"),
    canonical("obs_e2e", "e2e", "ns"),
    canonical("tool_time", "tool", "ns"),
)


def sniff(head: Head) -> Match | None:
    """By the keys."""
    records = head.records()
    if records and all(record.keys() >= KEYS for record in records[:5]):
        return Match(96, f"keys {', '.join(sorted(KEYS))}")
    return None


def _time(event: Any, key: str) -> int | None:
    said = event.get(key) if isinstance(event, dict) else None
    return parse_date(said) if isinstance(said, str) else None


def _times(record: Row, kinds: tuple[str, ...]) -> list[int]:
    events = record.get("timing_events")
    found = [_time(event, "timestamp") for event in events if isinstance(event, dict) and event.get("event_type") in kinds] \
        if isinstance(events, list) else []  # fmt: skip
    return [moment for moment in found if moment is not None]


def _tools(record: Row) -> list[tuple[int, int]]:
    tools = record.get("tools")
    pairs = [(_time(tool, "emitted_at"), _time(tool, "result_at")) for tool in tools] if isinstance(tools, list) else []
    return [(begin, end) for begin, end in pairs if begin is not None and end is not None]


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows with tool times to the stage."""
    stage.facts.obs_clock = "client"
    before: dict[str, tuple[int, list[tuple[int, int]]]] = {}

    def flatten(record: Row) -> list[Row | str]:
        heard, said = _times(record, HEARD), _times(record, SAID)
        row = dict(record)
        if heard:
            arrival = row["arrival"] = max(heard)
            end = max([*said, arrival])
            row["e2e"] = end - arrival if said else None
            session = str(record.get("session_id"))
            if session in before:
                row["tool"] = covered(before[session][1], before[session][0], arrival)
            before[session] = end, _tools(record)
        return [row]

    used = {field.source for field in FIELDS} | {"timing_events", "tools"}
    read_rows(source, stage, FIELDS, json_line_batches(source, stage), flatten, used=used)

"""Our own JSON lines, as ``synth`` writes them: canonical names, times with their unit, prefix runs or block ids.

``{"arrival_ns": .., "input_tokens": .., "output_tokens": .., "tenant": .., "class": .., "max_tokens": .., "priority": ..,
"block_tokens": 16, "prefix_runs": [[position, first id, length], ..]}``; ``arrival_s`` and ``hash_ids`` are read as well.
"""

from __future__ import annotations

from tracekit.errors import InputError
from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.generic_jsonl import choose_json_fields, discoverer
from tracekit.traces.readers.json_lines import read_json_lines
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "canonical_jsonl"
ARRIVALS = ("arrival_ns", "arrival_s")
KINDS = {"session_relative", "closed_loop", "generated"}
"""What ``arrival_kind`` may say of a trace whose arrivals are not simply times of a log."""


def _is_ours(record: dict[str, object]) -> bool:
    return record.keys() >= {"input_tokens", "output_tokens"} and any(key in record for key in ARRIVALS)


def sniff(head: Head) -> Match | None:
    """By the canonical names."""
    records = head.records()
    if records and all(map(_is_ours, records[:5])):
        return Match(90, "keys arrival_ns or arrival_s, input_tokens, output_tokens")
    return None


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows and prefix runs to the stage."""
    records = source.head.records()
    sizes = {str(record["block_tokens"]) for record in records if record.get("block_tokens") is not None}
    if len(sizes) > 1:
        raise InputError("block_tokens changes within the file", file=source.name, column="block_tokens",
                         value=" and ".join(sorted(sizes)[:3]), expected="one size")  # fmt: skip
    kinds = {str(record.get("arrival_kind")) for record in records}
    if len(kinds) == 1 and kinds <= KINDS:
        stage.facts.arrival_kind = kinds.pop()
    fields = choose_json_fields(source, stage, {})
    stage.facts.read_after_all("arrival_kind")
    read_json_lines(source, stage, fields, discover=discoverer(fields, stage, [*stage.facts.ignored, "arrival_kind"]))

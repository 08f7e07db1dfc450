"""Any JSON objects with one request each, one a line or in an array.

Fields are taken by ``--map`` (``a.b`` looks inside objects), or recognised by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracekit.errors import InputError
from tracekit.traces.columns import Mapped, guess_mapping
from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.mapping import choose_fields
from tracekit.traces.readers.json_documents import head_objects, is_json, json_batches
from tracekit.traces.readers.json_lines import Discover, read_batches
from tracekit.traces.stage import Stage

__all__ = ["NAME", "choose_json_fields", "discoverer", "read", "sniff"]

NAME = "generic_jsonl"


def _keys(head: Head) -> list[str]:
    """Keys of the first records in order of appearance, one level down as ``a.b``."""
    keys: dict[str, None] = {}
    for record in head_objects(head):
        for key, value in record.items():
            keys[key] = None
            for inner in value if isinstance(value, dict) else ():
                keys[f"{key}.{inner}"] = None
    return list(keys)


def sniff(head: Head) -> Match | None:
    """Objects, one a line or in an array."""
    if not head_objects(head):
        return Match(1, "begins like JSON") if is_json(head) else None
    known = guess_mapping(_keys(head))
    return Match(30 + min(20, 5 * len(known)), f"JSON objects, {len(known)} fields known by name")


def choose_json_fields(source: Source, stage: Stage, mapping: dict[str, Mapped], *, timed: bool = True) -> list[Mapped]:
    """The fields to read, block ids with their size. Errors: ``InputError`` when the file is no JSON lines."""
    records = head_objects(source.head)
    if not records:
        raise InputError("not JSON lines of one request each", file=source.name, line=1, expected="one JSON object a line")
    fields = choose_fields(source.name, _keys(source.head), mapping, stage.facts, blocks=True, timed=timed)
    sizes = {record["block_tokens"] for record in records if isinstance(record.get("block_tokens"), int)}
    out = []
    for field in fields:
        if field.column.kind != "blocks" or field.unit is not None:
            out.append(field)
        elif len(sizes) == 1 and min(sizes) > 0:
            out.append(Mapped(field.column, field.source, str(min(sizes))))
        else:
            stage.facts.warn(f"{field.source}: how many tokens a block has is unknown, so block ids were left out"
                             f" (say hash_ids={field.source}:512)")  # fmt: skip
    stage.facts.read_after_all("block_tokens")
    return out


def discoverer(fields: Sequence[Mapped], stage: Stage, known: Iterable[str]) -> Discover:
    """Finds canonical columns among keys that only later rows have."""
    have = {field.column.name for field in fields}
    told = set(known) | {field.source for field in fields} | {"block_tokens"}

    def discover(keys: list[str]) -> list[Mapped]:
        new = [key for key in keys if key not in told]
        told.update(new)
        found = [mapped for name, mapped in guess_mapping(new).items() if name not in have and mapped.column.kind != "blocks"]
        have.update(mapped.column.name for mapped in found)
        taken = {mapped.source for mapped in found}
        stage.facts.ignore(key for key in new if key not in taken)
        return found

    return discover


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Rows to the stage."""
    fields = choose_json_fields(source, stage, dict(options.mapping), timed=options.arrival is None)
    found = discoverer(fields, stage, stage.facts.ignored)
    read_batches(source, stage, fields, json_batches(source, stage), discover=found)

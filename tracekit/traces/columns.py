"""The canonical columns of a request: name, what kind of value, where it is stored, and the names it goes by elsewhere.

Times and durations are int64 nanoseconds, counts are tokens, unknown is NULL and never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracekit.errors import UsageError

__all__ = ["COLUMNS", "EXTRA", "REQUIRED", "Column", "Kind", "Mapped", "canonical_name", "guess_mapping", "parse_mapping"]

Kind = Literal["time", "duration", "gap", "count", "integer", "text", "blocks", "link", "raw"]
"""``gap``: a duration that may be negative. ``link``: found from other columns, never read. ``raw``: a reader's own, as it
stands."""
SQL_TYPES: dict[str, str] = {
    "time": "BIGINT",
    "duration": "BIGINT",
    "count": "UINTEGER",
    "integer": "INTEGER",
    "text": "VARCHAR",
    "blocks": "",
    "gap": "BIGINT",
    "link": "UINTEGER",
    "raw": "",
}
_TIMED = ("time", "duration", "gap")
UNITS: dict[str, int] = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
"""Nanoseconds in each time unit."""


@dataclass(frozen=True, slots=True)
class Column:
    """One canonical column. ``stored`` is its name in the database: in table ``arrivals`` when it is not nullable, else in
    ``request_extras``, which has a row only for requests of which more is known."""

    name: str
    kind: Kind
    stored: str
    aliases: tuple[str, ...] = ()
    nullable: bool = True

    @property
    def sql_type(self) -> str:
        return SQL_TYPES[self.kind]


def _time(name: str, *aliases: str, kind: Kind = "duration", nullable: bool = True) -> Column:
    return Column(name, kind, f"{name}_ns", aliases, nullable)


_ALL = (
    _time("arrival", "timestamp", "time", "arrival_time", "arrived_at", "start_time", "ts", "request_time", "created_at",
          "starttime", "received_at", "req_time", kind="time", nullable=False),
    Column("input_tokens", "count", "input_tokens",
           ("prompt_tokens", "input_length", "contexttokens", "num_prefill_tokens", "prompt_len", "input_toks", "input_len",
            "num_prompt_tokens", "request_tokens", "prompt_length"), nullable=False),
    Column("output_tokens", "count", "output_tokens",
           ("completion_tokens", "output_length", "generatedtokens", "num_decode_tokens", "output_len", "output_toks",
            "generated_tokens", "response_tokens", "generation_tokens"), nullable=False),
    Column("request_id", "text", "request_id", ("id", "req_id", "rid")),
    Column("max_tokens", "count", "max_tokens", ("max_new_tokens", "max_completion_tokens", "max_output_tokens")),
    Column("tenant", "text", "tenant", ("tenant_id", "client_id", "api_key", "team_id", "adapter_dir")),
    Column("class", "text", "class", ("slo_class", "service_class", "tier")),
    Column("priority", "integer", "priority"),
    Column("session_id", "text", "session_id", ("conversation_id", "chat_id", "session")),
    Column("status", "text", "status"),
    _time("deadline", kind="time"),
    _time("cancel", kind="time"),
    _time("slo_ttft"),
    _time("slo_tpot"),
    _time("obs_queue", "queue_time"),
    _time("obs_ttft", "ttft", "time_to_first_token", "first_token_latency"),
    _time("obs_tpot", "tpot", "time_per_output_token"),
    _time("obs_e2e", "e2e", "e2e_latency", "latency"),
    _time("obs_prefill", "prefill_time"),
    _time("obs_decode", "decode_time"),
    Column("obs_preemptions", "count", "obs_preemptions", ("num_preemptions", "num_retractions")),
    Column("obs_replica", "text", "obs_replica", ("worker_id", "pod")),
    Column("error_code", "text", "error_code", ("error_type",)),
    Column("n_sequences", "count", "n_sequences", ("num_sequences", "best_of")),
    Column("image_tokens", "count", "image_tokens"),
    Column("audio_tokens", "count", "audio_tokens"),
    Column("video_tokens", "count", "video_tokens"),
    Column("unmodelled", "text", "unmodelled"),
    Column("turn", "count", "turn", ("turn_index", "round_index")),
    Column("parent_id", "text", "parent_id", ("parent_chat_id", "parent_request_id")),
    Column("parent", "link", "parent_idx"),
    Column("think_time", "gap", "think_ns", ("think",)),
    Column("tool_time", "duration", "tool_ns"),
    Column("agent_path", "text", "agent_path"),
    Column("model", "text", "model", ("model_name",)),
    Column("adapter", "text", "adapter", ("lora",)),
    Column("kind", "text", "kind"),
    Column("finish_reason", "text", "finish_reason"),
    Column("predicted_output_tokens", "count", "predicted_output_tokens", ("num_predicted_decode_tokens",)),
    Column("obs_cached_tokens", "count", "obs_cached_tokens", ("cached_tokens",)),
    Column("reasoning_tokens", "count", "reasoning_tokens"),
    Column("hash_ids", "blocks", ""),
    Column("prefix_runs", "blocks", ""),
)  # fmt: skip

COLUMNS: dict[str, Column] = {column.name: column for column in _ALL}
REQUIRED = tuple(column.name for column in _ALL if not column.nullable)
EXTRA = tuple(column for column in _ALL if column.nullable and column.kind != "blocks" and column.name != "parent_id")

_BY_NAME: dict[str, str] = {
    alias: column.name
    for column in _ALL
    if column.kind != "link"
    for alias in (column.name, column.stored, *column.aliases)
    if alias
}


@dataclass(frozen=True, slots=True)
class Mapped:
    """A canonical column, the source column that it is read from, and the unit: a time unit, or tokens per block for
    ``hash_ids``; ``None``: detected."""

    column: Column
    source: str
    unit: str | None = None


def _squash(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_").replace(".", "_")


def _split_unit(squashed: str) -> tuple[str, str | None]:
    stem, _, suffix = squashed.rpartition("_")
    if suffix in ("sec", "secs", "seconds"):
        suffix = "s"
    return (stem, suffix) if stem and suffix in UNITS else (squashed, None)


def canonical_name(source: str) -> tuple[str, str | None] | None:
    """Canonical column and time unit that a source column's own name tells, or ``None``: ``TTFT_ms`` is obs_ttft in ms."""
    squashed = _squash(source)
    stem, unit = _split_unit(squashed)
    if unit is not None and stem in _BY_NAME and COLUMNS[_BY_NAME[stem]].kind in _TIMED:
        return _BY_NAME[stem], unit
    name = _BY_NAME.get(squashed)
    if name is None:
        return None
    return name, "ns" if COLUMNS[name].kind in _TIMED and squashed == COLUMNS[name].stored else None


def guess_mapping(names: list[str]) -> dict[str, Mapped]:
    """Canonical columns recognised among source column names; an exact canonical name wins over an alias."""
    found: dict[str, Mapped] = {}
    exact: set[str] = set()
    for name in names:
        hit = canonical_name(name)
        if hit is None:
            continue
        column, unit = COLUMNS[hit[0]], hit[1]
        is_exact = _split_unit(_squash(name))[0] == column.name or _squash(name) in (column.name, column.stored)
        if column.name not in found or (is_exact and column.name not in exact):
            found[column.name] = Mapped(column, name, unit)
            if is_exact:
                exact.add(column.name)
    return found


def parse_mapping(entries: list[str] | dict[str, str] | None) -> dict[str, Mapped]:
    """``["arrival=ts_ms:ms", "class=slo"]`` (or the same as a dict) to mapped columns. Errors: ``UsageError``."""
    if not entries:
        return {}
    pairs: list[tuple[str, str]] = []
    for entry in entries.items() if isinstance(entries, dict) else entries:
        target, equals, source = entry.partition("=") if isinstance(entry, str) else (entry[0], "=", entry[1])
        if not equals or not target.strip() or not source.strip():
            raise UsageError(f"--map {entry}: expected CANONICAL=SOURCE or CANONICAL=SOURCE:UNIT")
        pairs.append((target.strip(), source.strip()))
    return dict(_parse_pair(target, source) for target, source in pairs)


def _parse_pair(target: str, source: str) -> tuple[str, Mapped]:
    hit = canonical_name(target)
    if hit is None:
        import difflib

        near = difflib.get_close_matches(target, COLUMNS, n=3) or list(COLUMNS)
        raise UsageError(f"--map {target}={source}: no such column; expected one of {', '.join(near)}")
    column = COLUMNS[hit[0]]
    stem, colon, unit = source.rpartition(":")
    if column.kind == "blocks":
        if not colon or not unit.isdigit() or int(unit) == 0:
            raise UsageError(f"--map {target}={source}: block ids need their size in tokens; expected {target}=SOURCE:512")
        return column.name, Mapped(column, stem, unit)
    if colon and unit in UNITS and column.kind in _TIMED:
        return column.name, Mapped(column, stem, unit)
    return column.name, Mapped(column, source, _split_unit(_squash(source))[1] if column.sql_type == "BIGINT" else None)

"""Claude Code sessions, one nested JSON document each: requests with think time, service time and block ids, sub-agents inside.

Source: callanjfox/kv-cache-tester. Block ids are local to a session, so they are set apart before anything else; only full blocks
have one. ``t`` counts seconds from the session's start; inside a sub-agent from the sub-agent's, whose own ``t`` is when it came
back. Sessions have no common clock.
"""

from __future__ import annotations

import math
import re
from typing import Any

import orjson

from tracekit.errors import InputError
from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.json_documents import json_batches
from tracekit.traces.readers.json_lines import Batches, json_line_batches
from tracekit.traces.readers.record_rows import Row, canonical, read_rows
from tracekit.traces.readers.session_ids import SessionIds
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "weka_sessions"
FIELDS = (
    canonical("arrival", unit="s"),
    canonical("input_tokens", "in"),
    canonical("output_tokens", "out"),
    canonical("session_id", "session"),
    canonical("agent_path", "path"),
    canonical("model"),
    canonical("finish_reason", "stop"),
    canonical("think_time", unit="s"),
    canonical("tool_time", unit="s"),
    canonical("obs_ttft", "ttft", "s"),
    canonical("obs_e2e", "api_time", "s"),
)
_MARKS = (re.compile(rb'"requests"\s*:\s*\['), re.compile(rb'"hash_id_scope"\s*:'))
_SIZE = re.compile(rb'"block_size"\s*:\s*(\d+)')


def sniff(head: Head) -> Match | None:
    """By the keys at the beginning: the first session may be longer than what is looked at."""
    if head.lines and head.lines[0].lstrip()[:1] == b"{" and all(mark.search(head.data) for mark in _MARKS):
        return Match(97, "keys hash_id_scope and requests of nested sessions")
    return None


def _number(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None


class _Flattener:
    """Sessions to rows of requests."""

    def __init__(self, source: Source, size: int, ids: SessionIds) -> None:
        self.source, self.size, self.ids = source, size, ids

    def __call__(self, record: Row) -> list[Row | str]:
        size = record.get("block_size", self.size)
        if size != self.size:
            raise InputError(f"block_size is {self.size} in the sessions before", file=self.source.name, column="block_size",
                             value=size, expected="one size in a file")  # fmt: skip
        self.ids.next_session()
        rows: list[Row | str] = []
        self._requests(record.get("requests"), str(record.get("id")), "root", 0.0, rows)
        return rows

    def _requests(self, requests: Any, session: str, path: str, start: float, rows: list[Row | str]) -> None:
        if not isinstance(requests, list):
            rows.append({})
            return
        before = start
        for i, request in enumerate(requests):
            if not isinstance(request, dict):
                rows.append({})
                continue
            if request.get("type") == "subagent" or "requests" in request:
                name = str(request.get("agent_id") or f"agent{i}")
                self._requests(request.get("requests"), session, f"{path}/{name}", _begin(request, start, before), rows)
                continue
            row = self._row(request, session, path, start)
            before = _number(row["arrival"]) or before
            rows.append(row)

    def _row(self, request: Row, session: str, path: str, start: float) -> Row:
        at, think = _number(request.get("t")), request.get("think_time")
        row = {key: request.get(key) for key in ("in", "out", "model", "stop", "ttft", "api_time")}
        row |= {"session": session, "path": path, "think_time": think, "arrival": request.get("t") if at is None else start + at}
        if request.get("input_types") == ["tool_result"]:
            row["tool_time"] = think
        row["hash_ids"] = self.ids.runs(request.get("hash_ids"))
        return row


def _begin(entry: Row, start: float, before: float) -> float:
    """When a sub-agent began: its duration before ``t``, unless that was before the request above it."""
    at, lasted = _number(entry.get("t")), _number(entry.get("duration_ms"))
    if at is None:
        return before
    begun = start + at - (lasted or 0.0) / 1000
    return begun if begun >= before else start + at


def _sessions(source: Source, stage: Stage) -> Batches:
    """One session at a time: a line each, or documents of any shape."""
    with open(source.path, "rb") as data:
        first = next((line for line in data if line.strip()), b"")
        try:
            orjson.loads(first.removeprefix(b"\xef\xbb\xbf"))
        except ValueError:
            yield from json_batches(source, stage)
            return
    yield from json_line_batches(source, stage)


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Requests, sub-agents' too, and prefix runs to the stage."""
    said = _SIZE.search(source.head.data)
    size = int(said[1]) if said and int(said[1]) > 0 else 64
    stage.facts.arrival_kind, stage.facts.obs_clock = "session_relative", "gateway"
    fields = (*FIELDS, canonical("prefix_runs", "hash_ids", str(size)))
    used = {"id", "requests", "block_size", "hash_id_scope"}
    ids = SessionIds(stage.session_ids)
    read_rows(source, stage, fields, _sessions(source, stage), _Flattener(source, size, ids), used=used)
    stage.session_ids = ids.end
    if stage.facts.block_tokens is not None:
        stage.facts.hash_scope = "session"

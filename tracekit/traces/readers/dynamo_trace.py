"""Dynamo traces: events of requests and tools, schema ``dynamo.request.trace.v1`` or the older ``dynamo.agent.trace.v1``.

Source: ai-dynamo/dynamo. Lines come in the order of ends; block hashes and worker ids are unsigned 64-bit; a tool's events are no
requests but tell tool time; requests with several answers or images are not logged at all. An agent's name is
``trajectory_id``, later ``session_id``.
"""

from __future__ import annotations

from typing import Any

from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.intervals import covered
from tracekit.traces.readers.json_lines import json_line_batches
from tracekit.traces.readers.record_rows import Row, canonical, first_of, inner, read_rows
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "dynamo_trace"
SCHEMAS = ("dynamo.request.trace.v1", "dynamo.agent.trace.v1")
MS = 1_000_000
FIELDS = (
    canonical("arrival", "request_received_ms", "ms"),
    canonical("input_tokens"),
    canonical("output_tokens"),
    canonical("request_id"),
    canonical("session_id", "session"),
    canonical("agent_path", "path"),
    canonical("model"),
    canonical("obs_cached_tokens", "cached_tokens"),
    canonical("obs_queue", "prefill_wait_time_ms", "ms"),
    canonical("obs_prefill", "prefill_time_ms", "ms"),
    canonical("obs_ttft", "ttft_ms", "ms"),
    canonical("obs_tpot", "avg_itl_ms", "ms"),
    canonical("obs_e2e", "total_time_ms", "ms"),
    canonical("obs_replica", "replica"),
    canonical("tool_time", "tool", "ns"),
)


def _event(record: Row) -> Any:
    event = record.get("event")
    return event if isinstance(event, dict) else record


def sniff(head: Head) -> Match | None:
    """By the schema's name."""
    found = [schema for record in head.records()[:5] if (schema := _event(record).get("schema")) in SCHEMAS]
    return Match(97, f"schema {found[0]}") if found else None


class _Flattener:
    """Requests as rows. Remembers which agent is whose, and each agent's tools since its last request."""

    def __init__(self, stage: Stage, size: int | None) -> None:
        self.stage, self.size = stage, size
        self.parents: dict[str, str] = {}
        self.tools: dict[str, list[tuple[int, int]]] = {}
        self.ended: dict[str, int] = {}

    def __call__(self, record: Row) -> list[Row | str]:
        event = _event(record)
        kind = str(event.get("event_type"))
        agent = self._agent(event)
        if kind.startswith("tool_"):
            self._tool(agent, event.get("tool"))
            return ["a tool's event"]
        request = event.get("request")
        if kind == "request_payload":
            return ["a request's payload"]
        if kind != "request_end" or not isinstance(request, dict):
            return ["no request"] if kind != "request_end" else [{}]
        return [self._row(request, agent)]

    def _agent(self, event: Row) -> str | None:
        context = event.get("agent_context")
        own = first_of(context, "trajectory_id", "session_id")
        above = first_of(context, "parent_trajectory_id", "parent_session_id")
        if own is not None and above is not None and str(own) != str(above):
            self.parents.setdefault(str(own), str(above))
        return None if own is None else str(own)

    def _lineage(self, agent: str) -> list[str]:
        line = [agent]
        while (above := self.parents.get(line[-1])) is not None and above not in line:
            line.append(above)
        return line[::-1]

    def _tool(self, agent: str | None, tool: Any) -> None:
        begin, end = inner(tool, "started_at_unix_ms"), inner(tool, "ended_at_unix_ms")
        # a sub-agent's time is that of its requests
        if agent is not None and isinstance(begin, int) and isinstance(end, int) and inner(tool, "tool_class") != "subagent":
            self.tools.setdefault(agent, []).append((begin * MS, end * MS))

    def _row(self, request: Row, agent: str | None) -> Row:
        replay = request.get("replay")
        row: Row = {key: request.get(key) for key in (field.source for field in FIELDS) if key in request}
        if row.get("input_tokens") is None:
            row["input_tokens"] = inner(replay, "input_length")
        replica = first_of(request.get("worker"), "decode_worker_id", "prefill_worker_id")
        row["replica"] = None if replica is None else str(replica)
        if inner(replay, "trace_block_size") == self.size:
            row["hash_ids"] = inner(replay, "input_sequence_hashes")
        elif replay is not None:
            self.stage.facts.warn("the size of a block changes: rows with another one than the first have no prefix identity")
        if agent is not None:
            line = self._lineage(agent)
            row["session"], row["path"] = line[0], "/".join(["root", *line[1:]])
            self._waited(row, agent)
        return row

    def _waited(self, row: Row, agent: str) -> None:
        received, took = row.get("request_received_ms"), row.get("total_time_ms")
        if not isinstance(received, int) or not isinstance(took, int | float | None):
            return
        if agent in self.ended:
            row["tool"] = covered(self.tools.pop(agent, []), self.ended[agent], received * MS)
        self.ended[agent] = received * MS + round((took or 0) * MS)


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """Requests with latencies of the server, agents, tool times and prefix runs to the stage."""
    stage.facts.obs_clock = "server"
    sizes = (inner(_event(record), "request", "replay", "trace_block_size") for record in source.head.records())
    size = next((size for size in sizes if isinstance(size, int) and size > 0), None)
    fields = FIELDS if size is None else (*FIELDS, canonical("hash_ids", unit=str(size)))
    used = {"timestamp", "event", "event_type", "schema", "agent_context", "request", "tool", "event_time_unix_ms",
            "event_source"}  # fmt: skip
    read_rows(source, stage, fields, json_line_batches(source, stage), _Flattener(stage, size), used=used)

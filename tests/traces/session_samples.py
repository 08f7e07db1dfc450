"""Small hand-made files of the formats that know sessions, agents, or another release of a public trace."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["SESSION_SAMPLES", "claude_session", "dynamo_events"]


def _lines(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def claude_session(name: str, *requests: dict[str, Any]) -> dict[str, Any]:
    """One nested session with a system prompt of two blocks."""
    return {"id": name, "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 5, "system_tokens": 7,
            "requests": list(requests), "totals": {"parent_tokens": {"input": 1}}}  # fmt: skip


def _call(t: float, blocks: int, out: int = 9, **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "model": "m", "in": 64 * blocks + 5, "out": out, "hash_ids": list(range(1, blocks + 1)),
            "input_types": ["text"], "output_types": ["text"], "stop": "end_turn", "api_time": 2.0,
            "think_time": 0.0} | more  # fmt: skip


NESTED = claude_session(
    "s1",
    _call(0.0, 3, stop="tool_use"),
    {"t": 12.5, "type": "subagent", "agent_id": "agent_001", "duration_ms": 10000, "status": "completed", "total_tokens": 5,
     "requests": [_call(0.0, 2, hash_ids=[50, 51]),
                  _call(4.0, 3, hash_ids=[50, 51, 52], input_types=["tool_result"], think_time=2.0)]},
    _call(13.0, 4, input_types=["tool_result"], think_time=11.0),
    _call(40.0, 3, think_time=25.0, type="s", ttft=0.5, hash_ids=[1, 2, 60]),
)  # fmt: skip


def dynamo_events(schema: str = "dynamo.request.trace.v1") -> list[dict[str, Any]]:
    """A root agent, a scout that it sends out, and the tools of both; hashes above 2^63."""
    high = 2**63 + 5
    old = schema == "dynamo.agent.trace.v1"

    def event(kind: str, agent: str, parent: str | None, **body: Any) -> dict[str, Any]:
        context = {"session_id": "run" if old else agent} | ({"trajectory_id": agent} if old else {})
        if parent is not None:
            context["parent_trajectory_id" if old else "parent_session_id"] = parent
        head = {"schema": schema, "event_type": kind, "event_source": "x", "agent_context": context}
        return {"timestamp": 1, "event": {**head, **body}}

    def call(number: int, at: int, took: float, agent: str, parent: str | None, hashes: list[int]) -> dict[str, Any]:
        request = {
            "request_id": f"q{number}", "model": "m", "input_tokens": 16 * len(hashes) - 3, "output_tokens": 4,
            "cached_tokens": 0,
            "request_received_ms": 1779163000000 + at, "prefill_wait_time_ms": 1.5, "prefill_time_ms": 10.25, "ttft_ms": 11.75,
            "total_time_ms": took, "avg_itl_ms": 2.5, "worker": {"decode_worker_id": high},
            "replay": {"trace_block_size": 16, "input_length": 16 * len(hashes) - 3, "input_sequence_hashes": hashes},
        }  # fmt: skip
        return event("request_end", agent, parent, request=request)

    def tool(begin: int, end: int, agent: str, parent: str | None, kind: str = "ls") -> dict[str, Any]:
        body = {"tool_class": kind, "started_at_unix_ms": 1779163000000 + begin, "ended_at_unix_ms": 1779163000000 + end}
        return event("tool_end", agent, parent, tool=body)

    return [
        call(0, 0, 100.0, "run:root", None, [high, 2]),
        call(1, 150, 50.0, "scout:0", "run:root", [7]),
        tool(201, 221, "scout:0", "run:root"),
        call(2, 230, 70.0, "scout:0", "run:root", [7, 8]),
        tool(110, 305, "run:root", None, "subagent"),
        call(3, 310, 40.0, "run:root", None, [high, 2, 3]),
    ]


def _bailian(i: int, parent: int, at: float, kind: str = "text") -> dict[str, Any]:
    return {"chat_id": i, "parent_chat_id": parent, "timestamp": at, "input_length": 30 + i, "output_length": 5, "type": kind,
            "turn": 1 if parent < 0 else 2, "hash_ids": [1, 2 + i]}  # fmt: skip


def _round(session: str, number: int, minute: int, **more: Any) -> dict[str, Any]:
    def at(second: float) -> str:
        return f"2026-06-01T05:{minute:02}:{second:06.3f}Z"

    heard = "user_message" if number == 0 else "tool_result"
    return {
        "provider": "claude", "project": "p", "session_id": session, "round_index": number, "round_id": f"{session}-{number}",
        "model": "m",
        "input_tokens_total": 100 + number, "prefix_tokens": 90, "newly_append_tokens": 10, "output_tokens": 20,
        "reasoning_output_tokens": None,
        "timing_events": [{"event_type": heard, "timestamp": at(1)}, {"event_type": "text", "timestamp": at(3)},
                          {"event_type": "tool_call", "timestamp": at(4.5)}],
        "tools": [{"tool_name": "Bash", "emitted_at": at(4), "result_at": at(30)}],
    } | more  # fmt: skip


INFERENCEX = (
    "user_id,request_idx,trace_id,timestamp,request_type,input_tokens,output_tokens_expected,output_tokens_actual,ttft,ttlt,itl,"
    "delay_expected,success,error_message,request_start_time,token_timestamps\n"
    'U1,7,t1,1776762442.5,streaming,500,3,40,1.5,3.5,0.05,0.0,True,,1776762400.25,"[1.0, 2.0]"\n'
    'U2,0,t2,1776762443.5,streaming,700,3,0,0.0,0.0,0.0,0.0,False,,1776762400.0,"[]"\n'
    'U1,8,t1,1776762450.5,streaming,520,3,44,1.5,3.5,0.05,8.0,True,,1776762412.0,"[1.0]"\n'
)

SESSION_SAMPLES: dict[str, list[bytes]] = {
    "azure2024": [
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
        b"2024-05-10 00:00:00.017335+00:00,2399,6\n"
        b"2024-05-10 00:00:01+00:00,76,15\n",
    ],
    "burstgpt6": [
        b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
        b"45,GPT-4,0,0,0,API log\n118,GPT-4,417,276,693,Conversation log\n",
    ],
    "burstgpt8": [
        b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        b"19440110.0,a,43,GPT-4,906,446,1352,Conversation log\n19440111.0,,3,GPT-4,10,4,14,API log\n"
        b"19440200.0,a,0,GPT-4,300,12,312,Conversation log\n19440210.0,b,60,GPT-4,30,12,42,Conversation log\n"
        b"19440250.0,b,2,GPT-4,40,12,52,Conversation log\n",
    ],
    "mooncake_sessions": [
        _lines(
            {"session_id": "a", "timestamp": 1000, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]},
            {"session_id": "b", "timestamp": 1500.5, "input_length": 600, "output_length": 9, "hash_ids": [1, 3]},
            {"session_id": "a", "delay": 250, "input_length": 1100, "output_length": 9, "hash_ids": [1, 2, 4]},
            {"session_id": "a", "delay": 100, "input_length": 1200, "output_length": 9, "hash_ids": [1, 2, 4]},
        )
    ],
    "bailian": [_lines(_bailian(0, -1, 61.5), _bailian(1, -1, 62.0, "search"), _bailian(2, 0, 70.25), _bailian(3, 2, 90.0))],
    "weka_sessions": [_lines(NESTED, claude_session("s2", _call(0.0, 2), _call(9.0, 2, think_time=7.0)))],
    "weka_normalized": [
        _lines(
            *({"request_arrival_delta_s": 10.0 * i, "session_id": s, "input_tokens": 500 - 100 * i, "output_tokens": 7,
               "turn_index": i, "model_id": "m", "ttft_s": 1.0, "api_time_s": 4.0, "block_hashes_count": 8,
               "hash_id_scope": "local", "session_models": '["m"]'}
              | ({"think_time_s": 6.0} if i else {}) for s in ("x", "y") for i in range(3))
        )
    ],
    "exgentic_spans": [
        _lines(
            *({"session_id": "r", "span_index": i, "span_id": f"sp{i}",
               "start_time_iso": f"2026-04-20T11:44:{10 + 5 * i}.855935+00:00", "start_time_s": 1776685490.855935 + 5 * i,
               "duration_ms": 0.0 if i == 1 else 2500.5, "input_tokens": 0 if i == 1 else 90,
               "output_tokens": 0 if i == 1 else 9, "is_error": i == 1, "finish_reasons": [] if i == 1 else ["stop"],
               "operation_name": "chat", "request_model": "m", "input_messages_hash": "6c"} for i in range(3))
        )
    ],
    "tracelab": [
        _lines(_round("c:1", 0, 40), _round("c:1", 1, 41), _round("x:2", 0, 30, provider="codex", turn_id="t", prefix_tokens=0))
    ],
    "inferencex": [INFERENCEX.encode()],
    "dynamo_trace": [_lines(*dynamo_events()), _lines(*dynamo_events("dynamo.agent.trace.v1"))],
}  # fmt: skip

"""Small hand-made logs of engines, gateways and load generators: one value per trap of its format."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

__all__ = ["LOG_SAMPLES", "SECRET", "csv_text", "otlp"]

SECRET = "the prompt that nobody may see"
EPOCH = 1_768_922_793


def _lines(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def csv_text(rows: list[dict[str, Any]]) -> bytes:
    """As a CSV with every key of the rows; objects as JSON text."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for row in rows for key in row)))
    writer.writeheader()
    for row in rows:
        writer.writerow({key: json.dumps(value) if isinstance(value, dict) else value for key, value in row.items()})
    return out.getvalue().encode()


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    """One OTLP document; attributes are given plainly."""
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": {"name": "vllm"}, "spans": [
        span | {"attributes": [{"key": key, "value": _value(value)} for key, value in span["attributes"].items()]}
        for span in spans]}]}]}  # fmt: skip


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(each) for each in value]}}
    kind = {int: "intValue", float: "doubleValue", str: "stringValue"}[type(value)]
    return {kind: str(value) if kind == "intValue" else value}


def _span(i: int, prompt: int, output: int, **more: Any) -> dict[str, Any]:
    """A vLLM span that waits 0.25 s, prefills for 0.5 s and decodes at 0.125 s a token."""
    start = (EPOCH + i) * 10**9 + 305_984
    decode = 0.125 * (output - 1)
    return {
        "name": "llm_request", "kind": 2, "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + round((0.75 + decode) * 1e9)), "status": {},
        "attributes": {
            "gen_ai.latency.time_to_first_token": 0.75, "gen_ai.latency.e2e": 0.75 + decode,
            "gen_ai.latency.time_in_queue": 0.25, "gen_ai.latency.time_in_model_prefill": 0.5,
            "gen_ai.latency.time_in_model_decode": decode, "gen_ai.usage.prompt_tokens": prompt,
            "gen_ai.usage.completion_tokens": output, "gen_ai.request.id": f"cmpl-{i}", "gen_ai.request.max_tokens": 64, **more,
        },
    }  # fmt: skip


VLLM = _lines(otlp(_span(3, 300, 9), _span(0, 100, 5)), otlp(_span(1, 200, 2, **{"gen_ai.request.n": 2}), _span(2, 50, 1)))
GENAI = json.dumps(
    otlp(
        {"name": "chat gpt", "kind": 3, "startTimeUnixNano": str(EPOCH * 10**9), "endTimeUnixNano": str((EPOCH + 2) * 10**9),
         "attributes": {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 90, "gen_ai.usage.output_tokens": 11,
                        "gen_ai.usage.cache_read.input_tokens": 64, "gen_ai.response.time_to_first_chunk": 0.5,
                        "gen_ai.conversation.id": "c1", "gen_ai.response.finish_reasons": ["stop"],
                        "gen_ai.input.messages": SECRET}},
        {"name": "execute_tool", "kind": 1, "startTimeUnixNano": str(EPOCH * 10**9), "endTimeUnixNano": str(EPOCH * 10**9),
         "attributes": {"gen_ai.operation.name": "execute_tool"}},
        {"name": "chat gpt", "kind": 3, "startTimeUnixNano": str((EPOCH + 3) * 10**9),
         "endTimeUnixNano": str((EPOCH + 3) * 10**9), "status": {"code": 2},
         "attributes": {"gen_ai.operation.name": "chat", "error.type": "rate_limit"}},
    ),
    indent=2,
).encode()  # fmt: skip


def _aiperf(i: int, metrics: dict[str, Any], error: Any = None, **metadata: Any) -> dict[str, Any]:
    known = {"x_request_id": f"x{i}", "conversation_id": f"c{i}", "turn_index": 0, **metadata}
    return {"metadata": known, "metrics": {name: {"value": value, "unit": unit} for name, (value, unit) in metrics.items()},
            "error": error}  # fmt: skip


NANO = EPOCH * 10**9
AIPERF = _lines(
    _aiperf(0, {"input_sequence_length": (550, "tokens"), "ttft": (1500.5, "ms"), "request_latency": (3500.5, "ms"),
                "output_sequence_length": (21, "tokens"), "reasoning_token_count": (7, "tokens")},
            timestamp_ns=NANO + 7, credit_phase="profiling"),
    _aiperf(1, {"error_request_count": (1, "requests")}, {"code": 499, "type": "RequestCancellationError", "message": SECRET},
            timestamp_ns=NANO + 3),
    _aiperf(2, {"input_sequence_length": (10, "tokens"), "time_to_first_token": (2, "s"), "request_latency": (4_000_000, "us"),
                "output_token_count": (3, "tokens"), "reasoning_token_count": (2, "tokens")}, request_start_ns=NANO + 5),
    _aiperf(3, {}, {"code": 500, "type": "InternalServerError", "message": SECRET}, request_start_ns=NANO + 9),
)  # fmt: skip

LLMPERF = json.dumps(
    [
        {"error_code": None, "error_msg": "", "inter_token_latency_s": 0.2, "ttft_s": 0.5, "end_to_end_latency_s": 2.5,
         "request_output_throughput_token_per_s": 4.4, "number_total_tokens": 561, "number_output_tokens": 11,
         "number_input_tokens": 550},
        {"error_code": 429, "error_msg": SECRET, "ttft_s": 0, "end_to_end_latency_s": 0, "number_output_tokens": 0,
         "number_input_tokens": 0},
    ],
    indent=1,
).encode()  # fmt: skip

BENCH = {
    "date": "20260101-000000", "backend": "vllm", "model_id": "m", "num_prompts": 3, "request_rate": "inf", "duration": 4.0,
    "completed": 2, "failed": 1, "total_input_tokens": 30, "total_output_tokens": 7, "input_lens": [10, 20, 30],
    "output_lens": [5, 2, 0], "ttfts": [0.5, 0.25, 0.0], "itls": [[0.25, 0.25, 0.25, 0.25], [0.125], []],
    "start_times": [1000.5, 1000.25, 1001.0], "errors": ["", "", SECRET], "generated_texts": [SECRET, SECRET, ""],
    "server_queue_times": [0.125, 0.0, None],
}  # fmt: skip


def _guide(start: float, **more: Any) -> dict[str, Any]:
    times = {"targeted_start": start - 1, "request_start": start, "first_token_iteration": start + 0.5,
             "request_end": start + 2.5}  # fmt: skip
    return {"request_id": f"g{start}", "request_args": SECRET, "output": SECRET, "info": {"status": "x", "timings": times},
            "input_metrics": {"text_tokens": 100, "cached_tokens": 32}, "output_metrics": {"text_tokens": 5}} | more  # fmt: skip


GUIDELLM = {"metadata": {"guidellm_version": "0.5"}, "benchmarks": [{"requests": {
    "successful": [_guide(EPOCH + 10.0), _guide(EPOCH + 1.0)],
    "errored": [_guide(EPOCH + 4.0, output_metrics=None, info={"timings": {"request_start": EPOCH + 4.0}})],
    "incomplete": [_guide(EPOCH + 5.0, info={"timings": {"request_start": EPOCH + 5.0, "first_token_iteration": EPOCH + 6.0}})],
}}]}  # fmt: skip


def _sglang(i: int, reason: str = "stop", **more: Any) -> dict[str, Any]:
    given = {"rid": f"r{i}", "text": SECRET, "input_ids": [1, 2], "sampling_params": {"max_new_tokens": 128, "n": 1},
             "priority": 5, "session_params": {"id": "s1"}, "lora_path": None}  # fmt: skip
    return {"request_parameters": json.dumps(given | more.pop("given", {})), "id": f"r{i}", "finish_reason": {"type": reason},
            "prompt_tokens": 100, "completion_tokens": 9, "cached_tokens": 64, "num_retractions": 2,
            "request_received_ts": EPOCH + i + 0.5, "forward_entry_time": EPOCH + i + 0.75,
            "prefill_finished_time": EPOCH + i + 1.0, "queue_time": 0.25, "first_token_latency": 0.5,
            "e2e_latency": 2.5} | more  # fmt: skip


SGLANG = _lines(_sglang(0), _sglang(1, given={"lora_path": "a1"}, spec_verify_ct=3), _sglang(2, "abort", completion_tokens=0),
                _sglang(3, image_tokens=12))  # fmt: skip


def _spend(i: int, **more: Any) -> dict[str, Any]:
    return {
        "request_id": f"q{i}", "call_type": "acompletion", "api_key": "hash1", "spend": 0.1, "total_tokens": 120,
        "prompt_tokens": 100, "completion_tokens": 21, "startTime": f"2025-01-01 10:00:0{i}.500",
        "endTime": f"2025-01-01 10:00:0{i + 3}.500", "completionStartTime": f"2025-01-01 10:00:0{i + 1}.500", "model": "m",
        "model_group": "group", "custom_llm_provider": "openai", "session_id": "s", "status": "success", "cache_hit": "False",
        "metadata": {"usage_object": {"prompt_tokens_details": {"cached_tokens": 40}}}, "messages": SECRET, "response": SECRET,
        "requester_ip_address": "10.1.2.3",
    } | more  # fmt: skip


SPEND = [
    _spend(0),
    _spend(1, completionStartTime="2025-01-01 10:00:04.500"),
    _spend(2, cache_hit="True", completion_tokens=5),
    _spend(3, status="failure", prompt_tokens=0, completion_tokens=0, endTime="2025-01-01 10:00:03.500",
           metadata={"error_information": {"error_code": "429", "error_message": SECRET}}),
    _spend(4, call_type="aembedding", completion_tokens=0),
]  # fmt: skip


def _observation(i: int, usage: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": f"o{i}", "traceId": "t", "type": "GENERATION", "startTime": f"2025-03-01T10:00:0{i}.000Z",
        "completionStartTime": f"2025-03-01T10:00:0{i}.250Z", "endTime": f"2025-03-01T10:00:0{i + 1}.250Z", "model": "m",
        "modelParameters": {"maxTokens": "256"}, "usageDetails": usage, "level": "DEFAULT", "userId": "u1", "sessionId": "s",
        "input": SECRET, "output": SECRET,
    } | more  # fmt: skip


LANGFUSE_OUTSIDE = [
    _observation(0, {"input": 20, "input_cached_tokens": 80, "output": 11, "total": 111}),
    _observation(1, {"input": 30, "output": 1, "total": 31}),
    _observation(2, {}, type="SPAN"),
    _observation(3, {}, level="ERROR", statusMessage=SECRET),
]
LANGFUSE_INSIDE = [_observation(0, {"input": 100, "input_cached_tokens": 80, "output": 11, "total": 111})]

USAGE = _lines(
    {"created": EPOCH, "model": "gpt", "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110,
     "prompt_tokens_details": {"cached_tokens": 64}, "completion_tokens_details": {"reasoning_tokens": 4}}, "choices": SECRET},
    {"created": EPOCH + 2, "model": "claude", "usage": {"input_tokens": 10, "cache_read_input_tokens": 500,
     "cache_creation_input_tokens": 40, "output_tokens": 20}, "content": SECRET},
)  # fmt: skip

BLIS_NAMES = (
    "request_id,client_id,tenant_id,slo_class,session_id,round_index,prefix_group,prefix_length,streaming,input_tokens,"
    "output_tokens,text_tokens,image_tokens,audio_tokens,video_tokens,reason_ratio,model,deadline_us,server_input_tokens,"
    "arrival_time_us,send_time_us,first_chunk_time_us,last_chunk_time_us,num_chunks,status,error_message,finish_reason\n"
)
BLIS_HEADER = b"trace_version: 2\ntime_unit: microseconds\nmode: real\n"
BLIS_ROWS = (
    "0,c1,t1,standard,s1,0,,0,true,10,5,10,0,0,0,0.0,,0,12,0,1000,501000,1001000,5,ok,,stop\n"
    f"1,c1,,batch,s1,1,,0,true,20,5,10,0,0,0,0.0,,900000,0,500000,500000,0,0,0,error,{SECRET},\n"
    "2,c2,t2,batch,,0,,0,false,30,6,10,20,0,0,0.0,m,0,0,250000,250000,750000,750000,1,ok,,length\n"
)

LOG_SAMPLES: dict[str, list[bytes]] = {
    "otlp_spans": [VLLM, GENAI],
    "aiperf": [AIPERF],
    "llmperf": [LLMPERF],
    "bench_serve": [json.dumps(BENCH).encode()],
    "guidellm": [json.dumps(GUIDELLM, indent=1).encode()],
    "sglang_metrics": [SGLANG],
    "litellm_spend": [csv_text(SPEND), json.dumps(SPEND, indent=1).encode(), _lines(*SPEND)],
    "langfuse": [json.dumps(LANGFUSE_OUTSIDE).encode(), _lines(*LANGFUSE_INSIDE), csv_text(LANGFUSE_OUTSIDE)],
    "usage_jsonl": [USAGE],
    "blis_v2": [(BLIS_NAMES + BLIS_ROWS).encode(), BLIS_HEADER + (BLIS_NAMES + BLIS_ROWS).encode()],
    "vidur": [b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,4808,10\n0.052,3180,8\n0.098189,110,27\n"],
    "tenant_csv": [b"req_id,adapter_dir,prompt_len,output_len,req_time\n0,a,13,199,0.0\n1,b,36,137,0.25\n2,a,456,156,0.5\n"],
    "lengths_csv": [
        b"num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio,num_predicted_decode_tokens\r\n"
        b"25,3,28,0.12,1\r\n71,692,763,9.7,702\r\n20,477,497,23.85,110\r\n"
    ],
}
"""Samples by format. ``SECRET`` stands wherever a log has text; it must not come out anywhere."""

"""Logs that people do have and that cannot become a request trace: refused by name, with the reason and what would serve."""

from __future__ import annotations

import re
from typing import NamedTuple

from tracekit.errors import InputError
from tracekit.traces.inputs import Head

__all__ = ["refuse_useless"]


class _Refusal(NamedTuple):
    pattern: re.Pattern[bytes]
    what: str
    instead: str


_PER_REQUEST = "one record per request with arrival and token counts"
_REFUSALS = (
    _Refusal(
        re.compile(rb'(?is)^(?=.*operation_?name)(?=.*request_?length)(?=.*response_?length)'),
        "an Azure OpenAI diagnostic log: it counts bytes, not tokens",
        "the gateway's own log with token counts (API Management's token metrics, LiteLLM, Langfuse) or OpenTelemetry spans",
    ),
    _Refusal(
        re.compile(rb"Avg prompt throughput: "),
        "vLLM's ten-second statistics: averages over all requests, none of them singly",
        "vLLM's OpenTelemetry spans (--otlp-traces-endpoint, with a collector that writes files), or a gateway's log",
    ),
    _Refusal(
        re.compile(rb"(?:Prefill|Decode) batch[,. ]"),
        "SGLang's batch lines: what each iteration held, not when a request came",
        "SGLang's --export-metrics-to-file with --enable-metrics",
    ),
    _Refusal(
        re.compile(rb"(?m)^# (?:HELP|TYPE) \S+ |^(?:vllm|sglang):\w+(?:\{[^}\n]*\})? [0-9.eE+-]+"),
        "Prometheus metrics: sums and histograms over all requests",
        _PER_REQUEST + " (OpenTelemetry spans, a gateway's log)",
    ),
    _Refusal(
        re.compile(rb"(?m)^(?:.{0,200}? )?(?:Received request|Receive: obj=|Finish: obj=)"),
        "an engine's request log: it has the parameters and perhaps the prompts of requests, not their lengths and arrivals",
        "vLLM's OpenTelemetry spans, or SGLang's --export-metrics-to-file",
    ),
    _Refusal(
        re.compile(rb'"(?:POST|GET) /\S* HTTP/\d(?:\.\d)?"? \d{3}'),
        "access lines of a web server: no token counts, often no time either",
        "vLLM's OpenTelemetry spans, or a gateway's log with token counts",
    ),
    _Refusal(
        re.compile(rb"\A(?:\d+,[0-9.eE+-]+,[0-9.eE+-]+,(?:Gamma|Weibull)?,[^,\n]*,[^,\n]*\r?\n)+"),
        "ServeGen's rates of one client, not requests",
        "tracekit synth --servegen, which makes requests of them",
    ),
)


def refuse_useless(head: Head, name: str) -> None:
    """Errors: ``InputError`` for a log that cannot serve; looks only at text that is no trace by its own first line."""
    if head.data.startswith(b"PAR1"):
        return
    data = head.data[: 64 << 10]
    for refusal in _REFUSALS:
        if refusal.pattern.search(data):
            raise InputError(f"this is {refusal.what}", file=name, expected=refusal.instead)

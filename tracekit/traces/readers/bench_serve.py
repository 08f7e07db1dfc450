"""``vllm bench serve --save-result --save-detailed``: totals, and parallel arrays with one entry per request.

Starts are seconds on a clock of the process; a failed request has TTFT 0 and an error text. Texts are never looked at.
Results appended to one file are read one after another.
"""

from __future__ import annotations

from typing import Any

from tracekit.errors import InputError
from tracekit.traces.formats import Match, ReadOptions
from tracekit.traces.inputs import Head, Source
from tracekit.traces.readers.json_documents import is_json, json_batches
from tracekit.traces.readers.json_values import Values
from tracekit.traces.readers.record_rows import Row, canonical, per_token, read_rows, real
from tracekit.traces.stage import Stage

__all__ = ["NAME", "read", "sniff"]

NAME = "bench_serve"
TOTALS = (b'"num_prompts"', b'"total_input_tokens"', b'"completed"', b'"duration"')
ARRAYS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors", "server_queue_times")
FIELDS = (
    canonical("input_tokens", "input_lens"),
    canonical("output_tokens", "output_lens"),
    canonical("obs_ttft", "ttfts", "s"),
    canonical("obs_e2e", "e2e", "s"),
    canonical("obs_queue", "server_queue_times", "s"),
    canonical("model", "model_id"),
    canonical("status"),
)
START = canonical("arrival", "start_times", "s")


def sniff(head: Head) -> Match | None:
    """By the totals of a benchmark's result."""
    if is_json(head) and sum(name in head.data for name in TOTALS) >= 3 and b'"resourceSpans"' not in head.data[:2000]:
        return Match(92, "totals of vllm bench serve")
    return None


def _arrays(document: Row, file: str) -> dict[str, list[Any]]:
    arrays = {name: document[name] for name in ARRAYS if isinstance(document.get(name), list) and document[name]}
    if not arrays.keys() >= {"input_lens", "output_lens"}:
        raise InputError(
            "a benchmark's totals without its requests", file=file,
            expected="arrays input_lens, output_lens, ttfts (vllm bench serve --save-result --save-detailed)",
        )  # fmt: skip
    lengths = {len(values) for values in arrays.values()}
    if len(lengths) > 1:
        told = ", ".join(f"{name} {len(values)}" for name, values in arrays.items())
        raise InputError(f"the arrays have different lengths ({told})", file=file, expected="one entry per request in each")
    return arrays


def _row(values: Row, model: Any) -> Row:
    failed = bool(values.get("errors"))
    gaps = values.get("itls")
    parts = [real(part) for part in (values.get("ttfts"), *(gaps if isinstance(gaps, list) else (None,)))]
    whole = sum(part for part in parts if part is not None) if None not in parts else None
    return values | {"e2e": whole, "model_id": model, "status": "error" if failed else "ok"}


def _timed(source: Source) -> bool:
    """Whether the file has starts: they may stand anywhere in it."""
    before = b""
    with open(source.path, "rb") as data:
        while block := data.read(1 << 20):
            if b'"start_times"' in before + block:
                return True
            before = block[-16:]
    return False


def read(source: Source, stage: Stage, options: ReadOptions) -> None:
    """One row per entry of the arrays to the stage; "lines" are its numbers in the file."""
    stage.facts.obs_clock = "client"
    timed = _timed(source)

    def flatten(document: Row) -> list[Row | str]:
        arrays = _arrays(document, source.name)
        entries = zip(*arrays.values(), strict=True)
        return [_row(dict(zip(arrays, entry, strict=True)), document.get("model_id")) for entry in entries]

    def derive(columns: dict[str, Values]) -> dict[str, Values]:
        return columns | {"obs_tpot": per_token(columns["obs_ttft"], columns["obs_e2e"], columns["output_tokens"])}

    fields = (START, *FIELDS) if timed else FIELDS
    used = (*ARRAYS, "model_id", "num_prompts", "total_input_tokens", "completed", "duration")
    read_rows(source, stage, fields, json_batches(source, stage), flatten, used=used, derive=derive, numbered=True)

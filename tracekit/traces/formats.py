"""The registry of trace formats, and recognising one by content.

A format is a module in ``tracekit.traces.readers`` with ``NAME``, ``sniff(head)`` and ``read(source, stage, options)``.
To add one: write the module and list it in ``MODULES``; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, cast

from tracekit.errors import InputError, UsageError
from tracekit.traces.refusals import refuse_useless

if TYPE_CHECKING:
    from tracekit.traces.columns import Mapped
    from tracekit.traces.inputs import Head, Source
    from tracekit.traces.stage import Stage

__all__ = ["MODULES", "Format", "Match", "ReadOptions", "detect", "format_named", "format_names"]

MODULES = (
    "azure2023",
    "azure2024",
    "burstgpt6",
    "burstgpt8",
    "mooncake",
    "mooncake_sessions",
    "bailian",
    "weka_sessions",
    "weka_normalized",
    "exgentic_spans",
    "tracelab",
    "inferencex",
    "dynamo_trace",
    "vllm_measured",
    "canonical_jsonl",
    "otlp_spans",
    "aiperf",
    "llmperf",
    "bench_serve",
    "guidellm",
    "sglang_metrics",
    "litellm_spend",
    "langfuse",
    "usage_jsonl",
    "blis_v2",
    "vidur",
    "tenant_csv",
    "lengths_csv",
    "generic_csv",
    "generic_jsonl",
    "generic_parquet",
)


class Match(NamedTuple):
    """How sure a format is (0 to 100) that a file is its own, and by what it knows."""

    score: int
    why: str


@dataclass(slots=True, kw_only=True)
class ReadOptions:
    """What a person said about the columns; formats with a fixed layout ignore it."""

    mapping: Mapping[str, Mapped] = field(default_factory=dict)
    cached: Literal["inside", "outside"] | None = None
    """Whether the input count of the log has the cached tokens in it; ``None``: as the source is known to count."""
    arrival: str | None = None
    """An arrival process for traces that have none (``poisson:rate=5``); ``None``: arrivals must be there."""


class Format(Protocol):
    """What every format module offers."""

    NAME: str

    def sniff(self, head: Head) -> Match | None:
        """Whether ``head`` begins a file of this format; by content only."""
        ...

    def read(self, source: Source, stage: Stage, options: ReadOptions) -> None:
        """Append every row of ``source`` to ``stage``, or reject it with line and reason. Bounded memory."""
        ...


def format_names() -> tuple[str, ...]:
    """The names that ``--format`` accepts."""
    return MODULES


def format_named(name: str) -> Format:
    """The format of that name. Errors: ``UsageError``."""
    if name not in MODULES:
        raise UsageError(f"--format {name}: no such trace format; expected one of {', '.join(MODULES)}")
    return cast(Format, import_module(f"tracekit.traces.readers.{name}"))


def detect(source: Source, *, mapped: bool) -> tuple[Format, Match]:
    """The format that is surest of ``source``; only generic ones when columns are mapped by hand. Errors: ``InputError``."""
    refuse_useless(source.head, source.name)
    best: tuple[Format, Match] | None = None
    for name in MODULES:
        if mapped and not name.startswith("generic_"):
            continue
        candidate = format_named(name)
        match = candidate.sniff(source.head)
        if match is not None and (best is None or match.score > best[1].score):
            best = (candidate, match)
    if best is None:
        raise InputError(
            "no known trace format", file=source.name, expected=f"one of {', '.join(MODULES)} (say which with --format)"
        )
    return best

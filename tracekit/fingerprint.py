"""Digests of what decides a replay, so that two of them can be told to rest on the same things."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tracekit.traces.source import TraceSource

__all__ = ["SHOWN", "code_digest", "digest_of", "slice_document", "source_digest", "sources_digest", "text_digest"]

SHOWN = 16
"""Hex digits of a digest that are written down."""
_REQUESTS = (
    "arrival_ns", "prompt_tokens", "output_tokens", "max_tokens", "predicted_tokens", "priority", "tenant", "class_", "parent",
    "think_ns", "cancel_ns", "deadline_ns", "slo_ttft_ns", "slo_tpot_ns", "counted",
)  # fmt: skip
_PREFIXES = ("run_offsets", "run_pos", "run_first", "run_len", "shared_blocks")


def source_digest(source: TraceSource) -> str:
    """Of the requests that a replay is given: times, lengths, labels, sessions and prefixes, and which of them count."""
    found = hashlib.sha256(f"{source.total} {source.block_tokens} {source.window_ns}".encode())
    names = _REQUESTS if source.run_offsets is None else _REQUESTS + _PREFIXES
    for name in names:
        column = getattr(source, name)
        found.update(f"\0{name}\0".encode())
        if column is not None:
            found.update(np.ascontiguousarray(column).tobytes())
    found.update("\0".join([*source.tenant_names, "", *source.class_names]).encode())
    return found.hexdigest()[:SHOWN]


def digest_of(value: Any) -> str:
    """Of plain values, however their keys are ordered."""
    return text_digest(json.dumps(value, sort_keys=True, default=str))


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:SHOWN]


def slice_document(source: TraceSource) -> dict[str, Any]:
    """Which part of a trace a replay takes, as plain values."""
    return {**asdict(source.part), "placement": source.placement.kind}


@cache
def code_digest() -> str:
    """Of the sources that decide a replay's figures: the engine's, and what makes requests and figures out of it."""
    import replay_engine
    import tracekit

    return sources_digest(replay_engine, tracekit)[:SHOWN]


def sources_digest(*packages: ModuleType) -> str:
    """Of every module of ``packages``, by name and bytes."""
    found = hashlib.sha256()
    for package in packages:
        folder = Path(str(package.__file__)).parent
        for path in sorted(folder.rglob("*.py")):
            found.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()

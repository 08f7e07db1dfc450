"""Digests of what decides a replay, so that two of them can be told to rest on the same things."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import asdict
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit import __version__

if TYPE_CHECKING:
    from tracekit.replay import Setup
    from tracekit.traces.source import TraceSource

__all__ = [
    "SHOWN", "code_digest", "digest_of", "host_document", "library_versions", "rests_on", "slice_document", "source_digest",
    "sources_digest", "text_digest",
]  # fmt: skip

SHOWN = 16
"""Hex digits of a digest that are written down."""
_REQUESTS = (
    "arrival_ns", "prompt_tokens", "output_tokens", "max_tokens", "predicted_tokens", "priority", "tenant", "class_", "parent",
    "think_ns", "cancel_ns", "deadline_ns", "slo_ttft_ns", "slo_tpot_ns", "counted",
)  # fmt: skip
_LIBRARIES = ("numpy", "duckdb", "pyarrow", "polars")
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


def rests_on(setup: Setup) -> dict[str, Any]:
    """What must be the same for a difference of figures to be one of the code: requests, profile, engine version, policy, SLO."""
    from tracekit.experiments.knobs import flat_policy

    source = setup.source
    found = {
        "trace": {"name": setup.trace_name, "digest": source_digest(source), "requests": source.total},
        "slice": slice_document(source) | {"seed": setup.seed, "warmup_ns": setup.warmup_ns},
        "profile": {"name": setup.profile.name, "digest": digest_of(setup.profile.to_toml())},
        "engine": {"version": f"vLLM {setup.policy.scheduler.engine_version}"},
        "policy": flat_policy(setup.policy.to_dict()),
        "slo": None if setup.slo is None else setup.slo.to_dict(),
        "accept_degraded": setup.accept_degraded,
    }
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))  # as it comes out of a file
    return plain


def library_versions() -> dict[str, str]:
    """Of this package and its sources, and of what its figures are computed with."""
    return {"tracekit": __version__, "code": code_digest(), "python": platform.python_version(), **_installed()}


@cache
def _installed() -> dict[str, str]:
    return {name: metadata.version(name) for name in _LIBRARIES}


def host_document() -> dict[str, Any]:
    """The class of machine, not which one."""
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"system": platform.system(), "machine": platform.machine(), "cores": os.cpu_count(),
            "memory_gib": round(pages / 2**30)}  # fmt: skip


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

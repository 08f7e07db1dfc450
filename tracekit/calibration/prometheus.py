"""A profile from snapshots of vLLM's Prometheus metrics, one after the other: what its ``/metrics`` page showed, again and again.

Between two snapshots the histogram of inter-token latencies tells the mean length of the iterations that gave tokens, idle time
left out; counters tell the prompt tokens that went with them, gauges how many ran and how full the KV cache was. A snapshot alone
has sums since the engine's start: one mean, from which nothing follows.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from replay_engine.profile import load_profile
from tracekit.calibration.interval_fit import FEWEST, Intervals, fit_intervals, report_intervals
from tracekit.calibration.looking import unreadable
from tracekit.calibration.sources import SourceReport, SourceRequest
from tracekit.calibration.vllm_header import LogFacts, read_facts
from tracekit.errors import InputError, shown, shown_path

__all__ = ["calibrate_prometheus", "intervals_of_snapshots", "read_snapshots"]

Snapshot = dict[tuple[str, str], float]
"""Values by engine and metric; series of several models are summed."""
_SAMPLE = re.compile(r"^(?:vllm:)?([a-z_]+)(\{.*\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_ENGINE = re.compile(r'\bengine="([^"]*)"')
_BLOCKS, _SIZE = re.compile(r'\bnum_gpu_blocks="(\d+)"'), re.compile(r'\bblock_size="(\d+)"')
_GAPS = ("inter_token_latency_seconds", "time_per_output_token_seconds")
_USAGE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")
_WANTED = frozenset(
    {f"{name}_{part}" for name in _GAPS for part in ("sum", "count")}
    | {"prompt_tokens_total", "generation_tokens_total", "num_requests_running", "prefix_cache_hits_total", *_USAGE}
    | {"gpu_prefix_cache_hits_total"}
)


def calibrate_prometheus(request: SourceRequest) -> SourceReport:
    """Of a file of snapshots, or a folder of files in the order of their names. ``InputError``: too few that tell a time;
    ``ConfigError``: a setting, or a fit that beats the prior's card."""
    facts, snapshots = read_snapshots(request.source, read_facts((), request.sets))
    name = shown_path(request.source)
    if len(snapshots) <= FEWEST:
        raise InputError(f"{len(snapshots)} snapshots: each has sums since the engine's start, only differences tell a time",
                         file=name, expected=f"{FEWEST + 1} or more, some seconds apart")  # fmt: skip
    rows, hits = intervals_of_snapshots(snapshots, facts)
    prior = load_profile(request.prior) if request.prior is not None else None
    latency, terms = fit_intervals(rows, prior, file=name)
    notes = []
    if facts.kv_tokens is None:
        lacks = "no cache_config_info says how large the KV cache is; expected it, or --set num_gpu_blocks=N"
        notes.append(f"KV reads cannot be told apart: {lacks}")
    if hits >= 0.01:
        notes.append(f"{hits:.0%} of the prompt tokens came from the prefix cache and were left out")
    return report_intervals("prometheus", "snapshots of vLLM's metrics", rows, latency, terms, prior, notes)


def read_snapshots(source: str, facts: LogFacts) -> tuple[LogFacts, list[Snapshot]]:
    """The snapshots in order; a sample that comes again begins the next one. ``facts`` with the size of the KV cache where the
    metrics tell it and nobody did. ``InputError``: not readable, or no metric of vLLM."""
    found: list[Snapshot] = []
    for lines in _files(source):
        seen: set[tuple[str, str]] = set()
        for line in lines:
            match = _SAMPLE.match(line)
            if match is None:
                continue
            name, labels = match[1], match[2] or ""
            if name == "cache_config_info" and facts.kv_tokens is None:
                facts = _sized(facts, labels)
            if name not in _WANTED:
                continue
            if not seen or (name, labels) in seen:
                found.append({})
                seen = set()
            seen.add((name, labels))
            engine = _ENGINE.search(labels)
            key = (engine[1] if engine else "0", name)
            found[-1][key] = found[-1].get(key, 0.0) + _number(match[3])
    if not found:
        raise InputError("no metric of vLLM", file=shown(source, 200), expected="vllm:generation_tokens_total and its like")
    return facts, found


def _files(source: str) -> Iterator[list[str]]:
    path = each = Path(source)
    try:
        for each in sorted(path.iterdir(), key=_by_number) if path.is_dir() else [path]:
            if each.is_file():
                yield _unpacked(each.read_bytes()).decode("utf-8", errors="replace").splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(unreadable(each, error), file=shown(source, 200), expected="Prometheus metrics as text") from None


def _by_number(path: Path) -> list[tuple[int, int, str]]:
    """Names in the order that a person counts: m2 before m10."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part.isdecimal()), int(part) if part.isdecimal() else 0, part) for part in parts]


def _unpacked(data: bytes) -> bytes:
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def _sized(facts: LogFacts, labels: str) -> LogFacts:
    blocks, size = _BLOCKS.search(labels), _SIZE.search(labels)
    if size is not None:
        facts.block_size = int(size[1])
    if blocks is not None:
        facts.kv_tokens = float(int(blocks[1]) * facts.block_size)
    return facts


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def intervals_of_snapshots(snapshots: list[Snapshot], facts: LogFacts) -> tuple[Intervals, float]:
    """Differences of neighbours, engine by engine; one across a restart tells nothing. And the share of the prompt tokens that
    caches gave."""
    rows, cached, prompts = [], 0.0, 0.0
    for engine in sorted({engine for each in snapshots for engine, _ in each}):
        series = {name: np.array([each.get((engine, name), np.nan) for each in snapshots]) for name in _WANTED}
        gaps = next((name for name in _GAPS if np.isfinite(series[f"{name}_count"]).any()), _GAPS[0])
        usage = next((series[name] for name in _USAGE if np.isfinite(series[name]).any()), series[_USAGE[0]])
        step = {name: np.diff(values) for name, values in series.items()}
        hits = np.nan_to_num(np.fmax(step["prefix_cache_hits_total"], step["gpu_prefix_cache_hits_total"]))
        before, after = series["num_requests_running"][:-1], series["num_requests_running"][1:]
        going = (step[f"{gaps}_count"] > 0) & (step["generation_tokens_total"] > 0) & (step["prompt_tokens_total"] >= 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            took = np.where(going, step[f"{gaps}_sum"] / step[f"{gaps}_count"] * 1e9, np.nan)
            computed = np.maximum(step["prompt_tokens_total"] - hits, 0.0)
            tokens = computed * (before + after) / 2 / step["generation_tokens_total"]
        size = np.nan if facts.kv_tokens is None else facts.kv_tokens
        kv = np.maximum((usage[:-1] + usage[1:]) / 2 * size - (before + after) / 2 * (facts.block_size - 1) / 2, 0.0)
        rows.append((took, tokens, before, after, kv))
        cached, prompts = cached + float(hits[going].sum()), prompts + float(step["prompt_tokens_total"][going].sum())
    columns = [np.concatenate(each) for each in zip(*rows, strict=True)]
    return Intervals.of(*columns), cached / max(prompts, 1.0)

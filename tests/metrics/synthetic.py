"""A small continuous-batching world walked token by token, so that every figure can be recomputed from its token list."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.config import SchedulerConfig
from replay_engine.tables import ITERATIONS, OUTCOMES, SPANS
from replay_engine.types import Phase, RequestState


@dataclass
class Totals:
    """Sums over iterations, as the engine keeps them."""

    iterations: int = 100
    busy_ns: int = 2_000_000_000
    device_ns: int = 1_900_000_000
    host_ns: int = 200_000_000
    first_start_ns: int = 0
    last_end_ns: int = 3_000_000_000
    prefill_tokens: int = 50_000
    recomputed_tokens: int = 1_000
    decode_tokens: int = 10_000
    prefix_hit_tokens: int = 4_000
    evicted: int = 7
    preemptions: int = 3
    kv_total: int = 1_000
    kv_used_max: int = 900
    kv_used_ns: int = 1_000_000_000_000
    kv_cached_max: int = 100
    running_max: int = 12
    running_ns: int = 10_000_000_000
    waiting_max: int = 5
    waiting_ns: int = 2_000_000_000
    refused_ns: dict[str, int] = field(default_factory=lambda: {"none": 5, "kv_free": 300_000_000, "max_num_seqs": 100_000_000})
    refused_iterations: dict[str, int] = field(default_factory=lambda: {"none": 1, "kv_free": 15, "max_num_seqs": 5})
    queue_ns: int = 400_000_000
    queue_tokens: int = 10_000
    queue_budget_tokens: int = 160_000
    above_watermark_ns: int = 0
    async_blocked_ns: int = 50_000_000
    walked: int = 4


CONFIG = SchedulerConfig(num_gpu_blocks=16384)


def finished_rows(n: int, seed: int = 0) -> npt.NDArray[np.void]:
    """``n`` finished requests with consistent latencies, in arrival order."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(n, OUTCOMES)
    rows["request"] = np.arange(n)
    rows["arrival_ns"] = np.cumsum(rng.exponential(2e8, n)).astype(np.int64)
    rows["prompt_tokens"] = rng.integers(1, 4_000, n)
    rows["output_tokens"] = rng.integers(1, 500, n)
    rows["queue_ns"] = rng.exponential(1e8, n).astype(np.int64)
    rows["ttft_ns"] = rows["queue_ns"] + rng.exponential(2e8, n).astype(np.int64) + 1
    decode = (rows["output_tokens"] - 1) * rng.integers(5_000_000, 40_000_000, n)
    rows["e2e_ns"] = rows["ttft_ns"] + decode
    one = rows["output_tokens"] == 1
    rows["tpot_ns"] = np.where(one, np.nan, decode / np.maximum(rows["output_tokens"] - 1, 1))
    rows["max_gap_ns"] = np.where(one, -1, (np.nan_to_num(rows["tpot_ns"]) * 1.5).astype(np.int64))
    rows["stalled_ns"] = np.where(one, -1, 0)
    rows["last_token_ns"] = rows["arrival_ns"] + rows["e2e_ns"]
    rows["cached_tokens"] = rows["prompt_tokens"] // 4
    return rows


def unfinished(rows: npt.NDArray[np.void], at: int, state: RequestState) -> None:
    """Turn row ``at`` into one that ended without a token."""
    rows["state"][at] = state
    for name in ("queue_ns", "ttft_ns", "e2e_ns", "max_gap_ns", "stalled_ns", "last_token_ns", "cached_tokens"):
        rows[name][at] = -1
    rows["tpot_ns"][at] = np.nan
    rows["output_tokens"][at] = 0


@dataclass
class World:
    """Iterations, spans, outcomes, and the token times of each request, which the product never sees."""

    iterations: npt.NDArray[np.void]
    spans: npt.NDArray[np.void]
    outcomes: npt.NDArray[np.void]
    tokens: list[list[int]]

    def gaps(self, request: int) -> list[int]:
        return [int(gap) for gap in np.diff(self.tokens[request])]


def walk(seed: int, requests: int = 8, iterations: int = 120) -> World:
    """Each request queues, prefills in one or more chunks, decodes, and may stall or be preempted at any time."""
    rng = random.Random(seed)
    duration = [rng.choice([3, 5, 7, 7, 20]) * 1_000 + rng.randrange(100) for _ in range(iterations)]
    start, now = [], 1_000
    for length in duration:
        start.append(now)
        now += length
    ran = np.zeros(iterations, ITERATIONS)
    ran["iteration"], ran["start_ns"], ran["duration_ns"] = np.arange(iterations), start, duration
    rows, spans, tokens = np.zeros(requests, OUTCOMES), [], []
    for request in range(requests):
        spoken, own, wanted = _life(rng, start, duration, request)
        tokens.append(spoken)
        spans += own
        _outcome(rows, request, spoken, own, wanted)
    rng.shuffle(spans)
    return World(ran, np.array(spans, SPANS), rows, tokens)


def _life(rng: random.Random, start: list[int], duration: list[int], request: int) -> tuple[list[int], list[Any], bool]:
    """Phases iteration by iteration; equal neighbours are merged into one span."""
    at = rng.randrange(len(start) // 2)
    arrival = start[at] + rng.randrange(duration[at])
    phases: list[tuple[int, Phase]] = []
    tokens: list[int] = []
    at, left, phase = at + 1, rng.randrange(0, 3), Phase.queued
    wanted, late = rng.randrange(1, 25), rng.random() < 0.5
    while at < len(start) and len(tokens) < wanted:
        phases.append((at, phase))
        end = start[at] + duration[at]
        if phase in (Phase.queued, Phase.preempted):
            left -= 1
            if left <= 0:
                phase, left = Phase.prefill, rng.randrange(1, 4)
        elif phase == Phase.prefill:
            left -= 1
            if left <= 0:
                tokens.append(end)
                phase = Phase.decode
            # of one request, prefills are preempted either at their last token or before it: spans cannot tell the two apart
            if rng.random() < 0.15 and (left <= 0) == late:
                phase, left = Phase.preempted, rng.randrange(1, 4)
            elif left > 0 and rng.random() < 0.2:
                phase = Phase.prefill_wait
        elif phase == Phase.decode:
            tokens.append(end)
            dice = rng.random()
            if dice < 0.1:
                phase = Phase.stalled
            elif dice < 0.15:
                phase, left = Phase.preempted, rng.randrange(1, 4)
        elif phase == Phase.stalled:
            phase = Phase.decode if rng.random() < 0.5 else Phase.stalled
        else:
            phase = Phase.prefill
        at += 1
    spans: list[Any] = []
    for where, kind in phases:
        end = start[where] + duration[where]
        if spans and spans[-1][5] == kind:
            spans[-1] = (*spans[-1][:1], where, spans[-1][2], end, request, kind, 0)
        else:
            begin = spans[-1][3] if spans else arrival
            spans.append((where, where, begin, end, request, kind, 0))
    return tokens, spans, len(tokens) == wanted


def _outcome(rows: npt.NDArray[np.void], request: int, tokens: list[int], spans: list[Any], done: bool) -> None:
    arrival = spans[0][2] if spans else 0
    rows["request"][request] = request
    rows["arrival_ns"][request] = arrival
    rows["output_tokens"][request] = len(tokens)
    rows["ttft_ns"][request] = tokens[0] - arrival if tokens else -1
    rows["e2e_ns"][request] = tokens[-1] - arrival if done else -1
    rows["last_token_ns"][request] = tokens[-1] if tokens else -1
    rows["state"][request] = RequestState.finished if done else RequestState.failed

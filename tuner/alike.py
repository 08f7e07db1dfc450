"""Configurations that a finished replay proves to be alike: the knobs in which they differ never came to bear in it.

A replay keeps its high-water marks: the most tokens and sequences of an iteration, the largest chunk, the most KV in use. By
induction over the iterations another configuration makes every decision that this one made, as long as each limit in which
they differ lies above its mark in both, nobody was preempted and nobody was refused for blocks: so its outcomes are the same
bytes, and it need not be replayed. Whatever else bears on a decision has to be equal (``rest_of``), and where rules beyond the
queue's order look at such a limit nothing is claimed. Tests replay such pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.config import SchedulerConfig
from replay_engine.fleet_rules import FleetRules
from replay_engine.pd_rules import Pd
from replay_engine.plugins import plugin_name
from replay_engine.policy import Policy
from replay_engine.rules import Batching, FrontDoorRules
from replay_engine.totals import RunTotals
from replay_engine.types import EventSink, Refusal
from tuner.space import configuration_key

__all__ = ["KNOBS", "HighWater", "Limits", "Traffic", "alike", "limits_of", "rest_of"]

KNOBS = ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold", "num_gpu_blocks")
_NO_BLOCKS = (Refusal.kv_free.name, Refusal.kv_full_isl.name, Refusal.kv_watermark.name)
_PLAIN = (Batching(), FrontDoorRules(), FleetRules(), Pd())
Limits = tuple[int, int, int, int]
"""Values of ``KNOBS``."""
Marks = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Of the requests: the longest prompt, the most tokens of a prompt with its output, whether any share a prefix."""

    prompt: int
    tokens: int
    shares: bool


class HighWater:
    """A sink before another one: keeps the marks of the iterations that go by."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._tokens = self._chunk = self._running = self._kv = 0
        self._cached = 0

    def append(self, table: str, rows: npt.NDArray[np.void]) -> None:
        """Look at a chunk of iterations."""
        if table == "iterations" and len(rows):
            prefill, seqs = rows["prefill_tokens"].astype(np.int64), rows["prefill_seqs"].astype(np.int64)
            self._tokens = max(self._tokens, int((prefill + rows["decode_seqs"]).max()))
            self._chunk = max(self._chunk, int((prefill - np.maximum(seqs - 1, 0)).max()))
            self._running = max(self._running, int(rows["running"].max()))
            self._kv = max(self._kv, int(rows["kv_used"].max()))
            self._cached = max(self._cached, int((rows["kv_used"].astype(np.int64) + rows["kv_cached"]).max()))
        self._sink.append(table, rows)

    def marks(self, totals: RunTotals, config: SchedulerConfig, traffic: Traffic) -> dict[str, Any]:
        """Plain values. ``tokens``, ``running``: the most of an iteration; ``chunk``: no prompt got more; ``blocks``: the most in
        use, and what the longest request needs; ``kept``: blocks that hold or held something, at most, where content may be found
        again; ``sound``: nobody was preempted, or refused for blocks."""
        refused = any(totals.refused_iterations.get(name) for name in _NO_BLOCKS)
        return {
            "tokens": self._tokens, "chunk": min(self._chunk, traffic.prompt), "running": self._running,
            "blocks": self._kv + -(-traffic.tokens // config.block_size) + 1,
            "kept": self._cached if traffic.shares and config.enable_prefix_caching else 0,
            "evicted": bool(totals.evicted) and traffic.shares, "sound": not (totals.preemptions or refused),
        }  # fmt: skip


def limits_of(config: SchedulerConfig) -> Limits:
    """A configuration's values of ``KNOBS``."""
    return config.max_num_batched_tokens, config.max_num_seqs, config.long_prefill_token_threshold, config.num_gpu_blocks


def rest_of(policy: Policy) -> str | None:
    """Sixteen hex digits over all of a policy but ``KNOBS``; ``None`` where a rule looks at one of these in another way."""
    scheduler, rules = policy.scheduler, policy.rules
    if (rules.batching, rules.front_door, rules.fleet, rules.pd) != _PLAIN or rules.order.reserved or rules.preemption.to_admit:
        return None
    if plugin_name(rules.order.by) or plugin_name(rules.preemption.victim):
        return None
    if not scheduler.enable_chunked_prefill or scheduler.long_prefill_token_threshold_adaptive:
        return None
    if scheduler.max_num_scheduled_tokens is not None or scheduler.max_num_active_seqs is not None:
        return None
    return configuration_key(policy, KNOBS)


def alike(marks: Marks, one: Limits, other: Limits, watermark: float) -> bool:
    """Whether a replay with ``marks`` under ``one`` is that under ``other`` too, which has the same ``rest_of``."""
    if one == other:
        return True
    if not marks["sound"]:
        return False
    if one[0] != other[0] and marks["tokens"] >= min(one[0], other[0]):
        return False
    if one[1] != other[1] and marks["running"] >= min(one[1], other[1]):
        return False
    if one[2] != other[2] and not (_unbound(marks, one[2]) and _unbound(marks, other[2])):
        return False
    return one[3] == other[3] or _blocks_enough(marks, one[3], other[3], watermark)


def _unbound(marks: Marks, cap: int) -> bool:
    """Whether no prompt was, or would have been, cut by ``cap``."""
    return not cap or marks["chunk"] < cap


def _blocks_enough(marks: Marks, one: int, other: int, watermark: float) -> bool:
    """Whether blocks are never short with either number, and the prefix cache keeps the same content."""
    if marks["evicted"]:
        return False
    return all(blocks - 1 >= marks["kept"] and blocks - 1 - int(watermark * blocks) >= marks["blocks"] for blocks in (one, other))

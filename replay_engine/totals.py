"""Sums over a run's iterations, kept in every event mode: what the acceptance matrix needs when no row is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt

from replay_engine.types import Refusal

__all__ = ["RunTotals"]

_HELD = [int(r) for r in (Refusal.max_num_seqs, Refusal.kv_free, Refusal.kv_full_isl, Refusal.kv_watermark)]


@dataclass(slots=True, kw_only=True)
class RunTotals:
    """Times in ns, lengths in tokens, KV in blocks. ``*_ns`` of a level (``kv_used_ns``) is level x iteration time.

    ``refused_*`` are by reason of the queue head's refusal; ``queue_*`` cover iterations that left requests waiting.
    ``async_blocked_ns``: iterations whose head was refused for seats or blocks while a finished sequence still held some,
    because under
    asynchronous scheduling its end is known one iteration late.
    """

    kv_total: int = 0
    token_budget: int = 0
    reserve_blocks: int = 0
    asynchronous: bool = False
    iterations: int = 0
    busy_ns: int = 0
    device_ns: int = 0
    host_ns: int = 0
    first_start_ns: int = -1
    last_end_ns: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    decode_tokens: int = 0
    prefix_hit_tokens: int = 0
    evicted: int = 0
    preemptions: int = 0
    admitted: int = 0
    finished: int = 0
    walked: int = 0
    kv_used_max: int = 0
    kv_used_ns: int = 0
    kv_cached_max: int = 0
    running_max: int = 0
    running_ns: int = 0
    waiting_max: int = 0
    waiting_ns: int = 0
    queue_ns: int = 0
    queue_tokens: int = 0
    queue_budget_tokens: int = 0
    above_watermark_ns: int = 0
    async_blocked_ns: int = 0
    refused_ns: dict[str, int] = field(default_factory=dict)
    refused_iterations: dict[str, int] = field(default_factory=dict)
    _finished_before: int = 0

    def add(self, rows: npt.NDArray[np.void]) -> None:
        """Count a chunk of ``iterations`` rows, in order."""
        if not len(rows):
            return
        duration = rows["duration_ns"]
        if self.first_start_ns < 0:
            self.first_start_ns = int(rows["start_ns"][0])
        self.last_end_ns = int(rows["start_ns"][-1] + duration[-1])
        self.iterations += len(rows)
        self.busy_ns += int(duration.sum())
        self.device_ns += int(rows["device_ns"].sum())
        self.host_ns += int(rows["host_ns"].sum())
        for name, column in _SUMS.items():
            setattr(self, name, getattr(self, name) + int(rows[column].sum()))
        for level in ("kv_used", "kv_cached", "running", "waiting"):
            setattr(self, f"{level}_max", max(getattr(self, f"{level}_max"), int(rows[level].max())))
        for level in ("kv_used", "running", "waiting"):
            setattr(self, f"{level}_ns", getattr(self, f"{level}_ns") + int(np.dot(rows[level].astype(np.int64), duration)))
        self._add_waits(rows, duration)

    @classmethod
    def merged(cls, several: Sequence[RunTotals]) -> RunTotals:
        """One for all of ``several`` (at least one), which stay as they are."""
        first, *others = several
        whole = replace(first, refused_ns=dict(first.refused_ns), refused_iterations=dict(first.refused_iterations))
        for each in others:
            whole.merge(each)
        return whole

    def merge(self, other: RunTotals) -> None:
        """Count another replica's iterations too. Sums add up, levels are those of the fullest replica; ``kv_total`` stays that
        of one of them."""
        if other.first_start_ns >= 0 and (self.first_start_ns < 0 or other.first_start_ns < self.first_start_ns):
            self.first_start_ns = other.first_start_ns
        for each in fields(self):
            name, mine, its = each.name, getattr(self, each.name), getattr(other, each.name)
            if name.endswith("_max") or name == "last_end_ns":
                setattr(self, name, max(mine, its))
            elif isinstance(mine, dict):
                setattr(self, name, {key: mine.get(key, 0) + its.get(key, 0) for key in {**mine, **its}})
            elif name not in _OF_ONE:
                setattr(self, name, mine + its)

    def _add_waits(self, rows: npt.NDArray[np.void], duration: npt.NDArray[np.int64]) -> None:
        if self.reserve_blocks:
            above = rows["kv_used"] > self.kv_total - self.reserve_blocks
            self.above_watermark_ns += int(duration[above].sum())
        queued = rows["waiting"] > 0
        if queued.any():
            self.queue_ns += int(duration[queued].sum())
            tokens = rows["prefill_tokens"][queued].astype(np.int64) + rows["decode_seqs"][queued]
            self.queue_tokens += int(tokens.sum())
            self.queue_budget_tokens += int(queued.sum()) * self.token_budget
            self._add_refusals(rows, duration)
        if self.asynchronous:
            held = np.empty(len(rows), dtype=bool)
            held[0] = self._finished_before > 0
            held[1:] = rows["finished"][:-1] > 0
            blocked = held & np.isin(rows["head_refused_by"], _HELD)
            self.async_blocked_ns += int(duration[blocked].sum())
            self._finished_before = int(rows["finished"][-1])

    def _add_refusals(self, rows: npt.NDArray[np.void], duration: npt.NDArray[np.int64]) -> None:
        reasons = rows["head_refused_by"]
        for code in np.flatnonzero(np.bincount(reasons)).tolist():
            if code:
                name = Refusal(code).name
                here = reasons == code
                self.refused_ns[name] = self.refused_ns.get(name, 0) + int(duration[here].sum())
                self.refused_iterations[name] = self.refused_iterations.get(name, 0) + int(here.sum())


_OF_ONE = {"kv_total", "token_budget", "reserve_blocks", "asynchronous", "first_start_ns", "_finished_before"}
_SUMS = {
    "prefill_tokens": "prefill_tokens",
    "recomputed_tokens": "recomputed_tokens",
    "decode_tokens": "decode_seqs",
    "prefix_hit_tokens": "prefix_hit_tokens",
    "evicted": "evicted",
    "preemptions": "preempted",
    "admitted": "admitted",
    "finished": "finished",
}

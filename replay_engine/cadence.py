"""``prefill_schedule_interval``: iterations in which running decodes are left alone, and how they are counted."""

from __future__ import annotations

from replay_engine.state import State
from replay_engine.types import BatchPlan

__all__ = ["count_cadence", "set_hold"]


def set_hold(state: State) -> None:
    """Whether this iteration must not prefill."""
    decoding = len(state.running) - sum(1 for seq in state.loose.values() if seq.chunk)
    state.carried = False
    state.hold = not state.suspended and state.executed + 1 - state.last_prefill < state.interval and decoding > 0


def count_cadence(state: State, plan: BatchPlan, carries: bool) -> None:
    """``plan`` is decided; ``carries``: it prefills more than a last token."""
    if plan.total_tokens:
        state.executed += 1
    if carries:
        state.last_prefill = state.executed
    if not state.hold and not plan.preempted:
        state.suspended = len(state.waiting) > 0

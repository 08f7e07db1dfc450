"""Three own decisions for a replay: who is first in the queue, whether the head may enter, who is preempted.

Each is a pure function of what it is given: no clock, no random numbers, nothing remembered.
"""

from __future__ import annotations

from collections.abc import Sequence

from replay_engine.plugins import EngineView, RunningView
from replay_engine.types import Request

__all__ = ["half_full", "least_work", "youngest"]


def least_work(request: Request) -> float:
    """Order: the least work first, an output token weighed as four of the prompt. Unknown lengths count as 256."""
    output = request.max_tokens if request.max_tokens is not None else 256
    return request.prompt_tokens + 4 * output


def half_full(request: Request, view: EngineView) -> bool:
    """Admission: once half of the KV is taken, only prompts that need at most a tenth of what is free."""
    if 2 * view.free_blocks >= view.usable_blocks:
        return True
    return 10 * request.prompt_tokens <= view.free_blocks * view.block_size


def youngest(running: Sequence[RunningView]) -> int:
    """Victim: who arrived last, of those that were preempted least often."""
    return min(range(len(running)), key=lambda at: (running[at].preemptions, -running[at].request.arrival_ns))

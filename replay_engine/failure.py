"""An engine that cannot go on: what ends a replay early and keeps everything before."""

from __future__ import annotations

__all__ = ["EngineFailure"]


class EngineFailure(Exception):  # noqa: N818 (a failure that is reported, not a mistake)
    """Iteration ``iteration`` could not be computed. ``str()`` is one line."""

    def __init__(self, iteration: int, reason: str) -> None:
        super().__init__(f"failed at iteration {iteration}: {reason}")
        self.iteration = iteration
        self.reason = reason

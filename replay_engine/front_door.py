"""What happens before a request reaches an engine. Today: what vLLM's front end refuses by itself."""

from __future__ import annotations

from replay_engine.config import SchedulerConfig
from replay_engine.tables import OutcomeReason

__all__ = ["FrontDoor"]


class FrontDoor:
    """Decides once, with a reason."""

    __slots__ = ("_longest",)

    def __init__(self, config: SchedulerConfig) -> None:
        self._longest = config.max_model_len - 1

    def refuses(self, prompt_tokens: int) -> OutcomeReason:
        """``none`` to let the request in. A prompt that leaves no room for one output token is rejected."""
        return OutcomeReason.prompt_too_long if prompt_tokens > self._longest else OutcomeReason.none

"""What the plain walk knows of a request, and what it decides in one iteration."""

from __future__ import annotations

from dataclasses import dataclass, field

from replay_engine.types import Refusal

__all__ = ["TOKEN_STRIDE", "Decision", "PlainSequence"]

TOKEN_STRIDE = 1 << 20


@dataclass(eq=False)
class PlainSequence:
    """One request with its tokens. ``comp``: computed tokens; ``ph``: sampled tokens not yet returned."""

    request_id: str
    tokens: list[int]
    max_tokens: int
    output_seed: int
    priority: int
    arrival_time: float
    prompt_len: int = 0
    comp: int = 0
    ph: int = 0
    blocks: list[int] = field(default_factory=list)
    registered: int = 0
    keys: list[int] = field(default_factory=list)
    chunk: bool = True
    status: str = "waiting"
    admissions: int = 0
    has_sampled: bool = False

    @property
    def nt(self) -> int:
        return len(self.tokens)

    @property
    def left(self) -> int:
        return self.nt + self.ph - self.comp

    @property
    def outputs(self) -> int:
        return self.nt - self.prompt_len


@dataclass
class Decision:
    """What one call of ``schedule`` decided, in order."""

    scheduled: dict[PlainSequence, int] = field(default_factory=dict)
    admitted: list[PlainSequence] = field(default_factory=list)
    resumed: list[PlainSequence] = field(default_factory=list)
    cached: dict[PlainSequence, int] = field(default_factory=dict)
    preempted: list[PlainSequence] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    evicted: int = 0
    carries_prefill: bool = False
    """Whether a prefill chunk was scheduled, even if a preemption later in the iteration took it back."""
    decoding: list[str] = field(default_factory=list)
    refused_by: Refusal = Refusal.none
    refused_head: str | None = None
    refused_need: int = 0
    samples: list[PlainSequence] = field(default_factory=list)

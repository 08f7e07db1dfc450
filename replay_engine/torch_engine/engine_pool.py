"""The scheduler's block pool as a real engine needs it: real ids, word of what was handed out and freed, no hit on content that
was never computed."""

from __future__ import annotations

from replay_engine.config import SchedulerConfig
from replay_engine.kv_identified import IdentifiedPool
from replay_engine.types import SeqState, Sequence

__all__ = ["EnginePool"]

_FETCHING, _FETCHED = int(SeqState.FETCHING), int(SeqState.FETCHED)


class EnginePool(IdentifiedPool):
    """``IdentifiedPool`` that tells which blocks hold nothing valid any more (``take_void``).

    One decision differs from vLLM's: it registers a block's content when its tokens are granted, before they are computed, and
    keeps it registered if the sequence is preempted in the same iteration, so that a later request may hit KV that nobody
    wrote. Here such blocks are freed blank.
    """

    __slots__ = ("_void",)

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(
            config.usable_blocks, config.block_size, int(config.async_scheduling), caching=config.enable_prefix_caching,
            split_free_list=config.engine_version != "0.20.0",
        )  # fmt: skip
        self._void: list[int] = []

    def take_void(self) -> list[int]:
        """Blocks handed out or freed blank since the last call: what lies in them must not be read. May name a block twice."""
        void, self._void = self._void, []
        return void

    def grow(self, seq: Sequence, blocks: int) -> None:
        super().grow(seq, blocks)
        self._void += seq.blocks[len(seq.blocks) - blocks :]

    def release(self, seq: Sequence, held: int, registered: int, *, resumes: bool) -> None:
        own = [block for block in seq.blocks if block not in self._shared]
        for block in seq.blocks[self._valid(seq) :]:
            if block in self._key_of and block not in self._shared:
                self._forget(block)
                self.evicted -= 1  # nothing was lost
        super().release(seq, held, registered, resumes=resumes)
        self._void += [block for block in own if block not in self._key_of]

    def _valid(self, seq: Sequence) -> int:
        """Leading blocks of ``seq`` that are full of KV: what it has computed, or what came from elsewhere."""
        if seq.state == _FETCHING:
            return seq.fetch_hit
        return (seq.prompt_tokens if seq.state == _FETCHED else seq.comp) // self._size

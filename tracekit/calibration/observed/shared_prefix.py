"""Blocks that prompts share: who of those who are served holds the same ones, and a trace that is known to begin alike although
it has no block hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.errors import UsageError
from tracekit.traces.said_prefix import NOTHING, Beginning

if TYPE_CHECKING:
    from replay_engine.profile import Profile
    from tracekit.traces.source import TraceSource

__all__ = ["Sharing", "begin_alike", "fitted_on", "fitted_prefix"]

Ints = npt.NDArray[np.int64]


def begin_alike(source: TraceSource, said: Beginning, block_size: int) -> None:
    """Say of the prompts of ``source`` what they begin alike with; whole blocks of it can be shared."""
    if source.run_offsets is not None:
        raise UsageError("--set trace.shared_prefix: the trace says itself which blocks are shared; expected it left out")
    blocks = said.blocks(source.prompt_tokens.astype(np.int64), block_size)
    has = blocks > 0
    source.block_tokens = block_size
    source.run_offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(has.astype(np.int64))))
    runs = int(source.run_offsets[-1])
    source.run_pos = np.zeros(runs, np.int64)
    source.run_first = np.ones(runs, np.int64)
    source.run_len = blocks[has]
    source.shared_blocks = blocks


def fitted_prefix(profile: Profile, source: TraceSource) -> Beginning:
    """What the prompts of ``source`` begin alike with, as a fit to this very trace took them to; nothing for another trace."""
    if source.run_offsets is not None or not fitted_on(profile, source):
        return NOTHING
    return Beginning(int(profile.fit.get("shared_prefix", 0)), int(profile.fit.get("shared_after", 0)))


def fitted_on(profile: Profile, source: TraceSource) -> bool:
    """Whether ``profile`` was fitted to the trace of ``source``, by its name, whole: "a" stands in most sentences."""
    words = f"by the latencies of {source.name}"
    ends = (f"{words},", f"{words}:")
    return any(told.endswith(words) or any(end in told for end in ends) for told in profile.provenance.values())


class Sharing:
    """Which blocks requests of ``source`` have in common, at the trace's own grain; none where it does not tell."""

    def __init__(self, source: TraceSource) -> None:
        self.grain, none = source.block_tokens or 0, np.zeros(0, np.int64)
        self.owner, self.first, self.length = none, none, none
        if source.run_offsets is None or source.run_pos is None or source.run_first is None or source.run_len is None:
            return
        owner = np.repeat(np.arange(source.total), np.diff(source.run_offsets))
        length = np.minimum(source.run_len, source.shared_blocks[owner] - source.run_pos)
        some = length > 0
        self.owner, self.first, self.length = owner[some], source.run_first[some], length[some]

    def repeated(self, there: Ints) -> int:
        """Tokens that the requests ``there`` would hold more than once if none were shared."""
        mine = np.flatnonzero(np.isin(self.owner, there))
        if len(mine) < 2:
            return 0
        mine = mine[np.argsort(self.first[mine])]
        begin, length = self.first[mine], self.length[mine]
        reach = np.maximum.accumulate(begin + length)
        fresh = np.maximum(begin + length - np.maximum(begin, np.concatenate((begin[:1], reach[:-1]))), 0)
        return int(length.sum() - fresh.sum()) * self.grain

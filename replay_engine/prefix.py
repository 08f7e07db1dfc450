"""Prefix identity cut to the engine's block size: trace runs in, block keys out. Done once a request."""

from __future__ import annotations

from replay_engine.types import PrefixRuns

__all__ = ["block_keys"]


def block_keys(prefix: PrefixRuns | None, prompt_tokens: int, block_size: int) -> list[int]:
    """Keys of the prompt's leading full engine blocks that another request may share.

    A trace block's id stands for the whole prefix up to its end, so an engine block gets the id of the trace block its last token lies
    in, and its place in there. Keys are unique over the trace and equal exactly where the trace says that prefixes are equal.
    """
    if prefix is None or not prefix.shared_blocks:
        return []
    grain = prefix.block_tokens
    count = min(prefix.shared_blocks * grain, prompt_tokens) // block_size
    if grain % block_size:
        return _uneven(prefix, grain, block_size, count)
    per_block = grain // block_size
    keys: list[int] = []
    for position, first, length in prefix.runs:
        start = position * per_block
        if start >= count:
            break
        stop = min(start + length * per_block, count)
        keys += range(first * per_block, first * per_block + stop - start)
    return keys


def _uneven(prefix: PrefixRuns, grain: int, block_size: int, count: int) -> list[int]:
    ids = [first + k for _, first, length in prefix.runs for k in range(length)]
    ends = (block * block_size + block_size - 1 for block in range(count))
    return [ids[end // grain] * grain + end % grain for end in ends]

"""Prefix identity cut to the engine's block size: trace runs in, block keys out. Done once a request, in time of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from itertools import pairwise
from typing import overload

from replay_engine.types import PrefixRuns

__all__ = ["BlockKeys", "KeyRun", "block_keys"]

KeyRun = tuple[int, int, int]
"""Positions ``start`` to ``end`` (in engine blocks, ``end`` not included) and what makes a key of a position when added to it."""


class BlockKeys(SequenceOf[int]):
    """Block keys as runs of consecutive ones. Neighbouring runs are never consecutive, and no key comes twice: a key stands for
    the whole prefix up to its block, so a second one says that the trace's ids do not, and the keys end before it."""

    __slots__ = ("length", "runs")

    def __init__(self, runs: Iterable[KeyRun] = ()) -> None:
        self.runs = _joined(runs)
        if len(self.runs) > 1:
            self.runs = _unrepeated(self.runs)
        self.length = self.runs[-1][1] if self.runs else 0

    @classmethod
    def of(cls, keys: SequenceOf[int]) -> BlockKeys:
        """The runs that are in ``keys``."""
        return keys if isinstance(keys, BlockKeys) else cls((at, at + 1, key - at) for at, key in enumerate(keys))

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        for start, end, shift in self.runs:
            yield from range(start + shift, end + shift)

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> list[int]: ...
    def __getitem__(self, position: int | slice) -> int | list[int]:
        return list(self)[position]


def block_keys(prefix: PrefixRuns | None, prompt_tokens: int, block_size: int) -> BlockKeys:
    """Keys of the prompt's leading full engine blocks that another request may share.

    A trace block's id stands for the whole prefix up to its end, so an engine block gets the id of the trace block its last
    token lies in, and its place in there. Keys are unique over the trace and equal exactly where the trace says prefixes are.
    """
    if prefix is None or not prefix.shared_blocks:
        return _NO_KEYS
    grain = prefix.block_tokens
    count = min(prefix.shared_blocks * grain, prompt_tokens) // block_size
    if grain % block_size:
        return BlockKeys.of(_uneven(prefix, grain, block_size, count))
    per_block = grain // block_size
    runs: list[KeyRun] = []
    for position, first, length in prefix.runs:
        start = position * per_block
        if start >= count:
            break
        runs.append((start, min(start + length * per_block, count), first * per_block - start))
    return BlockKeys(runs)


def _uneven(prefix: PrefixRuns, grain: int, block_size: int, count: int) -> list[int]:
    ids = [first + k for _, first, length in prefix.runs for k in range(length)]
    ends = (block * block_size + block_size - 1 for block in range(count))
    return [ids[end // grain] * grain + end % grain for end in ends]


def _joined(runs: Iterable[KeyRun]) -> tuple[KeyRun, ...]:
    joined: list[KeyRun] = []
    for run in runs:
        if joined and joined[-1][2] == run[2]:
            joined[-1] = (joined[-1][0], run[1], run[2])
        else:
            joined.append(run)
    return tuple(joined)


def _unrepeated(runs: tuple[KeyRun, ...]) -> tuple[KeyRun, ...]:
    by_key = sorted((start + shift, end + shift) for start, end, shift in runs)
    if all(end <= low for (_, end), (low, _) in pairwise(by_key)):
        return runs
    seen: set[int] = set()
    kept: list[KeyRun] = []
    for start, end, shift in runs:
        new = next((at for at in range(start, end) if at + shift in seen), end)
        kept += [(start, new, shift)] if new > start else []
        if new < end:
            break
        seen.update(range(start + shift, end + shift))
    return tuple(kept)


_NO_KEYS = BlockKeys()

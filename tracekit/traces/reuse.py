"""How much of the prompts a prefix cache could give: unbounded, and by its size (exact LRU stack distances over blocks).

The model: an LRU cache of blocks shared by all requests, one after the other in arrival order; a request finds its leading
blocks as they stand in the cache when it comes, then touches all of its blocks, the last one first (engines free a prompt's
tail before its head, so a cached block's prefix is cached too). Running requests pin nothing: an upper bound of what an engine
gets. Only prompt blocks count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.traces.atoms import Atoms, cut_atoms

__all__ = ["ReuseCurve", "reuse_curve"]

Ints = npt.NDArray[np.int64]
NEVER = np.int64(2**62)


@dataclass(slots=True)
class ReuseCurve:
    """Hits of a trace for any cache size. Per reference of an atom: request, blocks, and the depth in the LRU stack at which
    its first block stands (blocks more recently used; ``NEVER``: not seen before)."""

    row: Ints
    size: Ints
    depth: Ints
    block_tokens: int
    input_tokens: Ints
    references: int
    distinct: int
    reseen: int

    def hit_tokens(self, cache_blocks: int | None) -> Ints:
        """Prompt tokens each request finds in a cache of so many blocks (``None``: unbounded)."""
        hit = np.where(self.depth < NEVER, self.size, 0)
        if cache_blocks is not None:
            hit = np.clip(cache_blocks - self.depth, 0, hit)
        blocks = np.bincount(self.row, weights=hit, minlength=len(self.input_tokens)).astype(np.int64)
        return np.minimum(blocks * self.block_tokens, self.input_tokens)

    def share(self, cache_blocks: int | None, *, last_half: bool = False) -> float:
        """Hit tokens / prompt tokens; over all requests, or over the second half of them (a warm cache)."""
        part = slice(len(self.input_tokens) // 2 if last_half else 0, None)
        total = int(self.input_tokens[part].sum())
        return float(self.hit_tokens(cache_blocks)[part].sum() / total) if total else 0.0

    def points(self) -> list[tuple[int, float, float]]:
        """(blocks, share, share over the last half) at powers of two blocks, up to the size that gives all there is."""
        needed = self.blocks_for(1.0)
        sizes = [2**k for k in range(4, max(needed, 16).bit_length() + 1)]
        return [(size, self.share(size), self.share(size, last_half=True)) for size in sizes]

    def blocks_for(self, part: float) -> int:
        """The smallest cache, in blocks, that gives ``part`` (0 to 1) of what an unbounded one gives."""
        known = self.depth < NEVER
        high = int((self.depth[known] + self.size[known]).max(initial=0))
        wanted = part * float(self.hit_tokens(None).sum())
        low = 0
        while low < high:
            middle = (low + high) // 2
            if float(self.hit_tokens(middle).sum()) >= wanted:
                high = middle
            else:
                low = middle + 1
        return low


def reuse_curve(runs: tuple[Ints, Ints, Ints, Ints], input_tokens: Ints, block_tokens: int) -> ReuseCurve:
    """From prefix runs (request from 0, position, first id, length) in the order (request, position), in blocks of the trace."""
    atoms = cut_atoms(*runs)
    size = atoms.size[atoms.atom]
    depth = _depths(atoms, size)
    # what follows a block that is not there is not found either
    held = np.bincount(atoms.atom, minlength=len(atoms.size))
    references, distinct = int(runs[3].sum()), int(atoms.size[held > 0].sum())
    lift = atoms.row * (distinct + 1)
    capped = np.maximum.accumulate(np.minimum(depth, distinct) + lift) - lift if len(depth) else depth
    return ReuseCurve(
        row=atoms.row, size=size, depth=np.where(capped >= distinct, NEVER, capped), block_tokens=block_tokens,
        input_tokens=input_tokens, references=references, distinct=distinct, reseen=references - distinct,
    )  # fmt: skip


def _depths(atoms: Atoms, size: Ints) -> Ints:
    """Blocks used more recently than each reference's first block when its request comes, ``NEVER`` at its first use."""
    n = len(atoms.row)
    begins = np.flatnonzero(np.diff(atoms.row, prepend=-1))
    lengths = np.diff(begins, append=n)
    start = np.repeat(begins, lengths)
    # touched from the tail on: reference k of a request of m stands at m - 1 - k of its m places
    turned = start + np.repeat(begins + lengths - 1, lengths) - np.arange(n)
    atom, weight = atoms.atom[turned], size[turned]
    order = np.argsort(atom, kind="stable")
    before = np.full(n, -1, np.int64)
    same = atom[order][1:] == atom[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    again = np.flatnonzero(before >= 0)
    ahead = np.concatenate([np.zeros(1, np.int64), np.cumsum(weight)])
    # distinct atoms touched in (before, start): those whose own last touch was not after `before`
    depth = np.full(n, NEVER)
    depth[again] = _weight_below(before, weight, start[again], before[again] + 1) - ahead[before[again] + 1]
    placed: Ints = depth[turned]
    return placed


def _weight_below(values: Ints, weight: Ints, upto: Ints, limit: Ints) -> Ints:
    """For each query the weight of the entries before ``upto`` whose value (from -1 on) is below ``limit``.

    A wavelet matrix, one bit of the values at a time, for all queries at once.
    """
    code, wanted = values + 1, limit + 1
    bits = int(max(code.max(initial=0), wanted.max(initial=0))).bit_length()
    low, high, found = np.zeros(len(upto), np.int64), upto.copy(), np.zeros(len(upto), np.int64)
    for bit in range(bits - 1, -1, -1):
        zero = (code >> bit) & 1 == 0
        ranks = np.concatenate([np.zeros(1, np.int64), np.cumsum(zero)])
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.where(zero, weight, 0))])
        zeros = ranks[-1]
        one = (wanted >> bit) & 1 == 1
        found += np.where(one, sums[high] - sums[low], 0)
        low = np.where(one, zeros + low - ranks[low], ranks[low])
        high = np.where(one, zeros + high - ranks[high], ranks[high])
        kept = np.argsort(~zero, kind="stable")
        code, weight = code[kept], weight[kept]
    return found

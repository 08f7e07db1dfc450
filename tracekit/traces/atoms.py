"""Prefix runs cut into atoms: stretches of block ids that every request holds whole or not at all.

A session's prompt grows turn by turn and repeats the turns before it; as atoms, millions of block references are some ten
thousand, and whatever is computed per block can be computed per atom.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Atoms", "cut_atoms"]

Ints = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class Atoms:
    """``row`` (request), ``pos`` (block position) and ``atom`` have one entry per reference, in the order (request, position);
    ``first`` and ``size`` (blocks) one per atom."""

    row: Ints
    pos: Ints
    atom: Ints
    first: Ints
    size: Ints


def cut_atoms(row: Ints, pos: Ints, first: Ints, length: Ints) -> Atoms:
    """Atoms of runs in the order (request, position). An id that a request holds twice is kept where it stands first."""
    edges = np.unique(np.concatenate([first, first + length]))
    low, high = np.searchsorted(edges, first), np.searchsorted(edges, first + length)
    counts = high - low
    offset = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    atom = np.repeat(low, counts) + offset
    owner = np.repeat(row, counts)
    at = np.repeat(pos - first, counts) + edges[atom]
    size = np.diff(edges, append=edges[-1:])
    key = owner * len(edges) + atom
    kept = np.unique(key, return_index=True)[1]
    if len(kept) < len(key):
        kept.sort()
        owner, at, atom = owner[kept], at[kept], atom[kept]
    return Atoms(row=owner, pos=at, atom=atom, first=edges, size=size)

"""Prefix identity as runs of consecutive block ids: cutting ids into runs, putting them in order, finding what is shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Runs", "arrange_runs", "cut_runs", "shared_blocks"]

Ints = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class Runs:
    """Runs of a trace in the order (request, position); ``shared`` has one entry per request.

    ``req_idx``, ``pos``, ``first`` and ``length`` are int64 of one length, in blocks of the trace.
    """

    req_idx: Ints
    pos: Ints
    first: Ints
    length: Ints
    shared: Ints


def cut_runs(ids: npt.NDArray[Any], counts: Ints, first_row: int) -> tuple[Ints, Ints, npt.NDArray[Any], Ints]:
    """Runs (row, position, first id, length) of the flat ``ids`` of rows that own ``counts`` of them each."""
    total = len(ids)
    if not total:
        empty = np.zeros(0, np.int64)
        return empty, empty, ids, empty
    ends = np.cumsum(counts)
    begins = ends - counts
    fresh = np.empty(total, bool)
    fresh[0] = True
    np.not_equal(ids[1:], ids[:-1] + ids.dtype.type(1), out=fresh[1:])
    fresh[begins[counts > 0]] = True
    starts = np.flatnonzero(fresh)
    row = np.searchsorted(ends, starts, side="right")
    length = np.diff(starts, append=total)
    return row + first_row, starts - begins[row], ids[starts], length


def _dense(row: Ints, pos: Ints, first: npt.NDArray[Any], length: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Runs with ids renumbered by first appearance, so that hashes form runs; ids that are small enough stay."""
    total = int(length.sum())
    if not total or int(first.max()) < max(4 * total, 1 << 20):
        return row, pos, first.astype(np.int64), length
    offset = np.arange(total, dtype=np.int64) - np.repeat(np.cumsum(length) - length, length)
    ids = np.repeat(first, length) + offset.astype(first.dtype)
    _, seen, code = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.empty(len(seen), np.int64)
    rank[np.argsort(seen, kind="stable")] = np.arange(len(seen))
    begins = np.flatnonzero(np.diff(row, prepend=-1))
    counts = np.add.reduceat(length, begins)
    owner, at, new_first, new_length = cut_runs(rank[code], counts, 0)
    return row[begins][owner], at, new_first, new_length


def arrange_runs(runs: tuple[npt.NDArray[Any], ...], order: Ints | None, rows: int) -> Runs:
    """Staged runs to trace order. ``order[i]`` is the staged row of request ``i`` (``None``: itself)."""
    row, pos, first, length = _dense(*runs)
    if order is not None:
        inverse = np.empty(rows, np.int64)
        inverse[order] = np.arange(rows)
        row = inverse[row]
        by_request = np.argsort(row, kind="stable")
        row, pos, first, length = row[by_request], pos[by_request], first[by_request], length[by_request]
    return Runs(req_idx=row, pos=pos, first=first, length=length, shared=shared_blocks(row, first, length, rows))


def shared_blocks(row: Ints, first: Ints, length: Ints, rows: int) -> Ints:
    """Leading blocks of each request whose id occurs in at least one other run of the trace, int64 of length ``rows``.

    An id that one request holds twice counts as shared: an upper bound.
    """
    shared = np.zeros(rows, np.int64)
    if not len(row):
        return shared
    part = np.empty(len(first), np.int64)
    narrow = np.int32 if 2 * int((first + length).max()) + 1 < 2**31 else np.int64
    first, length = first.astype(narrow), length.astype(narrow)
    by_id = np.argsort(first)
    part[by_id] = _shared_part(first[by_id], length[by_id])
    broken = part < length
    ahead: Ints = np.cumsum(broken) - broken
    begins = np.flatnonzero(np.diff(row, prepend=-1))
    base: Ints = np.repeat(ahead[begins], np.diff(begins, append=len(row)))
    np.add.at(shared, row, np.where(ahead == base, part, 0))
    return shared


def _shared_part(first: npt.NDArray[Any], length: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Leading ids of each run that two or more runs hold; runs in the order of ``first``."""
    edges = np.sort(np.concatenate([2 * first, 2 * (first + length) + 1]))  # at one id, begins before ends
    is_end = edges & 1
    held = np.cumsum(1 - 2 * is_end, dtype=np.int32)
    index = np.arange(len(edges), dtype=np.int32)
    # the next edge at which fewer than two runs go on: their number falls only where a run ends
    alone = np.minimum.accumulate(np.where((is_end == 1) & (held < 2), index, np.int32(len(edges) - 1))[::-1])[::-1]
    begins = np.flatnonzero(is_end == 0)
    company = held[begins] > 1
    company[:-1] |= first[1:] == first[:-1]
    part: npt.NDArray[Any] = np.where(company, np.minimum((edges[alone[begins]] >> 1) - first, length), 0)
    return part

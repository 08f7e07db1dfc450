"""Rows of a source taken again, some of them more than once, at other moments."""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt

from tracekit.traces.source import TraceSource

__all__ = ["rows_again"]

Ints = npt.NDArray[np.int64]
_ALIGNED = (
    "req_idx", "prompt_tokens", "output_tokens", "max_tokens", "predicted_tokens", "priority", "tenant", "class_", "obs_queue_ns",
    "obs_ttft_ns", "obs_tpot_ns", "obs_e2e_ns", "slo_ttft_ns", "slo_tpot_ns", "think_ns", "counted",
)  # fmt: skip


def rows_again(source: TraceSource, rows: Ints, shift: Ints, copies: Ints, group: Ints) -> TraceSource:
    """``rows`` of ``source``, each ``shift`` ns later, in the order given, which is that of a source: roots by arrival, each
    followed by its turns. ``group``: of every row of ``source``, what comes again as one; ``copies``: of every one of ``rows``,
    how often its group came before. What only one group holds of a prefix is another content in each copy, or a copy would find
    its own KV in the cache; what several hold (system prompts) is the same."""
    found = copy.copy(source)
    for name in _ALIGNED:
        column = getattr(source, name)
        setattr(found, name, None if column is None else column[rows])
    found.request_id = None if source.request_id is None else [source.request_id[row] for row in rows.tolist()]
    child = np.zeros(len(rows), np.bool_)
    if source.parent is not None:  # a tree stands together, so that a parent moves by as many places as its child
        parent = source.parent[rows]
        child = parent >= 0
        found.parent = np.where(child, parent - rows + np.arange(len(rows)), -1)
    found.arrival_ns = _moved(source.arrival_ns, rows, shift)
    found.start_ns = source.start_ns[rows] + shift
    for name in ("deadline_ns", "cancel_ns"):  # of a turn they count from its release
        column = getattr(source, name)
        setattr(found, name, None if column is None else _moved(column, rows, np.where(child, 0, shift)))
    if source.run_offsets is not None:
        found.shared_blocks = source.shared_blocks[rows]
        _prefixes(source, found, rows, copies, group)
    return found


def _moved(moment: Ints, rows: Ints, shift: Ints) -> Ints:
    taken = moment[rows]
    return np.where(taken < 0, taken, np.maximum(taken + shift, 0))


def _prefixes(source: TraceSource, found: TraceSource, rows: Ints, copies: Ints, group: Ints) -> None:
    """Prefix runs of the rows, cut where groups begin or stop to share, and renamed in every copy but the first."""
    assert source.run_offsets is not None
    owner = np.repeat(np.arange(source.total, dtype=np.int64), np.diff(source.run_offsets))
    edges = np.unique(np.concatenate([source.run_first, source.run_first + source.run_len]))
    low = np.searchsorted(edges, source.run_first)
    counts = np.searchsorted(edges, source.run_first + source.run_len) - low
    run = np.repeat(np.arange(len(owner)), counts)
    atom = low[run] + np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
    own = group[owner[run]]
    least, most = np.full(len(edges), np.iinfo(np.int64).max), np.full(len(edges), -2, np.int64)
    np.minimum.at(least, atom, own)
    np.maximum.at(most, atom, own)
    private = least == most
    size = np.diff(edges, append=edges[-1:])[atom]
    position = source.run_pos[run] + edges[atom] - source.run_first[run]
    begins = np.searchsorted(owner[run], np.arange(source.total + 1))
    take_counts = np.diff(begins)[rows]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(take_counts)])
    take = np.repeat(begins[rows] - offsets[:-1], take_counts) + np.arange(int(offsets[-1]))
    stride = int(edges[-1]) + 1 if len(edges) else 0
    renamed = np.where(private[atom[take]], np.repeat(copies, take_counts), 0) * stride
    found.run_offsets = offsets
    found.run_pos, found.run_len = position[take], size[take]
    found.run_first = edges[atom[take]] + renamed

"""Traffic like a trace's: its stretches of time drawn again, with replacement, and put end to end.

The counted part of a slice is cut into equal stretches; a draw fills each place with one of them, so that bursts, lengths and
sessions keep their shape inside a stretch while a busy one may come twice and a calm one not at all. A session comes whole, with
the stretch in which it starts; the lead-in stays as it is. What only one stretch holds of a prefix is another content each time
the stretch comes again, or its copy would find its own KV in the cache; what several stretches hold (system prompts) is the same.
"""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt

from tracekit.traces.source import TraceSource

__all__ = ["MOST", "redrawn", "stretches_of"]

Ints = npt.NDArray[np.int64]
MOST, LEAST = 20, 6
"""Stretches of a slice: more break bursts up, fewer say nothing of the spread."""
PER_STRETCH = 4
"""Independent starts (sessions, or requests without one) that a stretch must hold on average."""
_ALIGNED = (
    "req_idx", "prompt_tokens", "output_tokens", "max_tokens", "predicted_tokens", "priority", "tenant", "class_", "obs_queue_ns",
    "obs_ttft_ns", "obs_tpot_ns", "obs_e2e_ns", "slo_ttft_ns", "slo_tpot_ns", "think_ns", "counted",
)  # fmt: skip


def stretches_of(source: TraceSource) -> tuple[Ints, int, int] | None:
    """The stretch of every request, int64, -1 in the lead-in; when the first begins and how long each is, ns on the engine
    clock. ``None`` where there are too few starts, or no time, to cut."""
    counted = source.counted
    starts = counted if source.parent is None else counted & (source.parent < 0)
    count = min(MOST, int(starts.sum()) // PER_STRETCH)
    if count < LEAST or source.window_ns < count:
        return None
    begin = int(source.start_ns[counted][0]) if source.part.window_ns is None else _begin(source)
    length = source.window_ns // count
    at = np.clip((source.start_ns - begin) // length, 0, count - 1)
    return np.where(counted, at, -1), begin, length


def _begin(source: TraceSource) -> int:
    """Where the window begins on the engine clock: the lead-in before it is scaled like all arrivals."""
    assert source.part.window_ns is not None
    return round((source.part.window_ns[0] - source.origin_ns) / source.rate_scale)


def redrawn(source: TraceSource, seed: int) -> TraceSource:
    """One draw of the traffic of ``source``, by ``seed``; its rows in the order that a source has. ``source`` itself, copied,
    where it cannot be cut into stretches."""
    cut = stretches_of(source)
    if cut is None:
        return copy.copy(source)
    stretch, begin, length = cut
    count = int(stretch.max()) + 1
    drawn = np.random.default_rng([seed, 1]).integers(0, count, count)
    where = [np.flatnonzero(stretch == each) for each in range(count)]
    lead = np.flatnonzero(stretch < 0)
    rows = np.concatenate([lead, *(where[each] for each in drawn)])
    sizes = np.array([len(lead), *(len(where[each]) for each in drawn)], np.int64)
    before = [int((drawn[:at] == each).sum()) for at, each in enumerate(drawn)]
    place = np.repeat(np.arange(-1, count), sizes)
    # what lies behind the end of the last stretch (the rest of a division) stays within its place, or the order would change
    inside = np.minimum(source.start_ns[rows] - begin - stretch[rows] * length, length - 1)
    shift = np.where(place < 0, 0, begin + place * length + inside - source.start_ns[rows])
    return _taken(source, rows, shift, np.repeat(np.array([0, *before], np.int64), sizes), stretch)


def _taken(source: TraceSource, rows: Ints, shift: Ints, copies: Ints, stretch: Ints) -> TraceSource:
    """``rows`` of ``source``, each ``shift`` later; ``copies``: how often its stretch came before."""
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
        _prefixes(source, found, rows, copies, stretch)
    return found


def _moved(moment: Ints, rows: Ints, shift: Ints) -> Ints:
    taken = moment[rows]
    return np.where(taken < 0, taken, np.maximum(taken + shift, 0))


def _prefixes(source: TraceSource, found: TraceSource, rows: Ints, copies: Ints, stretch: Ints) -> None:
    """Prefix runs of the rows, cut where stretches begin or stop to share, and renamed in every copy but the first."""
    assert source.run_offsets is not None
    owner = np.repeat(np.arange(source.total, dtype=np.int64), np.diff(source.run_offsets))
    edges = np.unique(np.concatenate([source.run_first, source.run_first + source.run_len]))
    low = np.searchsorted(edges, source.run_first)
    counts = np.searchsorted(edges, source.run_first + source.run_len) - low
    run = np.repeat(np.arange(len(owner)), counts)
    atom = low[run] + np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
    own = stretch[owner[run]]
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

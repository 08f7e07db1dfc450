"""Spans cut at the first token and at the edges of a window: the stretches that a request's time is summed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from replay_engine.types import NEVER, Phase

__all__ = ["Ends", "Stretches", "cut", "ends_of", "stretches_of"]

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]
Flags = npt.NDArray[np.bool_]

_MOVED = (int(Phase.transfer), int(Phase.decode_queue))


@dataclass(frozen=True, slots=True)
class Stretches:
    """Columns of one length. ``row``: of the outcome; ``later``: after the first token; ``phase`` and ``reason``: codes;
    ``since_ns``: when the span began that it is a piece of; ``lost``: of a life that ended with its replica; ``fetched``: right
    after KV came from another engine."""

    row: Ints
    replica: Ints
    phase: Ints
    reason: Ints
    begin_ns: Ints
    end_ns: Ints
    since_ns: Ints
    later: Flags
    lost: Flags
    fetched: Flags

    def __len__(self) -> int:
        return len(self.row)

    def take(self, which: Ints | Flags) -> Stretches:
        """Those of ``which``."""
        which = np.flatnonzero(which) if which.dtype == np.bool_ else which
        return Stretches(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    @property
    def length_ns(self) -> Ints:
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True)
class Ends:
    """Per outcome row, on the engine clock: arrival, first token (``NEVER``: none came) and the end of the request's life."""

    arrival: Ints
    first: Ints
    last: Ints


def ends_of(outcomes: Rows, spans: Rows) -> Ends:
    """Of ``outcomes`` by request. Who has no E2E ends with its last span, who has no span when it arrives."""
    arrival: Ints = outcomes["arrival_ns"].astype(np.int64)
    first = np.where(outcomes["ttft_ns"] >= 0, arrival + outcomes["ttft_ns"], NEVER)
    last = arrival.copy()
    row = _rows_of(outcomes, spans)
    np.maximum.at(last, row[row >= 0], spans["end_ns"][row >= 0])
    last = np.where(outcomes["e2e_ns"] >= 0, arrival + outcomes["e2e_ns"], last)
    return Ends(arrival, first, last)


def _rows_of(outcomes: Rows, spans: Rows) -> Ints:
    """The outcome row of each span; -1: its request has none (the run was interrupted)."""
    if not len(outcomes):
        return np.full(len(spans), -1)
    requests = np.ascontiguousarray(outcomes["request"])
    row = np.minimum(np.searchsorted(requests, spans["request"]), len(requests) - 1)
    return np.where(requests[row] == spans["request"], row, -1)


def stretches_of(tables: Mapping[str, Rows], ends: Ends) -> Stretches:
    """All spans that last, in order, each before or after its request's first token."""
    spans, outcomes = tables["spans"], tables["outcomes"]
    row = _rows_of(outcomes, spans)
    phase = spans["phase"].astype(np.int64)
    same = np.append(False, row[1:] == row[:-1])
    fetched = np.append(False, np.isin(phase[:-1], _MOVED)) & same
    begin: Ints = spans["start_ns"].astype(np.int64)
    found = Stretches(
        row, spans["replica"].astype(np.int64), phase, spans["reason"].astype(np.int64), begin, spans["end_ns"].astype(np.int64),
        begin, np.zeros(len(row), bool), _lost(spans, row, len(outcomes)), fetched,
    )  # fmt: skip
    found = found.take((row >= 0) & (found.end_ns > found.begin_ns))
    return _at_first_token(found, ends)


def _lost(spans: Rows, row: Ints, total: int) -> Flags:
    """Spans before a request's last wait in the queue: it waits there once, unless it is sent again after a failure."""
    queued = (spans["phase"] == Phase.queued) & (row >= 0)
    waits = np.bincount(row[queued], minlength=total)
    if not len(waits) or waits.max(initial=0) < 2:
        return np.zeros(len(row), bool)
    again = np.full(total, -1, np.int64)
    np.maximum.at(again, row[queued], spans["start_ns"][queued])
    again[waits < 2] = -1
    lost: Flags = (spans["end_ns"] <= again[row]) & (spans["phase"] != Phase.dispatch)
    return lost


def _at_first_token(found: Stretches, ends: Ends) -> Stretches:
    first = ends.first[found.row]
    across = (found.begin_ns < first) & (first < found.end_ns)
    whole = replace(found, later=found.begin_ns >= first, end_ns=np.where(across, first, found.end_ns))
    if not across.any():
        return whole
    after = replace(found, begin_ns=first, later=np.ones(len(first), bool)).take(across)
    return Stretches(*(np.concatenate((getattr(whole, name), getattr(after, name))) for name in whole.__dataclass_fields__))


def cut(found: Stretches, t0_ns: int | None, t1_ns: int | None) -> Stretches:
    """What lies between two moments (ns)."""
    if t0_ns is None and t1_ns is None:
        return found
    begin = found.begin_ns if t0_ns is None else np.maximum(found.begin_ns, t0_ns)
    end = found.end_ns if t1_ns is None else np.minimum(found.end_ns, t1_ns)
    return replace(found, begin_ns=begin, end_ns=end).take(end > begin)

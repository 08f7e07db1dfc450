"""Who held what others waited for: the token budget by prompts, seats, KV blocks, or the place at the head of the queue.

``blame = Blame.of(data)``; ``lost = waiting(blame, rows)`` is the time that some requests lost, iteration by iteration;
``budget_holders(blame, lost)`` and its like share it out among those that held the resource just then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay_engine.types import Phase, Refusal
from tracekit.diagnosis.attribution import Blame
from tracekit.diagnosis.lanes import Lane, Moments
from tracekit.diagnosis.stretches import Stretches

__all__ = [
    "Holders",
    "Lost",
    "block_holders",
    "budget_holders",
    "head_holders",
    "inside",
    "interference_holders",
    "seat_holders",
    "waiting",
]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

QUEUES = (Phase.queued,)
_SEATED = (Phase.prefill, Phase.prefill_wait, Phase.decode, Phase.stalled, Phase.batch_hold)
_HOLDING = (*_SEATED, Phase.paused)


@dataclass(frozen=True, slots=True)
class Lost:
    """``per_iteration``: ns that the requests concerned lost in each row of ``iterations``; ``total_ns`` all they lost, in which
    iteration or between two of them."""

    per_iteration: Floats
    total_ns: int

    @property
    def in_iterations_ns(self) -> int:
        return round(float(self.per_iteration.sum()))


@dataclass(frozen=True, slots=True)
class Holders:
    """Who held a resource while others lost time, who held most first. ``held_ns``: their shares of ``lost_ns``, which had been
    lost in iterations; ``others_ns`` is what no single request is named for (decodes, where the token budget is shared out)."""

    resource: str
    requests: Ints
    held_ns: Floats
    lost_ns: int
    others_ns: int = 0

    @property
    def shares(self) -> Floats:
        """Of the lost time."""
        found: Floats = self.held_ns / max(self.lost_ns, 1)
        return found

    def fewest(self, share: float) -> Ints:
        """As few requests as together held ``share`` of the lost time, or all if they did not."""
        enough = int(np.searchsorted(np.cumsum(self.held_ns), share * self.lost_ns)) + 1
        return self.requests[:enough]

    def by(self, codes: npt.NDArray[np.int32] | Ints, names: list[str]) -> dict[str, float]:
        """Shares by label of the holders, the largest first. ``codes``: of every request index, -1 for none."""
        own = codes[self.requests]
        sums = {name: float(self.shares[own == code].sum()) for code, name in enumerate(names)}
        return dict(sorted(((name, share) for name, share in sums.items() if share), key=lambda item: -item[1]))


def waiting(
    blame: Blame, rows: Flags, *, phases: Iterable[Phase] = QUEUES, reasons: Iterable[Refusal] | None = None
) -> Lost:  # fmt: skip
    """Time that the requests of outcome ``rows`` (a mask) spent in ``phases``: waiting in the queue unless others are named, e.g.
    ``stalled``. ``decode``: not their decoding, but what others' prefill added to it. ``reasons``: only in iterations that
    refused the head of the queue for one of them."""
    codes, wanted = [int(phase) for phase in phases], None if reasons is None else [int(reason) for reason in reasons]
    found = blame.stretches.take(rows[blame.stretches.row] & np.isin(blame.stretches.phase, codes) & ~blame.stretches.lost)
    lost = np.zeros(len(blame.tables["iterations"]))
    total = 0
    for replica, lane in blame.lanes.items():
        own = found.take(found.replica == replica)
        for decoding in (False, True):
            part = own.take((own.phase == Phase.decode) == decoding)
            if not len(part):
                continue
            amount = lane.interference if decoding else lane.duration
            during = _coverage(lane, part) * amount
            if wanted is not None:
                during = np.where(np.isin(lane.reason, wanted), during, 0.0)
            lost[lane.offset : lane.offset + len(during)] += during
            total += round(float(during.sum())) if decoding or wanted is not None else int(part.length_ns.sum())
    return Lost(lost, total)


def _coverage(lane: Lane, own: Stretches) -> Floats:
    """How many of the stretches last through each iteration; those that begin or end within one count for their part of it."""
    size = len(lane.start)
    steps, parts = np.zeros(size + 1), np.zeros(size)
    for sign, moments in ((1.0, Moments(lane, own.begin_ns)), (-1.0, Moments(lane, own.end_ns))):
        at = np.maximum(moments.at, 0)
        inside = np.clip(moments.ns - lane.start[at], 0, lane.duration[at])
        share = np.divide(inside, lane.duration[at], out=np.zeros(len(at)), where=lane.duration[at] > 0)
        steps += sign * np.bincount(at, minlength=size + 1)
        parts -= sign * np.bincount(at, weights=share, minlength=size)
    found: Floats = np.cumsum(steps)[:size] + parts
    return np.maximum(found, 0.0)


def _holders(blame: Blame, resource: str, lost: Lost, request: Ints, held: Floats, others: float = 0.0) -> Holders:
    total = int(blame.requests.max(initial=-1)) + 1
    sums = np.asarray(np.bincount(request, weights=held, minlength=total), np.float64)
    order = np.argsort(-sums, kind="stable")
    order = order[sums[order] > 0.5]
    return Holders(resource, order, sums[order], lost.in_iterations_ns, round(others))


def budget_holders(blame: Blame, lost: Lost) -> Holders:
    """Whose prompts filled the token budget: lost time of an iteration by their part of its tokens. Decodes are ``others_ns``."""
    entries, rows, at = blame.tables["prefill_entries"], blame.tables["iterations"], blame.own.at
    tokens = np.maximum(rows["prefill_tokens"].astype(np.float64) + rows["decode_seqs"], 1.0)
    held = lost.per_iteration[at] * entries["query_len"] / tokens[at]
    decodes = float((lost.per_iteration * rows["decode_seqs"] / tokens).sum())
    return _holders(blame, "budget", lost, entries["request"].astype(np.int64), held, decodes)


def interference_holders(blame: Blame, lost: Lost) -> Holders:
    """Whose prompts made an iteration longer: lost time of an iteration by their part of its prefill tokens."""
    entries, rows, at = blame.tables["prefill_entries"], blame.tables["iterations"], blame.own.at
    held = lost.per_iteration[at] * entries["query_len"] / np.maximum(rows["prefill_tokens"][at], 1)
    return _holders(blame, "interference", lost, entries["request"].astype(np.int64), held)


def head_holders(blame: Blame, lost: Lost) -> Holders:
    """Who stood refused at the head of the queue meanwhile."""
    rows = blame.tables["iterations"]
    stood = np.flatnonzero((rows["head_request"] >= 0) & (lost.per_iteration > 0))
    return _holders(blame, "head", lost, rows["head_request"][stood].astype(np.int64), lost.per_iteration[stood])


def inside(blame: Blame, lost: Lost, requests: Ints) -> tuple[float, float]:
    """The share of the lost time that fell into iterations which prefilled one of ``requests``, and the share of all
    iterations' time that these took."""
    entries, rows = blame.tables["prefill_entries"], blame.tables["iterations"]
    during = np.zeros(len(rows), bool)
    during[blame.own.at[np.isin(entries["request"], requests)]] = True
    time = max(int(rows["duration_ns"].sum()), 1)
    return float(lost.per_iteration[during].sum()) / max(lost.total_ns, 1), int(rows["duration_ns"][during].sum()) / time


def seat_holders(blame: Blame, lost: Lost) -> Holders:
    """Who had seats meanwhile: lost time of an iteration in equal parts."""
    each = lost.per_iteration / np.maximum(blame.tables["iterations"]["running"], 1)
    own, first, last = _held(blame, _SEATED)
    sums = np.concatenate(([0.0], np.cumsum(each)))
    return _holders(blame, "seats", lost, blame.requests[own.row], sums[last] - sums[first])


def block_holders(blame: Blame, lost: Lost, block_size: int) -> Holders:
    """Whose KV filled the cache meanwhile: lost time of an iteration by their tokens there, out of what is in use. Blocks that
    several share count for each of them."""
    rows, entries, at = blame.tables["iterations"], blame.tables["prefill_entries"], blame.own.at
    each = lost.per_iteration / np.maximum(rows["kv_used"].astype(np.float64) * block_size, 1.0)
    number = np.arange(len(each), dtype=np.float64)
    sums, ramp = (np.concatenate(([0.0], np.cumsum(values))) for values in (each, each * number))
    own, first, last = _held(blame, _HOLDING)
    request = blame.requests[own.row]
    decoding = own.phase == Phase.decode
    begun = _decoded_before(own, first, last)
    tokens = np.where(decoding | (own.phase == Phase.stalled), blame.tables["outcomes"]["prompt_tokens"][own.row] + begun, 0)
    still = (own.phase == Phase.prefill_wait) | (own.phase == Phase.paused)
    tokens = np.where(still, np.maximum(blame.own.kv_before(request, first), tokens), tokens).astype(np.float64)
    held = tokens * (sums[last] - sums[first])
    grown = ramp[last] - ramp[first] - (first - 1) * (sums[last] - sums[first])
    held = np.where(decoding, held + grown, held)
    whose = np.concatenate((request, entries["request"].astype(np.int64)))
    return _holders(blame, "blocks", lost, whose, np.concatenate((held, each[at] * entries["kv_len"])))


def _held(blame: Blame, phases: tuple[Phase, ...]) -> tuple[Stretches, Ints, Ints]:
    """Stretches of some phases, and the rows of ``iterations`` each lasts through: from, and up to but without."""
    found = blame.stretches
    found = found.take(np.isin(found.phase, [int(phase) for phase in phases]) & np.isin(found.replica, [*blame.lanes]))
    first, last = np.zeros(len(found), np.int64), np.zeros(len(found), np.int64)
    for replica, lane in blame.lanes.items():
        own = found.replica == replica
        first[own] = np.searchsorted(lane.start, found.begin_ns[own], side="left") + lane.offset
        last[own] = np.searchsorted(lane.end, found.end_ns[own], side="right") + lane.offset
    return found, first, np.maximum(last, first)


def _decoded_before(own: Stretches, first: Ints, last: Ints) -> Ints:
    """Tokens of its answer that each stretch's request had decoded when it began. Stretches are in order of request and time."""
    length = np.where(own.phase == Phase.decode, last - first, 0)
    sums = np.cumsum(length) - length
    starts = np.append(True, own.row[1:] != own.row[:-1])
    base = np.maximum.accumulate(np.where(starts, np.arange(len(own)), 0)) if len(own) else np.zeros(0, np.int64)
    found: Ints = sums - sums[base]
    return found

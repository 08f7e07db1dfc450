"""Where time went beside where it should have gone, and what of the difference has no name: how much, when, where, whose.

Three looks, each at what the ones before it leave over. Iterations that took longer than the profile says of what they computed;
time of requests that no span accounts for, or a phase that nothing is expected of; and what requests took beyond the model
(``expectation.py``) that no finding claims. Each is narrowed to the stretch in which it stands out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.attribution import Attribution
from tracekit.diagnosis.claim import Remaining, seconds
from tracekit.diagnosis.expectation import Expectation, expect
from tracekit.diagnosis.finding import Expected, Kind, Unnamed, Where
from tracekit.diagnosis.iteration_cost import CostForm

if TYPE_CHECKING:
    from tracekit.diagnosis.view import View

__all__ = ["expected_of", "stands_out", "stretches"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LEAST_SLOW, LEAST_SILENT_NS, LEAST_OVER = 0.1, 1e6, 0.5
"""From where on an iteration is slow (beyond its profile, by that), a request's time silent, or its way longer than expected."""
SHARE, SHARE_OVER = 0.01, 0.05
"""Of all the time that requests took: below, an effect is not told. The model is no better than a few in a hundred."""
MOST = 3
ALL = 0.9
_ROUNDING_NS = 2.0
_BLOCK = 1 << 14
_SILENT = {"not_explained": "in no phase at all", "ingress": "on their way to the engine", "egress": "on their way back"}
_WAITING = ("queue", "prefill_wait", "decode_queue", "under_way")
_OPEN = ("under_way", "unrefused", "prefill", "first_step", "batch_hold", "decode", "interference", *_SILENT)
"""Kinds of time (``parts.py``) that give no reason why a request was not served."""


def expected_of(view: View, remaining: Remaining) -> Expected | None:
    """The model beside the run, and the effects without a name. ``remaining``: excess that no finding has claimed. ``None`` for a
    run that kept no iterations, or whose profile does not say what they cost."""
    if not view.data.has_iterations or not len(view.data.outcomes) or not view.data.profile.latency.known:
        return None
    found = _Look(view, remaining)
    effects = sorted((*found.slow(), *found.silent(), *found.beyond()), key=lambda each: -each.over_ns)
    beside = found.model.beside(view.parts.split)
    kinds = tuple(Kind(name=name, expected_ns=round(should), actual_ns=round(did)) for name, (should, did) in beside.items())
    return Expected(load=found.model.load, kinds=kinds, unnamed=tuple(effects[:MOST]))


@dataclass(frozen=True, slots=True)
class Span:
    """Places ``low`` to ``high``, the last one not included."""

    low: int
    high: int


def stands_out(amount: Floats, of: Floats, least: float) -> Span | None:
    """The run of neighbours that holds most of ``amount`` beyond a bar: ``least`` times ``of``, or half of the mean ratio of all
    that are above that. ``None`` where nothing is."""
    above = amount > least * of
    if not above.any():
        return None
    bar = max(least, float(amount[above].sum() / max(float(of[above].sum()), 1e-9)) / 2)
    sums = np.concatenate(([0.0], np.cumsum(amount - bar * of)))
    gain = sums - np.minimum.accumulate(sums)
    high = int(np.argmax(gain))
    low = high - int(np.argmin(sums[: high + 1][::-1]))
    return Span(low, high) if high > low else None


def stretches(amount: Floats, of: Floats, least: float) -> Iterator[Span]:
    """One after the other, the largest first; each without those before it."""
    left = amount.copy()
    for _ in range(MOST):
        found = stands_out(left, of, least)
        if found is None:
            return
        yield found
        left[found.low : found.high] = 0.0


class _Look:
    """One run, and what of its time has been told already: ``taken``, ns per outcome row."""

    def __init__(self, view: View, remaining: Remaining) -> None:
        self.view, self.data, self.remaining = view, view.data, remaining
        rows = view.data.outcomes
        self.model = expect(view.data, view.parts.first["dispatch"])
        self.order: Ints = np.argsort(rows["arrival_ns"], kind="stable")
        self.total = max(float(np.maximum(rows["e2e_ns"], 0).sum()), 1.0)
        self.taken = np.zeros(len(rows))

    def slow(self) -> Iterator[Unnamed]:
        """Stretches of an engine's iterations that were longer than the profile says."""
        for replica, lane in self.view.parts.blame.lanes.items():
            rest = beyond_profile(lane.rows, lane.form)
            if not _any_slow(rest, lane.duration):
                continue
            for span in stretches(rest, np.maximum(lane.duration - rest, 0.0), LEAST_SLOW):
                inside = np.zeros(len(rest))
                inside[span.low : span.high] = rest[span.low : span.high]
                through = _lived_through(self.view, replica, inside)
                if through.sum() >= SHARE * self.total:
                    self.taken += through
                    yield self._slow(replica, lane.rows[span.low : span.high], rest[span.low : span.high], through, len(rest))

    def _slow(self, replica: int, rows: npt.NDArray[np.void], rest: Floats, through: Floats, of: int) -> Unnamed:
        took, more, lost = float(rows["duration_ns"].sum()), float(rest.sum()), float(through.sum())
        t0, t1 = int(rows["start_ns"][0]), int(rows["start_ns"][-1] + rows["duration_ns"][-1])
        who = "iterations" if len(self.data.replicas) < 2 else f"iterations of replica {replica}"
        when = f"all {who}" if len(rows) >= ALL * of else f"{who} {_between(t0, t1)}"
        worst = rows[np.argsort(-rest, kind="stable")[:10]]
        return Unnamed(
            kind="slow iterations",
            what=f"{when} took {took / max(took - more, 1.0):.2f} times what the profile says of what they computed,"
            f" {seconds(more)} more, which requests lived through for {seconds(lost)} together",
            over_ns=round(lost), share=lost / self.total,
            where=Where(t0_ns=t0, t1_ns=t1, requests=_most(self.view, through),
                        iterations=tuple(zip(worst["replica"].tolist(), worst["iteration"].tolist(), strict=True))),
        )  # fmt: skip

    def silent(self) -> Iterator[Unnamed]:
        """Stretches of arrivals whose requests spent time that nothing accounts for."""
        parts = self.view.parts
        for kind in _SILENT:
            amount = (parts.first[kind] + parts.later[kind]).astype(np.float64)
            for span in stretches(amount[self.order], np.ones(len(amount)), LEAST_SILENT_NS):
                inside = self.order[span.low : span.high]
                spent = float(amount[inside].sum())
                if spent >= SHARE * self.total:
                    self.taken[inside] += amount[inside]
                    where = self._where(inside, amount)
                    what = f"requests that came {_between(where.t0_ns, where.t1_ns)} spent {seconds(spent / len(inside))} each"
                    yield Unnamed(kind=kind, what=f"{what} {_SILENT[kind]}", over_ns=round(spent), share=spent / self.total,
                                  where=where)  # fmt: skip

    def beyond(self) -> Iterator[Unnamed]:
        """Stretches of arrivals whose requests took longer than the model expects, for no reason that has a name."""
        model, over = self.model, self._nameless()
        over = np.where(self.view.counted, np.minimum(over, np.maximum(over - self.taken, 0.0)), 0.0)
        should = model.alone_first + model.wait + model.alone_later + model.shared
        for span in stretches(over[self.order], should[self.order], LEAST_OVER):
            inside = self.order[span.low : span.high]
            lost = float(over[inside].sum())
            if lost >= SHARE_OVER * self.total:
                where = self._where(inside, over)
                kind, text = _kinds(model, self.view.parts.split, inside)
                what = f"requests that came {_between(where.t0_ns, where.t1_ns)} took {seconds(lost)} more together than model"
                yield Unnamed(kind=kind, what=f"{what} and findings account for: {text}", over_ns=round(lost),
                              share=lost / self.total, where=where)  # fmt: skip

    def _nameless(self) -> Floats:
        """Per outcome row: time beyond the model, ns. Of what is in excess that counts which no finding claims. What is tolerated
        counts without waits for a known reason, as far as excess in this run is unclaimed: a cause slows others too."""
        view, model, pots = self.view, self.model, self.remaining
        over = np.zeros(len(self.data.outcomes))
        unclaimed = min(pots.left() / view.excess_ns, 1.0) if view.excess_ns > 0 else 1.0
        sides = (
            (model.over_first, view.first_excess, pots.first, view.parts.first),
            (model.over_later, view.later_excess, pots.later, view.parts.later),
        )
        for beyond, excess, pot, families in sides:
            beyond = np.nan_to_num(beyond)
            calm = np.where(excess > 0, np.maximum(beyond - excess, 0.0), beyond)
            reasoned = np.sum([each for name, each in families.items() if name not in _OPEN], axis=0)
            known = np.where(excess > 0, 0.0, reasoned)
            left = np.sum(list(pot.values()), axis=0)
            over += left + unclaimed * np.where(calm > 0, np.maximum(calm - known, 0.0), calm)
        return over

    def _where(self, inside: Ints, amount: Floats) -> Where:
        came = self.data.outcomes["arrival_ns"][inside]
        return Where(t0_ns=int(came.min()), t1_ns=int(came.max()), requests=_most(self.view, amount, inside))


def beyond_profile(rows: npt.NDArray[np.void], form: CostForm) -> Floats:
    """Per iteration: what it took beyond what the profile says of what it computed, with the host's time that was recorded; ns,
    0 within what rounding leaves. Host and device overlap or follow each other as they did in the record."""
    found = np.empty(len(rows))
    for part in _blocks(len(rows)):
        some = rows[part]
        device, host, took = (some[name].astype(np.float64) for name in ("device_ns", "host_ns", "duration_ns"))
        exposed = np.minimum(np.where(took >= device + host, host, np.maximum(host - device, 0.0)), took)
        beyond = took - form.device_ns(some) - exposed
        found[part] = np.where(np.abs(beyond) <= _ROUNDING_NS, 0.0, beyond)
    return found


def _any_slow(rest: Floats, took: Ints) -> bool:
    """Whether any iteration took so much longer than its profile (by ``rest``) that a stretch of them may stand out."""
    return any(
        bool((rest[part] > LEAST_SLOW * np.maximum(took[part] - rest[part], 0.0)).any()) for part in _blocks(len(rest))
    )  # fmt: skip


def _blocks(length: int) -> Iterator[slice]:
    """Pieces whose intermediate arrays stay in the cache."""
    return (slice(low, low + _BLOCK) for low in range(0, length, _BLOCK))


def _lived_through(view: View, replica: int, amount: Floats) -> Floats:
    """Per outcome row: the ``amount`` of the replica's iterations that passed while it was there, each in proportion. ns."""
    lane, found = view.parts.blame.lanes[replica], view.parts.blame.stretches
    edges = np.stack([lane.start, lane.end], axis=1).ravel().astype(np.float64)
    sums = np.cumsum(amount)
    levels = np.stack([sums - amount, sums], axis=1).ravel()
    own = found.take(found.replica == replica)
    passed = np.interp(own.end_ns, edges, levels) - np.interp(own.begin_ns, edges, levels)
    return np.asarray(np.bincount(own.row, weights=passed, minlength=len(view.data.outcomes)), np.float64)


def _kinds(model: Expectation, went: Attribution, rows: Ints) -> tuple[str, str]:
    """The kinds of time that most is over in, as words."""
    marked = np.zeros(len(went.first_total), np.bool_)
    marked[rows] = True
    beside = [(name, should, did) for name, (should, did) in model.beside(went, marked).items() if did > should]
    said = [f"{name.replace('_', ' ')}{_reason(went, name, rows)} {seconds(did)} where {seconds(should)} was expected"
            for name, should, did in beside[:2]]  # fmt: skip
    return (beside[0][0] if beside else "all"), ", ".join(said)


def _reason(went: Attribution, kind: str, rows: Ints) -> str:
    """Of waiting: the part that most of it is, with the reason it has."""
    if kind != "waiting":
        return ""
    parts = [name for name in went.sums(rows) if name.partition(".")[0] in _WAITING]
    return f" ({parts[0]})" if parts else ""


def _between(t0_ns: int, t1_ns: int) -> str:
    return f"from {t0_ns / 1e9:,.1f} s to {t1_ns / 1e9:,.1f} s"


def _most(view: View, amount: npt.NDArray[np.float64] | Ints, rows: Ints | Sequence[int] | None = None) -> tuple[int, ...]:
    """The requests with most of ``amount`` (per outcome row), at most twenty."""
    of = np.arange(len(amount)) if rows is None else np.asarray(rows)
    order = of[np.argsort(-amount[of], kind="stable")][:20]
    found: list[int] = view.data.outcomes["request"][order[amount[order] > 0]].tolist()
    return tuple(found)

"""Where the time should have gone: each request alone on the idle engine, and besides only the work that came with it.

A model to hold an attribution against, so that an effect without a name shows too, with its size and place. It knows costs and
arrivals and hardly a setting: engines that never idle while there is work, one queue for all of them, first come first served,
decodes that sit out one chunk of prompts an iteration at most (``yardstick.alone_ns``). What a request takes beyond it is due
to a limit, a choice or a fault, named or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.yardstick import alone_ns

if TYPE_CHECKING:
    from tracekit.diagnosis.attribution import Attribution
    from tracekit.diagnosis.run_data import RunData

__all__ = ["Expectation", "Stretch", "expect", "shared_time", "waits_in_line"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_MOST_DECODE = 0.95
_STEPS = 24
_WAITING = ("under_way", "queue", "prefill_wait", "decode_queue")
_COMPUTING = {"prefill": ("prefill", "prefill_shared", "first_step"), "decode": ("decode", "interference")}


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of arrivals (ns) whose requests took ``over_ns`` more than expected together, ``share`` of all that was over."""

    t0_ns: int
    t1_ns: int
    over_ns: int
    share: float
    requests: Ints


@dataclass(frozen=True, slots=True)
class Expectation:
    """Per outcome row, ns: ``alone_first`` and ``alone_later`` as on the idle engine, ``wait`` for work that came before,
    ``shared`` for work done beside it while it decodes. ``over_first`` and ``over_later``: what it took beyond their sums, below
    zero where it was quicker; NaN where it did not get so far. ``load``: offered work over the engines' time."""

    alone_first: Floats
    alone_later: Floats
    wait: Floats
    shared: Floats
    over_first: Floats
    over_later: Floats
    arrival_ns: Ints
    load: float

    def beside(self, attribution: Attribution, rows: Flags | slice = slice(None)) -> dict[str, tuple[float, float]]:
        """Expected and actual ns by kind over outcome rows: ``waiting`` for an engine's turn, ``prefill``, ``decode`` with what
        others' work adds to it; and every other part, of which nothing is expected. The largest difference first."""
        actual = {name: int(ns) for name, ns in attribution.sums(rows).items()}
        kinds = {name: name.partition(".")[0] for name in actual}
        known = {"waiting": _WAITING, **_COMPUTING}
        expected = {
            "waiting": float(np.nansum(self.wait[rows])),
            "prefill": float(np.nansum(self.alone_first[rows])),
            "decode": float(np.nansum((self.alone_later + self.shared)[rows])),
        }
        found = {
            name: (expected[name], float(sum(ns for part, ns in actual.items() if kinds[part] in parts)))
            for name, parts in known.items()
        }
        taken = {part for parts in known.values() for part in parts}
        for part, ns in actual.items():
            if kinds[part] not in taken:
                before = found.get(kinds[part], (0.0, 0.0))
                found[kinds[part]] = (0.0, before[1] + ns)
        return dict(sorted(found.items(), key=lambda item: item[1][0] - item[1][1]))

    def worst(self, *, buckets: int = 100) -> Stretch | None:
        """The stretch of arrivals in which most time was lost beyond the expected: neighbours of the worst hundredth of the
        run that are at least half as bad. ``None`` where nothing was."""
        over = np.maximum(np.nan_to_num(self.over_first), 0) + np.maximum(np.nan_to_num(self.over_later), 0)
        if not over.any():
            return None
        first, last = int(self.arrival_ns.min()), int(self.arrival_ns.max())
        width = max((last - first) // buckets, 1)
        bucket = (self.arrival_ns - first) // width
        sums = np.bincount(bucket, weights=over)
        low = high = int(np.argmax(sums))
        while low > 0 and sums[low - 1] >= sums[int(np.argmax(sums))] / 2:
            low -= 1
        while high + 1 < len(sums) and sums[high + 1] >= sums[int(np.argmax(sums))] / 2:
            high += 1
        inside = (bucket >= low) & (bucket <= high)
        lost = int(over[inside].sum())
        return Stretch(
            first + low * width, min(first + (high + 1) * width, last + 1), lost, lost / float(over.sum()),
            np.flatnonzero(inside & (over > 0)),
        )  # fmt: skip


def expect(data: RunData, held_ns: Ints | None = None) -> Expectation:
    """What the requests of a run should have taken. ``held_ns``: how long the client held each back (by outcome row); their work
    comes that much later."""
    outcomes = data.outcomes
    row = outcomes["request"]
    alone_first, alone_later, beside_prompt = (column[row] for column in alone_ns(data))
    prefill, decode = _own_work(data)
    arrival = outcomes["arrival_ns"].astype(np.int64)
    ready = arrival if held_ns is None else arrival + held_ns
    pd = data.policy.rules.pd
    servers, decoders = (pd.prefill, pd.decode) if pd.prefill else (max(data.policy.rules.fleet.replicas, 1),) * 2
    length = max(float(ready.max(initial=0) - ready.min(initial=0)), float(alone_first.max(initial=1.0)))
    taken = 0.0 if pd.prefill else min(float(decode.sum()) / (length * servers), _MOST_DECODE)
    wait = waits_in_line(ready, prefill / (servers * (1 - taken)))
    beside = (decode if pd.prefill else prefill + decode) / decoders
    gaps = np.maximum(outcomes["output_tokens"] - 1, 0)
    most = np.maximum(gaps * beside_prompt - alone_later, 0.0)
    shared = shared_time(ready + alone_first + wait, alone_later, ready, beside, most)
    got, done = outcomes["ttft_ns"] >= 0, outcomes["e2e_ns"] >= 0
    over_first = np.where(got, outcomes["ttft_ns"] - alone_first - wait, np.nan)
    over_later = np.where(done, outcomes["e2e_ns"] - outcomes["ttft_ns"] - alone_later - shared, np.nan)
    work = float(prefill.sum()) / servers + (float(decode.sum()) / decoders)
    return Expectation(alone_first, alone_later, wait, shared, over_first, over_later, arrival, work / length)


def _own_work(data: RunData) -> tuple[Floats, Floats]:
    """Per outcome row, ns: what a request's prompt (without what the cache gave) and its decodes add to iterations."""
    outcomes, latency = data.outcomes, data.profile.latency
    hits = np.maximum(outcomes["cached_tokens"], 0).astype(np.float64)
    whole = outcomes["prompt_tokens"].astype(np.float64)
    tokens = whole - np.minimum(hits, whole)
    answer = np.maximum(outcomes["output_tokens"].astype(np.float64) - 1, 0)
    prefill = latency.b_ns * tokens + latency.c_ns * tokens * (hits + tokens / 2)
    decode = answer * (latency.d_ns + latency.e_ns * (whole + answer / 2))
    return prefill, decode


def waits_in_line(ready: Ints, work: Floats) -> Floats:
    """How long each of ``work`` (ns) waits at one server that takes them as they are ``ready`` (ns) and never idles with work:
    the backlog it finds. Ties are served in order of rows."""
    order = np.argsort(ready, kind="stable")
    at, own = ready[order].astype(np.float64), work[order]
    before = np.cumsum(own) - own
    idle = np.maximum.accumulate(at - before)  # the work before it, had the server never idled, begins at this moment
    wait = np.empty(len(at))
    wait[order] = np.maximum(before + idle - at, 0.0)
    return wait


def shared_time(begin: Floats, alone: Floats, ready: Ints, work: Floats, most: Floats) -> Floats:
    """By how much each stretch from ``begin`` on that takes ``alone`` ns grows when the ``work`` (ns) that becomes ``ready``
    while it lasts is done beside it, but for no more than ``most`` ns."""
    order = np.argsort(ready, kind="stable")
    at = np.concatenate(([-np.inf], ready[order].astype(np.float64)))
    sums = np.concatenate(([0.0], np.cumsum(work[order])))

    def offered(moment: Floats) -> Floats:
        found: Floats = sums[np.searchsorted(at, moment, side="right") - 1]
        return found

    before, shared = offered(begin), np.zeros(len(begin))
    lasting = alone > 0
    for _ in range(_STEPS):
        longer = np.where(lasting, np.minimum(offered(begin + alone + shared) - before, most), 0.0)
        if np.array_equal(longer, shared):
            break
        shared = longer
    return shared

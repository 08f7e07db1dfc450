"""Gaps between a request's tokens, from spans and iterations alone: no row per token exists.

Within a ``decode`` span a token comes out at the end of every iteration, so its gaps are differences of iteration ends, and an
iteration's gap counts once for each sequence that decoded through it. Across a stall or a preemption the gap runs from the last
token to the next one, which a completed (re)prefill samples at its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.types import Phase
from tracekit.metrics.distributions import describe_weighted

__all__ = ["TokenGaps", "token_gaps"]

_GAP_BITS = 44
_CHUNK = 4_000_000
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGaps:
    """All gaps of a run, compressed.

    ``step_ns[j]``: from the end of iteration j-1 to that of j; ``weight[j]``: requests whose gap that is.
    ``runs``: int64 (k, 3): request, first and last+1 iteration of a stretch whose steps are all gaps of the request.
    ``single_ns`` and ``single_request``: the gaps across stalls, preemptions and re-prefills.
    """

    step_ns: Ints
    weight: Ints
    runs: Ints
    single_ns: Ints
    single_request: Ints

    def pooled(self) -> dict[str, Any]:
        """The distribution over all gaps, ns (``n`` = gaps)."""
        used = self.weight > 0
        values = np.concatenate([self.step_ns[used], self.single_ns])
        weights = np.concatenate([self.weight[used], np.ones(self.single_ns.size, np.int64)])
        return describe_weighted(values, weights, "no request has two tokens")

    def request_p99(self, requests: int) -> npt.NDArray[np.float64]:
        """p99 of each request's gaps, ns (linear interpolation), NaN with no gap; float64, one per request index."""
        found = np.full(requests, np.nan)
        request = np.concatenate([self.runs[:, 0], self.single_request])
        first = np.concatenate([self.runs[:, 1], np.zeros(self.single_request.size, np.int64)])
        count = np.concatenate([self.runs[:, 2] - self.runs[:, 1], np.ones(self.single_request.size, np.int64)])
        value = np.concatenate([np.full(len(self.runs), -1, np.int64), self.single_ns])
        order = np.argsort(request, kind="stable")
        request, first, count, value = request[order], first[order], count[order], value[order]
        total = np.cumsum(count)
        begin = 0
        while begin < request.size:
            end = int(np.searchsorted(total, (total[begin - 1] if begin else 0) + _CHUNK, side="right"))
            # whole requests only, and at least one
            end = int(np.searchsorted(request, request[min(end, request.size - 1)], side="left")) if end < request.size else end
            if end <= begin:
                end = int(np.searchsorted(request, request[begin], side="right"))
            part = slice(begin, end)
            self._chunk_p99(found, request[part], first[part], count[part], value[part])
            begin = end
        return found

    def _chunk_p99(self, found: npt.NDArray[np.float64], request: Ints, first: Ints, count: Ints, value: Ints) -> None:
        names, rank = np.unique(request, return_inverse=True)
        ends = np.cumsum(count)
        of_run = np.repeat(np.arange(count.size), count)
        at = np.arange(int(ends[-1])) - (ends - count)[of_run] + first[of_run]
        single = value[of_run]
        gap = np.where(single >= 0, single, self.step_ns[np.where(single >= 0, 0, at)])
        # one sort of one integer: request rank above, gap below (a gap of over four hours is cut to that)
        key = np.sort((rank[of_run].astype(np.int64) << _GAP_BITS) | np.minimum(gap, (1 << _GAP_BITS) - 1))
        n = np.bincount(rank, weights=count).astype(np.int64)
        start = np.cumsum(n) - n
        place = 0.99 * (n - 1)
        low = np.floor(place).astype(np.int64)
        mask = (1 << _GAP_BITS) - 1
        a = (key[start + low] & mask).astype(np.float64)
        b = (key[start + np.minimum(low + 1, n - 1)] & mask).astype(np.float64)
        found[names] = a + (b - a) * (place - low)


def token_gaps(
    iterations: npt.NDArray[np.void],
    spans: npt.NDArray[np.void],
    outcomes: npt.NDArray[np.void],
    counted: npt.NDArray[np.bool_] | None = None,
) -> TokenGaps:
    """All gaps of the counted requests of one replica.

    ``iterations``: rows with ``iteration``, ``start_ns``, ``duration_ns``, in order; ``spans`` and ``outcomes``: rows of dtype
    ``SPANS`` and ``OUTCOMES``, in any order; ``counted``: mask over request indices, ``None`` for all.
    """
    ends = iterations["start_ns"] + iterations["duration_ns"]
    number = np.ascontiguousarray(iterations["iteration"])
    if counted is not None:
        spans = spans[counted[spans["request"]]]
    order = np.lexsort((spans["end_ns"], spans["start_ns"], spans["request"]))
    request = spans["request"][order].astype(np.int64)
    phase, end = spans["phase"][order], spans["end_ns"][order]
    # by number, since an empty iteration takes no time; by time, since a request may end before the span's last iteration did
    first = np.searchsorted(number, spans["start_iteration"][order])
    stop = np.minimum(
        np.searchsorted(number, spans["end_iteration"][order], side="right"), np.searchsorted(ends, end, side="right")
    )
    decode = (phase == Phase.decode) & (stop > first)
    emitted = np.bincount(request[decode], (stop - first)[decode], minlength=1).astype(np.int64)
    point = _prefill_tokens(phase, request, end, emitted, outcomes)
    chosen = decode | point
    return _assemble(ends, request[chosen], first[chosen], stop[chosen], end[chosen], point[chosen])


def _assemble(ends: Ints, request: Ints, first: Ints, stop: Ints, end: Ints, point: npt.NDArray[np.bool_]) -> TokenGaps:
    """From stretches in order of request and time: a token each at ``ends[first:stop]``, or (``point``) one at ``end``."""
    first_ns, last_ns = end.copy(), end.copy()
    first_ns[~point] = ends[first[~point]]
    last_ns[~point] = ends[stop[~point] - 1]
    follows = np.zeros(request.size, np.bool_)
    follows[1:] = request[1:] == request[:-1]
    at = np.flatnonzero(follows)
    runs = np.stack([request, first + 1, stop], axis=1)[~point]
    runs = runs[runs[:, 2] > runs[:, 1]]
    change = np.bincount(runs[:, 1], minlength=ends.size + 1) - np.bincount(runs[:, 2], minlength=ends.size + 1)
    return TokenGaps(
        step_ns=np.diff(ends, prepend=ends[:1]),
        weight=np.cumsum(change)[: ends.size],
        runs=runs,
        single_ns=first_ns[at] - last_ns[at - 1],
        single_request=request[at],
    )


def _prefill_tokens(
    phase: npt.NDArray[np.int16], request: Ints, end: Ints, emitted: Ints, outcomes: npt.NDArray[np.void]
) -> npt.NDArray[np.bool_]:
    """Which prefill spans end in a token. ``emitted``: tokens of decode spans by request index.

    A prefill preempted right at its end looks the same whether it had sampled a token or not: the request's count of tokens
    decides, earliest first. (Only the order could be wrong, and only where one request has both kinds.)
    """
    size = int(max(request.max(initial=0), outcomes["request"].max(initial=0))) + 1
    wanted, first_token, last_token = np.zeros(size, np.int64), np.full(size, -1, np.int64), np.full(size, -2, np.int64)
    who, spoke = outcomes["request"], outcomes["ttft_ns"] >= 0
    wanted[who] = np.where(spoke, outcomes["output_tokens"], 0)
    first_token[who] = np.where(spoke, outcomes["arrival_ns"] + outcomes["ttft_ns"], -1)
    last_token[who] = np.where(spoke, outcomes["last_token_ns"], -2)
    last = np.ones(request.size, np.bool_)
    last[:-1] = request[1:] != request[:-1]
    following = np.full(request.size, -1, np.int64)
    following[:-1] = phase[1:]
    following[last] = -1
    possible = (phase == Phase.prefill) & ~np.isin(following, [Phase.prefill, Phase.prefill_wait])
    possible &= (end >= first_token[request]) & (end <= last_token[request])
    unsure = possible & (following == Phase.preempted) & (end != first_token[request]) & (end != last_token[request])
    sure: npt.NDArray[np.bool_] = possible & ~unsure
    if not unsure.any():
        return sure
    have = np.bincount(request[sure], minlength=size)
    have[: emitted.size] += emitted
    before = np.cumsum(unsure) - unsure
    own_first = np.maximum.accumulate(np.where(np.r_[True, last[:-1]], np.arange(request.size), 0))
    sure |= unsure & (before - before[own_first] < (wanted - have)[request])
    return sure

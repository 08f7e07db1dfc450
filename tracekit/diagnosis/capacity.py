"""Offered work against capacity: what this load asks of an engine, what its limits allow, and what it would need.

A request of ``p`` prompt and ``o`` output tokens takes part in about ``o`` iterations and adds ``m`` seconds of its own work
to them; every iteration costs ``a`` whoever is in it. ``n`` requests at a time are then served at the rate ``n / (o a + n
m)``, which rises to ``1 / m``. Seats bound ``n``, KV bounds it by the mean footprint, the token budget by ``budget o / (p + o)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.iteration_cost import CostForm
from tracekit.diagnosis.run_data import RunData

__all__ = ["Capacity", "capacity_of"]

BULK = 0.5
"""Arrivals that come in so small a part of the run, or such a share of them at one moment, are a batch: they have no rate."""

WAVE = 2.5
"""Arrivals that come within so many times what a request takes once it runs are a wave: no rate that an engine settles to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Per engine: ``rate`` requests a second (``None``: they came as a batch, or as the client's slots freed), mean ``prompt``
    and ``output`` tokens, ``fixed_s`` of an iteration, ``prefill_s`` and ``decode_s`` of a request's own work; the limits.
    """

    rate: float | None
    engines: int
    prompt: float
    output: float
    fixed_s: float
    prefill_s: float
    decode_s: float
    seats: float
    kv_tokens: float
    budget: float

    @property
    def own_s(self) -> float:
        return self.prefill_s + self.decode_s

    @property
    def footprint(self) -> float:
        """KV tokens a request holds on average while it decodes."""
        return self.prompt + self.output / 2

    def at_a_time(self) -> dict[str, float]:
        """How many requests each limit lets run at a time."""
        return {
            "seats": self.seats,
            "kv": self.kv_tokens / self.footprint,
            "budget": self.budget * self.output / (self.prompt + self.output),
        }

    def served(self, at_a_time: float | None = None) -> float:
        """Requests a second that an engine serves with so many at a time; ``None``: as many as its limits allow."""
        n = min(self.at_a_time().values()) if at_a_time is None else at_a_time
        return 1 / self.own_s if math.isinf(n) else n / (self.output * self.fixed_s + n * self.own_s)

    @property
    def most(self) -> float:
        """The same with seats and budget that do not bind."""
        return replace(self, seats=math.inf, budget=math.inf).served()

    @property
    def load(self) -> float | None:
        """Offered rate over what the limits allow."""
        return None if self.rate is None else self.rate / self.served()

    @property
    def own_load(self) -> float | None:
        """Offered work over an engine's time, whatever its settings and its memory: beyond 1 nothing but another engine helps."""
        return None if self.rate is None else self.rate * self.own_s

    @property
    def floor_load(self) -> float | None:
        """Offered rate over what any seats and budget allow."""
        return None if self.rate is None else self.rate / self.most

    @property
    def iteration_s(self) -> float | None:
        """How long an iteration takes at this load when no limit binds; ``None`` without a rate or beyond capacity."""
        if self.rate is None or self.rate * self.own_s >= 1:
            return None
        return self.fixed_s / (1 - self.rate * self.own_s)

    @property
    def in_flight(self) -> float | None:
        """Requests at an engine at a time when no limit binds (Little's law)."""
        length = self.iteration_s
        return None if length is None or self.rate is None else self.rate * length * (self.output + self.prompt / self.budget)

    def without(self, limit: str) -> Capacity:
        """The same without one of its limits (``seats``, ``kv_tokens``, ``budget``)."""
        return replace(self, **{limit: math.inf})  # type: ignore[arg-type]


def capacity_of(
    data: RunData,
    *,
    mask: npt.NDArray[np.bool_] | None = None,
    cached: npt.NDArray[np.float64] | None = None,
    replica: int = 0,
    engines: int | None = None,
) -> Capacity | None:
    """Of the requests of ``mask`` (all), with ``cached`` prompt tokens taken from caches (what was, if not given), spread over
    ``engines`` like that of ``replica``; ``None`` without requests, or where the profile does not say what they cost."""
    rows = data.outcomes if mask is None else data.outcomes[mask]
    if not len(rows) or not data.profile.latency.known:
        return None
    rules, config, latency = data.policy.rules, data.engine_of(replica), data.profile.latency
    taken = np.maximum(rows["cached_tokens"], 0) if cached is None else cached if mask is None else cached[mask]
    prompt, output = (rows["prompt_tokens"] - taken).astype(np.float64), rows["output_tokens"].astype(np.float64)
    full = rows["prompt_tokens"].astype(np.float64)
    prefill = latency.b_ns * prompt + latency.c_ns * prompt * (full - prompt / 2)
    decode = np.maximum(output - 1, 0) * (latency.d_ns + latency.e_ns * (full + output / 2))
    many = engines or (rules.fleet.replicas if rules.fleet.active else 1)
    return Capacity(
        rate=_rate(data, rows, many),
        engines=many,
        prompt=max(float(prompt.mean()), 1.0),
        output=max(float(output.mean()), 1.0),
        fixed_s=(max(latency.floor_ns, latency.a_ns) + latency.h0_ns + _skew_ns(data)) / 1e9,
        prefill_s=float(prefill.mean()) / 1e9,
        decode_s=float(decode.mean()) / 1e9,
        seats=config.max_num_seqs,
        kv_tokens=config.usable_blocks * config.block_size,
        budget=config.token_budget,
    )


def _skew_ns(data: RunData) -> float:
    """What an iteration waits for the longest context, ns, mean over those in which several decode: work of no single request,
    and about the same however many more there are."""
    if not data.profile.latency.s_ns:
        return 0.0
    form = CostForm(data.profile.latency, asynchronous=False)
    several = np.asarray(data.iterations["decode_seqs"] > 1)
    return float(form.skew_ns(data.iterations)[several].mean()) if several.any() else 0.0


def _rate(data: RunData, rows: npt.NDArray[np.void], engines: int) -> float | None:
    arrival = rows["arrival_ns"]
    window = int(arrival.max()) - int(arrival.min())
    length = max(int(data.outcomes["last_token_ns"].max()), int(arrival.max())) - int(data.outcomes["arrival_ns"].min())
    most = int(np.unique(arrival, return_counts=True)[1].max())
    client = data.policy.rules.client
    if (client.max_in_flight is not None and client.arrival == "slot") or window < BULK / 2 * length or most > BULK * len(rows):
        return None
    served = rows["e2e_ns"] >= 0
    lasts = float((rows["e2e_ns"][served] - rows["queue_ns"][served]).mean()) if served.any() else 0.0
    if window < WAVE * lasts:
        return None
    return (len(rows) - 1) / (window / 1e9) / engines if window else None

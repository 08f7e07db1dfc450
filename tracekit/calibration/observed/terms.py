"""The terms of the cost model that observed latencies are fitted with: their scale, what is expected of them, what is possible.

Six coefficients can show in any latencies: ``floor``, ``knee`` (the prefill tokens that ride free on the reading of the
weights; ``a = floor - b * knee``), ``b``, ``c``, ``d``, ``e``. Host time cannot: under asynchronous scheduling it hides behind
the device, under synchronous scheduling it is a part of ``floor``. What a request spends before the engine is ``ingress`` (with
a first token's way back, which no latency tells apart), from its last token to the end of the answer ``egress``: the latter only
where a client or gateway counted. ``skew`` (``s``) is what the longest context of a batch costs: it is 0 unless a profile of the
same model and card has it, or the latencies ask for it once the others are fitted (``skew.py``).
All are searched as logarithms, so that none turns negative and a step means the same for each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replay_engine.profile import HardwareFacts, Latency, ModelFacts, Profile, prompt_flops

__all__ = [
    "CLIENTS", "LEAST", "NAMES", "OUTSIDE", "UNITS", "Delivered", "Expected", "Vector", "delivered_of", "expected_from",
    "latency_of", "physical_least", "vector_of",
]  # fmt: skip

Vector = npt.NDArray[np.float64]
NAMES = ("floor", "knee", "b", "c", "d", "e", "ingress", "egress", "skew")
OUTSIDE = ("ingress", "egress")
"""Terms of no iteration: the schedule does not hang on them."""
UNITS = {
    "floor": "ns an iteration, at least", "knee": "prefill tokens that ride free", "b": "ns a prefill token",
    "c": "ns a prefill token x context token", "d": "ns a decoding sequence", "e": "ns a KV token read by decodes",
    "ingress": "ns a request before the engine", "egress": "ns a request after its last token",
    "skew": "ns a token that the longest decoding context is above the mean",
}  # fmt: skip
UNKNOWN_SPREAD = 1.2
"""Standard deviation of a logarithm that says next to nothing: within a factor of three, or ten, as like as not."""
PRIOR_SPREAD = {"floor": 0.35, "knee": 0.7, "b": 0.35, "c": 0.7, "d": 0.9, "e": 0.35, "ingress": 1.0, "egress": 1.0,
                "skew": 0.9}  # fmt: skip
"""How far a coefficient may be from what a profile of the same model and card says: nobody's card runs at its data sheet."""
KNEE, INGRESS_NS, EGRESS_NS = 180.0, 2e6, 1e6
LEAST = 1e-3
CLIENTS = ("client", "gateway")
"""Clocks that an answer has to come back to."""


class Delivered(NamedTuple):
    """ns a request takes before the engine and after its last token."""

    before: float = 0.0
    after: float = 0.0


def delivered_of(vector: Vector) -> Delivered:
    """The two of them that ``vector`` holds; as good as 0 is 0."""
    before, after = (float(vector[NAMES.index(name)]) for name in OUTSIDE)
    return Delivered(before=before if before > LEAST else 0.0, after=after if after > LEAST else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """``centre`` and ``spread`` (of the logarithm) of each term before anything was observed, ``least`` what physics allows."""

    centre: Vector
    spread: Vector
    least: Vector
    host: Latency
    """Only its host part counts: what stands where latencies cannot tell."""

    @property
    def skew_ns(self) -> float:
        """The cost of skew that was expected."""
        return float(self.centre[NAMES.index("skew")])


def latency_of(vector: Vector, host: Latency) -> Latency:
    """The simulator's coefficients (ns); ``a`` is kept from turning negative, and skew that is as good as 0 is 0."""
    floor, knee, b, c, d, e = (float(x) for x in vector[:6])
    skew = float(vector[NAMES.index("skew")])
    return replace(host, floor_ns=floor, a_ns=max(floor - b * knee, 0.0), b_ns=b, c_ns=c, d_ns=d, e_ns=e,
                   s_ns=skew if skew > LEAST else 0.0)  # fmt: skip


def vector_of(latency: Latency, ingress_ns: float = INGRESS_NS, egress_ns: float = LEAST) -> Vector:
    """The same the other way; a term that is 0 becomes as good as 0."""
    floor = max(latency.floor_ns, latency.a_ns)
    knee = (floor - latency.a_ns) / latency.b_ns if latency.b_ns else KNEE
    values = (floor, knee, latency.b_ns, latency.c_ns, latency.d_ns, latency.e_ns, ingress_ns, egress_ns, latency.s_ns)
    return np.maximum(np.array(values, np.float64), LEAST)


def physical_least(model: ModelFacts | None, hardware: HardwareFacts | None) -> Vector:
    """Below what no coefficient can be (ns): weights and KV at peak bandwidth, prompt tokens at peak FLOPs; 0 where unknown."""
    least = np.full(len(NAMES), LEAST)
    if model is None or hardware is None:
        return least
    cards = hardware.tensor_parallel
    bandwidth, flops = hardware.bandwidth_bytes_s * cards, hardware.peak_flops * cards
    # a hair above, since the profile is refused below
    least[0] = model.weight_bytes / bandwidth * 1e9 * (1 + 1e-9)
    least[2] = prompt_flops(model) / flops * 1e9 * (1 + 1e-9)
    least[5] = model.kv_bytes_per_token / bandwidth * 1e9 * (1 + 1e-9)
    return least


def expected_from(prior: Profile | None, seen: Vector, *, clock: str | None) -> Expected:
    """From a profile of the same model and card, where there is one; else around ``seen``, the first guess made from the
    observations themselves, and hardly held to it."""
    host = Latency(h0_ns=1e6)
    spread = np.full(len(NAMES), UNKNOWN_SPREAD)
    centre, least = seen.copy(), physical_least(None, None)
    if prior is not None:
        host = replace(prior.latency, floor_ns=0.0, a_ns=0.0, b_ns=0.0, c_ns=0.0, d_ns=0.0, e_ns=0.0, s_ns=0.0)
        least = physical_least(prior.model, prior.hardware)
        centre = vector_of(prior.latency)
        spread = np.array([PRIOR_SPREAD[name] for name in NAMES])
    centre[6] = 5 * INGRESS_NS if clock in CLIENTS else INGRESS_NS
    centre[7] = EGRESS_NS if clock in CLIENTS else LEAST
    centre[1] = KNEE if prior is None else centre[1]
    spread[1] = PRIOR_SPREAD["knee"]
    return Expected(centre=np.maximum(centre, least), spread=spread, least=least, host=host)

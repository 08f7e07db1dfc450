"""Iterations that take a little more or less than the profile says: what a replay's conclusions must survive.

A profile states how far its predictions lie from what was measured. That error is drawn anew for every iteration: a factor with
a mean of one and the stated mean absolute error, independent of all others, on the device and on the host. What a profile gets
wrong in the same direction everywhere is not noise: it is the same in whatever two replays under that profile are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from replay_engine.profile import Latency, Profile
from replay_engine.simulator import SkewedExecutor

__all__ = ["ASSUMED", "IterationNoise", "NoisyExecutor", "stated_error"]

ASSUMED = 0.05
"""Mean absolute relative error of an iteration where a profile states none."""
DRAWN_AT_ONCE = 4096
_MEAN_TO_SIGMA = math.sqrt(math.pi / 2)
_MEDIAN_TO_SIGMA = 1 / 0.6744897501960817
_STATED = {
    "prefill": (("prefill_error_mape", _MEAN_TO_SIGMA), ("held_out_median_error", _MEDIAN_TO_SIGMA)),
    "decode": (("decode_error_mape", _MEAN_TO_SIGMA), ("held_out_median_error", _MEDIAN_TO_SIGMA)),
}
"""Fields of a profile's ``[fit]`` that state the error of an iteration, the surest first, and what makes a sigma of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationNoise:
    """Standard deviation of an iteration's relative error, with prefill and without, and the seed that it is drawn by."""

    prefill: float
    decode: float
    seed: int

    def executor(self, latency: Latency, *, asynchronous: bool, replica: int = 0) -> NoisyExecutor:
        """The executor of one engine; every replica has noise of its own."""
        return NoisyExecutor(latency, self, asynchronous=asynchronous, draws=np.random.default_rng([self.seed, replica]))


def stated_error(profile: Profile) -> tuple[float, float, str]:
    """Sigma of an iteration with prefill and of one without, and where they come from: the profile's ``[fit]``, or assumed."""
    found: dict[str, float] = {}
    named: list[str] = []
    for kind, candidates in _STATED.items():
        for name, factor in (*candidates, ("median_error", _MEDIAN_TO_SIGMA)):
            value = profile.fit.get(name)
            if isinstance(value, int | float) and math.isfinite(value) and value >= 0:
                found[kind] = float(value) * factor
                named += [name] if name not in named else []
                break
    if len(found) < len(_STATED):
        sigma = ASSUMED * _MEAN_TO_SIGMA
        return sigma, sigma, f"the profile states no error: {ASSUMED:.0%} assumed"
    return found["prefill"], found["decode"], f"the profile's {', '.join(named)}"


class NoisyExecutor(SkewedExecutor):
    """A simulated executor whose every iteration takes ``exp(sigma z - sigma^2 / 2)`` times as long as predicted."""

    __slots__ = ("_at", "_decode", "_draws", "_prefill", "_z")

    def __init__(self, latency: Latency, noise: IterationNoise, *, asynchronous: bool, draws: np.random.Generator) -> None:
        super().__init__(latency, asynchronous=asynchronous)
        self._draws = draws
        self._z: Sequence[float] = ()
        self._at = 0
        self._prefill, self._decode = noise.prefill, noise.decode

    def predict(
        self, tokens: int, qk: int, seqs: int, kv: int, running: int, changes: int, longest: int | None = None
    ) -> tuple[int, int, int]:
        if self._at == len(self._z):
            self._z, self._at = self._draws.standard_normal(DRAWN_AT_ONCE).tolist(), 0
        z = self._z[self._at]
        self._at += 1
        sigma = self._prefill if tokens else self._decode
        factor = math.exp(sigma * z - sigma * sigma / 2)
        _, device, host = super().predict(tokens, qk, seqs, kv, running, changes, longest)
        device, host = round(device * factor), round(host * factor)
        if not self._asynchronous:
            return device + host, device, host
        return (0 if not device else max(device, host)), device, host

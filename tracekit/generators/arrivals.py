"""When requests come: renewal processes at a constant rate, in on-off bursts, or by the time of day; and fixed moments."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tracekit.errors import UsageError, shown
from tracekit.generators.distributions import number_of, settings_of

__all__ = ["Arrivals", "At", "Every", "Process", "parse_process"]

Floats = npt.NDArray[np.float64]
EXPECTED = ("expected poisson:rate=5, gamma:rate=5,cv=3, onoff:rate=5,on=10s,off=50s[,idle=0.1,cv=1] or"
            " diurnal:rate=5,depth=0.8[,period=24h,peak=14h,cv=1]")  # fmt: skip
GRID = 4096
"""Points of the table by which a varying rate is inverted, per period."""


class Arrivals(Protocol):
    """Seconds from the start, ascending."""

    def times(self, rng: np.random.Generator, n: int) -> Floats:
        """The first ``n`` arrivals."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """One every ``step`` seconds from ``start`` on."""

    step: float
    start: float = 0.0

    def times(self, rng: np.random.Generator, n: int) -> Floats:
        return self.start + self.step * np.arange(n, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class At:
    """All at the given moments, the same number at each."""

    moments: tuple[float, ...]

    def times(self, rng: np.random.Generator, n: int) -> Floats:
        return np.sort(np.resize(np.array(self.moments, np.float64), n))


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Arrivals of mean rate ``rate`` a second, whose gaps have coefficient of variation ``cv`` (gamma; 1: Poisson).

    ``shape``: ``flat``; ``onoff`` (stretches of mean ``on`` and ``off`` seconds, both exponential, with ``idle`` times the
    on-rate in the off ones); ``diurnal`` (rate times 1 + ``depth`` cos, highest at ``peak`` seconds into each ``period``).
    ``begin``: the first arrival's moment, ``None``: as it falls.
    """

    rate: float
    cv: float = 1.0
    shape: str = "flat"
    on: float = 10.0
    off: float = 50.0
    idle: float = 0.0
    depth: float = 0.8
    period: float = 86_400.0
    peak: float = 50_400.0
    begin: float | None = None

    def times(self, rng: np.random.Generator, n: int) -> Floats:
        key = int(rng.integers(2**62)) if self.shape == "onoff" else 0
        gaps = np.ones(n) if self.cv == 0 else rng.gamma(1 / self.cv**2, self.cv**2, n)
        found = self._at_work(np.cumsum(gaps) / self.rate, key)
        return found if self.begin is None or not n else found - found[0] + self.begin

    def up_to(self, rng: np.random.Generator, seconds: float) -> Floats:
        """All arrivals before ``seconds``."""
        n = int(self.rate * seconds * 1.1) + 100
        state = rng.bit_generator.state
        while True:
            rng.bit_generator.state = state
            found = self.times(rng, n)
            if found[-1] >= seconds:
                return found[found < seconds]
            n *= 2

    def faster(self, share: float) -> Process:
        """The same at ``share`` times the rate."""
        return replace(self, rate=self.rate * share)

    def _at_work(self, flat: Floats, key: int) -> Floats:
        """From moments at a constant rate to those at which the varying rate has done the same work."""
        if self.shape == "flat" or not len(flat):
            return flat
        edges, work = self._diurnal(flat[-1]) if self.shape == "diurnal" else self._bursts(flat[-1], key)
        return np.interp(flat, work, edges)

    def _diurnal(self, last: float) -> tuple[Floats, Floats]:
        periods = math.ceil(last / self.period) + 1
        edges = np.linspace(0.0, periods * self.period, periods * GRID + 1)
        turn = 2 * math.pi / self.period
        lift = np.sin(turn * (edges - self.peak)) - math.sin(-turn * self.peak)
        return edges, edges + self.depth / turn * lift

    def _bursts(self, last: float, key: int) -> tuple[Floats, Floats]:
        cycle = self.on + self.off
        high = cycle / (self.on + self.idle * self.off)
        count = 2 * (math.ceil(last / cycle * 1.5) + 20)
        while True:
            # a generator of its own, so that a longer table begins as a shorter one
            lengths = np.random.Generator(np.random.PCG64(key)).exponential(1.0, count)
            lengths *= np.resize([self.on, self.off], count)
            done = lengths * np.resize([high, high * self.idle], count)
            if done.sum() > last:
                zero = np.zeros(1)
                # a rate of zero has no inverse: a hair of work keeps the table rising
                return np.concatenate([zero, np.cumsum(lengths)]), np.concatenate([zero, np.cumsum(np.maximum(done, 1e-9))])
            count *= 2


def parse_process(text: str, where: str, default_rate: float | None = None) -> Process:
    """From ``kind:settings``; the rate may be left out where the caller knows it. Errors: ``UsageError``."""
    kind, _, rest = text.strip().partition(":")
    if kind not in _SETTINGS:
        raise UsageError(f"{where} {shown(text)}: no such arrival process; {EXPECTED}")
    settings = settings_of(rest, where, _SETTINGS[kind])
    values = {name: number_of(value, f"{where} {kind} {name}", 0) for name, value in settings.items()}
    if "rate" not in values and default_rate is not None:
        values["rate"] = default_rate
    if not 1e-9 <= values.get("rate", 0) <= 1e7:
        raise UsageError(f"{where} {shown(text)}: no rate above 0; {EXPECTED}")
    if values.get("cv", 1) > 100 or values.get("depth", 0) > 0.999 or values.get("idle", 0) > 1:
        raise UsageError(f"{where} {shown(text)}: expected cv up to 100, depth below 1, idle up to 1")
    if any(values.get(name, 1) <= 0 for name in ("on", "off", "period")):
        raise UsageError(f"{where} {shown(text)}: expected on, off and period above 0")
    return Process(shape=kind if kind in ("onoff", "diurnal") else "flat", **values)


_SETTINGS: dict[str, tuple[str, ...]] = {
    "poisson": ("rate",),
    "gamma": ("rate", "cv"),
    "onoff": ("rate", "on", "off", "idle", "cv"),
    "diurnal": ("rate", "depth", "period", "peak", "cv"),
}

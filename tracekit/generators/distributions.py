"""Random amounts: token counts, times, turns. Each draws an array of floats from a seeded generator."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tracekit.errors import UsageError, shown

__all__ = [
    "Distribution",
    "Fixed",
    "LogNormal",
    "Mixture",
    "Shifted",
    "Uniform",
    "number_of",
    "parse_distribution",
    "settings_of",
]

Floats = npt.NDArray[np.float64]
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
EXPECTED = ("expected a number, fixed:512, uniform:100,200, lognormal:median=500,sigma=0.8[,min=..,max=..],"
            " exponential:mean=10 or geometric:mean=4")  # fmt: skip


class Distribution(Protocol):
    """Something to draw from."""

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        """``n`` independent values."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always ``value``."""

    value: float

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        return np.full(n, self.value)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Evenly between ``low`` and ``high``; rounded to whole numbers, both ends are as likely as the rest."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        if self.low == int(self.low) and self.high == int(self.high):
            return rng.integers(int(self.low), int(self.high) + 1, n).astype(np.float64)
        return rng.uniform(self.low, self.high, n)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """By its median and the standard deviation of its logarithm, clipped to ``low`` .. ``high``."""

    median: float
    sigma: float
    low: float = 0.0
    high: float = math.inf

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        return np.clip(rng.lognormal(math.log(self.median), self.sigma, n), self.low, self.high)


@dataclass(frozen=True, slots=True)
class Exponential:
    """With this mean."""

    mean: float

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        return rng.exponential(self.mean, n)


@dataclass(frozen=True, slots=True)
class Geometric:
    """Whole numbers from 1 on with this mean."""

    mean: float

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        return rng.geometric(1 / self.mean, n).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Shifted:
    """``offset`` more than another."""

    offset: float
    inner: Distribution

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        return self.offset + self.inner.draw(rng, n)


@dataclass(frozen=True, slots=True)
class Mixture:
    """One of several, each with its share."""

    parts: tuple[tuple[float, Distribution], ...]

    def draw(self, rng: np.random.Generator, n: int) -> Floats:
        shares = np.array([share for share, _ in self.parts])
        which = rng.choice(len(self.parts), n, p=shares / shares.sum())
        # every part draws for everybody: what one request gets does not hang on what the others were
        return np.choose(which, [inner.draw(rng, n) for _, inner in self.parts])


def settings_of(text: str, where: str, names: tuple[str, ...]) -> dict[str, str]:
    """``median=500,sigma=0.8`` or, by place, ``500,0.8`` as named settings. Errors: ``UsageError``."""
    found: dict[str, str] = {}
    for at, part in enumerate(filter(None, (each.strip() for each in text.split(",")))):
        name, equals, value = part.partition("=")
        name, value = (name.strip(), value.strip()) if equals else (names[at] if at < len(names) else "?", part)
        if name not in names or name in found:
            raise UsageError(f"{where} {shown(text)}: {shown(name)}: not expected here; expected {', '.join(names)}")
        found[name] = value
    return found


def number_of(text: str, where: str, low: float = -math.inf, *, inclusive: bool = True) -> float:
    """A finite number, or a time like 10s as seconds. Errors: ``UsageError``."""
    match = re.fullmatch(r"\s*([-+0-9.eE_]+?)\s*(us|ms|s|m|min|h|d)?\s*", text)
    try:
        value = float(match[1]) * _SECONDS[match[2] or "s"] if match else math.nan
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise UsageError(f"{where}: '{shown(text)}': not a number; expected one, or a time like 10s")
    if not math.isfinite(value) or value < low or (value == low and not inclusive):
        raise UsageError(f"{where}: {shown(text)}: expected a number {'of at least' if inclusive else 'above'} {low:g}")
    return value


def parse_distribution(given: str | int | float, where: str) -> Distribution:
    """From ``kind:settings`` or a number; ``where`` names the option in errors. Errors: ``UsageError``."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        return Fixed(number_of(str(given), where, 0))
    text = str(given).strip()
    kind, colon, rest = text.partition(":")
    if not colon:
        return Fixed(number_of(text, where, 0))
    if kind not in _KINDS:
        raise UsageError(f"{where} {shown(text)}: no such distribution; {EXPECTED}")
    names, make = _KINDS[kind]
    settings = settings_of(rest, where, names)
    values = {name: number_of(value, f"{where} {kind} {name}", 0) for name, value in settings.items()}
    try:
        return make(**{_FIELDS.get(name, name): value for name, value in values.items()})
    except (TypeError, ValueError):
        raise UsageError(f"{where} {shown(text)}: {', '.join(names)} do not fit together; {EXPECTED}") from None


def _uniform(low: float, high: float) -> Distribution:
    if high < low:
        raise ValueError
    return Uniform(low, high)


def _lognormal(median: float, sigma: float = 0.8, low: float = 0.0, high: float = math.inf) -> Distribution:
    if median <= 0 or high < low:
        raise ValueError
    return LogNormal(median, sigma, low, high)


def _geometric(mean: float) -> Distribution:
    if mean < 1:
        raise ValueError
    return Geometric(mean)


_FIELDS = {"min": "low", "max": "high"}
_KINDS: dict[str, tuple[tuple[str, ...], Callable[..., Distribution]]] = {
    "fixed": (("value",), Fixed),
    "uniform": (("min", "max"), _uniform),
    "lognormal": (("median", "sigma", "min", "max"), _lognormal),
    "exponential": (("mean",), Exponential),
    "geometric": (("mean",), _geometric),
}

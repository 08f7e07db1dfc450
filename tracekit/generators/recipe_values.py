"""The values of a recipe: distributions ``u(a,b)``, ``ln(median,sigma,lo,hi)``, ``6000+u(a,b)``, ``80% X / 20% Y``, and arrivals
``poisson(rate)``, ``gamma(rate, cv=3)``, ``every(s,start)``, ``at(t)``, ``at(60*k) for k in 0..24``, ``X from 5``."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from tracekit.errors import UsageError, shown
from tracekit.generators.arrivals import Arrivals, At, Every, Process
from tracekit.generators.distributions import Distribution, Fixed, LogNormal, Mixture, Shifted, Uniform

__all__ = ["parse_amount", "parse_arrivals", "parse_quotient"]

_CALL = re.compile(r"\s*([a-z]+)\s*\(([^()]*)\)\s*")
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
AMOUNTS = "expected a number, u(a,b), ln(median,sigma,lo,hi), N+u(a,b), or shares of them as 80% X / 20% Y"
ARRIVALS = "expected poisson(rate), gamma(rate, cv=C), every(s,start), at(t), at(60*k) for k in 0..24, and `from T` after it"
MOST_BURSTS = 1_000_000


def parse_quotient(given: object, where: str) -> float:
    """A number, or one over another as ``1/900``. Errors: ``UsageError``."""
    top, slash, bottom = str(given).partition("/")
    try:
        value = float(top) / (float(bottom) if slash else 1.0)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if isinstance(given, bool) or not math.isfinite(value):
        raise UsageError(f"{where}: {shown(given)}: expected a number, or one over another as 1/900")
    return value


def parse_amount(given: object, where: str) -> Distribution:
    """Token counts. Errors: ``UsageError``."""
    text = str(given).strip()
    if "%" in text:
        return _mixture(text, where)
    shift = re.fullmatch(rf"({_NUMBER})\s*\+\s*(\S.*)", text)
    if shift:
        return Shifted(float(shift[1]), parse_amount(shift[2], where))
    if isinstance(given, bool) or given is None:
        raise UsageError(f"{where}: {shown(given)}: {AMOUNTS}")
    if re.fullmatch(_NUMBER, text):
        return Fixed(_positive(float(text), where, text))
    call = _CALL.fullmatch(text)
    values = _arguments(call[2], where, text) if call else []
    if call and call[1] == "u" and len(values) == 2 and values[0] <= values[1]:
        return Uniform(_positive(values[0], where, text), values[1])
    if call and call[1] == "ln" and len(values) in (2, 4) and values[0] > 0 and values[1] >= 0:
        low, high = values[2:] or (0.0, math.inf)
        if low <= high:
            return LogNormal(values[0], values[1], low, high)
    raise UsageError(f"{where}: {shown(text)}: not an amount; {AMOUNTS}")


def _positive(value: float, where: str, text: str) -> float:
    if not 0 <= value < math.inf:
        raise UsageError(f"{where}: {shown(text)}: {'below 0' if value < 0 else 'too large'}; {AMOUNTS}")
    return value


def _mixture(text: str, where: str) -> Distribution:
    parts = []
    for each in text.split("/"):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*(\S.*?)\s*", each)
        if not match:
            raise UsageError(f"{where}: {shown(text)}: not shares; {AMOUNTS}")
        parts.append((float(match[1]) / 100, parse_amount(match[2], where)))
    if abs(sum(share for share, _ in parts) - 1) > 1e-6:
        raise UsageError(f"{where}: {shown(text)}: the shares do not sum to 100 %")
    return Mixture(tuple(parts))


def _arguments(text: str, where: str, whole: str, named: str = "") -> list[float]:
    found = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, value = part.partition("=")
        if equals and name.strip() != named:
            raise UsageError(f"{where}: {shown(whole)}: {shown(name)}: not expected here")
        found.append(parse_quotient(value if equals else part, where))
    return found


def parse_arrivals(given: object, where: str) -> Arrivals:
    """When the requests of a load come. Errors: ``UsageError``."""
    text = str(given).strip()
    many = re.fullmatch(rf"at\(\s*({_NUMBER})\s*\*\s*k\s*\)\s+for\s+k\s+in\s+(\d+)\s*\.\.\s*(\d+)", text)
    if many and 0 <= int(many[3]) - int(many[2]) < MOST_BURSTS:
        return At(tuple(float(many[1]) * k for k in range(int(many[2]), int(many[3]) + 1)))
    rest, _, begin = text.partition(" from ")
    call = _CALL.fullmatch(rest)
    if call:
        values = _arguments(call[2], where, text, "cv")
        found = _called(call[1], values)
        if isinstance(found, Process) and begin:
            return replace(found, begin=parse_quotient(begin, where))
        if found is not None and not begin:
            return found
    raise UsageError(f"{where}: {shown(text)}: not arrivals; {ARRIVALS}")


def _called(name: str, values: list[float]) -> Arrivals | None:
    if name == "poisson" and len(values) == 1 and values[0] > 0:
        return Process(rate=values[0])
    if name == "gamma" and len(values) == 2 and values[0] > 0 and values[1] >= 0:
        return Process(rate=values[0], cv=values[1])
    if name == "every" and len(values) in (1, 2) and values[0] >= 0:
        return Every(*values)
    if name == "at" and len(values) == 1 and values[0] >= 0:
        return At((values[0],))
    return None

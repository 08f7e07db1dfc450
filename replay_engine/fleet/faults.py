"""Replicas that fail, come back, or are slow for a while: what was planned, from text like ``replica1@60s:30s``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from replay_engine.config import ConfigError
from replay_engine.types import NEVER

__all__ = ["LINK", "Fault", "parse_fault", "parse_pd_fault"]

_UNITS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "min": 60_000_000_000, "h": 3_600_000_000_000}
_TIME = r"[0-9]+(?:\.[0-9]+)?(?:us|ms|s|min|m|h)"
_FAIL = re.compile(rf"replica([0-9]+)@({_TIME})(?::({_TIME}))?")
_SLOW = re.compile(rf"replica([0-9]+)@({_TIME}):([0-9]+(?:\.[0-9]+)?)x(?::({_TIME}))?")
LINK = -1
"""The ``replica`` of a fault that is the links'."""
_NAMED = re.compile(r"\s*([PD])([0-9]+)(@.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """From ``at_ns`` to ``until_ns`` (``NEVER``: for good) ``replica`` is down, or takes ``factor`` times as long (0: down)."""

    replica: int
    at_ns: int
    until_ns: int = NEVER
    factor: float = 0.0


def parse_fault(text: str, *, slow: bool, replicas: int, option: str) -> Fault:
    """A fault from ``replica1@60s``, ``replica1@60s:30s`` or, ``slow``, ``replica2@60s:2x``, ``replica2@60s:2x:30s``; replicas
    are numbered from 0. ``ConfigError`` names ``option``."""
    match = (_SLOW if slow else _FAIL).fullmatch(text.strip())
    if match is None:
        wanted = "replica2@60s:2x (or replica2@60s:2x:30s)" if slow else "replica1@60s:30s (or replica1@60s, for good)"
        raise ConfigError(f"{option} {text!r}: not a fault; expected {wanted}")
    replica, at, *rest = match.groups()
    if int(replica) >= replicas:
        raise ConfigError(f"{option} {text!r}: no such replica; expected replica0 to replica{replicas - 1}")
    factor = float(rest.pop(0)) if slow else 0.0
    if slow and factor <= 0:
        raise ConfigError(f"{option} {text!r}: a replica cannot take no time; expected a factor above 0")
    length = _ns(rest[0]) if rest[0] else NEVER
    if not length:
        raise ConfigError(f"{option} {text!r}: lasts no time; expected a duration above 0, or none for good")
    begin = _ns(at)
    return Fault(replica=int(replica), at_ns=begin, until_ns=min(begin + length, NEVER), factor=factor)


def parse_pd_fault(text: str, *, slow: bool, prefill: int, decode: int, option: str) -> Fault:
    """A fault from ``P1@60s:30s``, ``D0@60s``, ``link@60s:5s``, or ``slow`` ``P1@60s:2x``; engines are numbered from 0 in their
    pool. ``ConfigError`` names ``option``."""
    link = re.fullmatch(r"\s*link(@.*)", text, re.DOTALL)
    if link is not None and not slow:
        found = parse_fault(f"replica0{link[1]}", slow=False, replicas=1, option=option)
        return Fault(replica=LINK, at_ns=found.at_ns, until_ns=found.until_ns)
    named = _NAMED.fullmatch(text)
    if named is None:
        wanted = "P1@60s:2x or D1@60s:2x:30s" if slow else "P1@60s:30s, D1@60s (for good) or link@60s:5s"
        raise ConfigError(f"{option} {text!r}: not a fault of separate pools; expected {wanted}")
    pool, number, rest = named.groups()
    count = prefill if pool == "P" else decode
    if int(number) >= count:
        raise ConfigError(f"{option} {text!r}: no such engine; expected {pool}0 to {pool}{count - 1}")
    try:
        found = parse_fault(f"replica{number}{rest}", slow=slow, replicas=count, option=option)
    except ConfigError as error:
        raise ConfigError(str(error).replace(f"'replica{number}{rest}'", repr(text)).replace("replica", pool)) from None
    first = 0 if pool == "P" else prefill
    return Fault(replica=first + int(number), at_ns=found.at_ns, until_ns=found.until_ns, factor=found.factor)


def _ns(text: str) -> int:
    number = re.match(r"[0-9.]+", text)
    assert number is not None
    return round(float(number[0]) * _UNITS[text[number.end() :]])

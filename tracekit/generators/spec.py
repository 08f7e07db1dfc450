"""What traffic is wanted: from options of a command line, or from a TOML file with the same names.

    requests = 5000
    seed = 7
    arrival = "gamma:rate=8,cv=3"
    [[tenants]]
    name = "chat"
    share = 0.7
    input = "lognormal:median=450,sigma=0.8"
    output = "lognormal:median=140,sigma=0.7,max=1024"
    prefix = { groups = 6, tokens = 320 }
    sessions = { turns = "geometric:mean=4", think = "lognormal:median=10,sigma=1" }
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracekit.errors import InputError, UsageError, shown
from tracekit.generators.arrivals import Process, parse_process
from tracekit.generators.distributions import Distribution, Fixed, LogNormal, number_of, parse_distribution

__all__ = ["Sessions", "Spec", "TenantSpec", "read_spec", "spec_of"]

DEFAULT_REQUESTS = 2000
_TENANT = ("name", "share", "class", "arrival", "input", "output", "max_tokens", "priority", "prefix", "sessions")
_TOP = ("requests", "seconds", "seed", "tenants", *_TENANT[2:])


@dataclass(frozen=True, slots=True)
class Sessions:
    """``turns`` requests a session; each comes ``think`` seconds after the answer to the one before."""

    turns: Distribution
    think: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSpec:
    """One sender. Lengths in tokens; ``groups`` prefixes of ``prefix_tokens`` are shared by its requests (on top of ``input``);
    ``arrival`` (at the tenant's own rate) places requests, or the first turns of sessions."""

    arrival: Process
    name: str | None = None
    slo_class: str | None = None
    share: float = 1.0
    input: Distribution = field(default_factory=lambda: LogNormal(500, 0.8, 1))
    output: Distribution = field(default_factory=lambda: LogNormal(150, 0.7, 1))
    max_tokens: int | None = None
    priority: int | None = None
    groups: int = 0
    prefix_tokens: int = 0
    sessions: Sessions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """``requests`` in all, or those that come in ``seconds``; the other is ``None``. Same spec and seed, same traffic."""

    tenants: tuple[TenantSpec, ...]
    requests: int | None = DEFAULT_REQUESTS
    seconds: float | None = None
    seed: int = 0


def read_spec(path: str | Path, over: Mapping[str, Any] | None = None) -> Spec:
    """A spec from a TOML file; what ``over`` gives is taken instead. Errors: ``InputError``, ``UsageError``."""
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not TOML: {error}", file=str(path), expected='lines like arrival = "poisson:rate=5"') from error
    return spec_of({**given, **{name: value for name, value in (over or {}).items() if value is not None}}, str(path))


def spec_of(given: Mapping[str, Any], where: str = "synth") -> Spec:
    """A spec from plain values by the names of the TOML file. Errors: ``UsageError``, one line each."""
    _known(given, _TOP, where)
    requests, seconds = given.get("requests"), given.get("seconds")
    if requests is not None and (not isinstance(requests, int) or isinstance(requests, bool) or requests < 1):
        raise UsageError(f"{where}: requests = {shown(requests)}: expected a whole number of at least 1")
    seconds = None if seconds is None else number_of(str(seconds), f"{where}: seconds", 0, inclusive=False)
    tenants = given.get("tenants") or [{}]
    if not isinstance(tenants, Sequence) or not all(isinstance(each, Mapping) for each in tenants):
        raise UsageError(f"{where}: tenants: expected a list of tables [[tenants]]")
    shares = [number_of(str(each.get("share", 1)), f"{where}: share", 0, inclusive=False) for each in tenants]
    rate = None if requests is None or seconds is None else requests / seconds
    common = {name: given[name] for name in _TENANT[2:] if name in given}
    places = [f"{where}: tenant {at + 1}" if len(tenants) > 1 else where for at in range(len(tenants))]
    made = tuple(
        _tenant({**common, **each}, share / sum(shares), rate, "arrival" in each, place)
        for each, share, place in zip(tenants, shares, places, strict=True)
    )
    seed = given.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise UsageError(f"{where}: seed = {shown(seed)}: expected a whole number from 0 on")
    if requests is None and seconds is None:
        requests = DEFAULT_REQUESTS
    return Spec(tenants=made, requests=requests, seconds=seconds if requests is None else None, seed=seed)


def _known(given: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    import difflib

    for name in given:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=3) or names
            raise UsageError(f"{where}: {shown(name)}: unknown; expected one of {', '.join(near)}")


def _tenant(given: Mapping[str, Any], share: float, rate: float | None, own: bool, where: str) -> TenantSpec:
    _known(given, _TENANT, where)
    text = given.get("arrival", "poisson" if rate is not None else "poisson:rate=5")
    process = parse_process(str(text), f"{where}: arrival", rate)
    prefix = given.get("prefix") or {}
    _known(prefix, ("groups", "tokens"), f"{where}: prefix")
    tokens, groups = (int(number_of(str(prefix.get(name, default)), f"{where}: prefix {name}", 0))
                      for name, default in (("tokens", 0), ("groups", 1)))  # fmt: skip
    if prefix and not (tokens and groups):
        raise UsageError(f"{where}: prefix: expected groups and tokens of at least 1, as groups=6 tokens=320")
    lengths = {name: parse_distribution(given[name], f"{where}: {name}") for name in ("input", "output") if name in given}
    limit, priority = given.get("max_tokens"), given.get("priority")
    return TenantSpec(
        # a tenant with an arrival of its own said its own rate; a shared one is split by shares
        arrival=process if own else process.faster(share),
        name=given.get("name"), slo_class=given.get("class"), share=share,
        max_tokens=None if limit is None else int(number_of(str(limit), f"{where}: max_tokens", 1)),
        priority=None if priority is None else int(number_of(str(priority), f"{where}: priority")),
        groups=groups if prefix else 0, prefix_tokens=tokens, sessions=_sessions(given.get("sessions"), where), **lengths,
    )  # fmt: skip


def _sessions(given: Mapping[str, Any] | None, where: str) -> Sessions | None:
    if not given:
        return None
    _known(given, ("turns", "think"), f"{where}: sessions")
    turns = parse_distribution(given.get("turns", "geometric:mean=4"), f"{where}: sessions turns")
    if isinstance(turns, Fixed) and turns.value < 1:
        raise UsageError(f"{where}: sessions turns: expected at least 1")
    return Sessions(turns, parse_distribution(given.get("think", "lognormal:median=10,sigma=1"), f"{where}: sessions think"))

"""Two profiles side by side: costs, where they come from, facts, and what typical iterations take under each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from replay_engine.buckets import padding_of
from replay_engine.calibration.cases import BatchCase, parse_case
from replay_engine.profile import Latency, Profile

__all__ = ["Differs", "ProfileDiff", "diff_profiles", "iteration_ns"]

TYPICAL = (
    "decode=1@1024", "decode=32*1@1024", "decode=128*1@1024", "decode=32*1@8192", "prefill=256", "prefill=2048", "prefill=8192",
    "chunk=512@8192c", "mix=512,32*1@1024",
)  # fmt: skip
PADDED = ("decode=33*1@1024",)
"""Beside them where padding costs: one more than fits the graph."""
SKEWED = ("decode=1@16384,31*1@1024",)
"""Where the longest context costs: one of 16 times the others'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Differs:
    """One thing of both; ``percent``: of numbers, the other over the one."""

    what: str
    one: Any
    other: Any
    percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDiff:
    """All coefficients and typical iterations (ms, device and host one after the other); sources and facts only where they
    differ."""

    names: tuple[str, str]
    coefficients: tuple[Differs, ...]
    iterations: tuple[Differs, ...]
    sources: tuple[Differs, ...]
    facts: tuple[Differs, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def diff_profiles(one: Profile, other: Profile) -> ProfileDiff:
    """What changes from ``one`` to ``other``."""
    costs = [each.latency.costs() for each in (one, other)]
    typical = TYPICAL + PADDED * any(each.latency.p_ns for each in (one, other))
    typical += SKEWED * any(each.latency.s_ns for each in (one, other))
    cases = [parse_case(text) for text in typical]
    facts = [_facts(each) for each in (one, other)]
    sources = [each.provenance for each in (one, other)]
    return ProfileDiff(
        names=(one.name, other.name),
        coefficients=tuple(_number(key, costs[0].get(key, 0.0), costs[1].get(key, 0.0)) for key in {**costs[0], **costs[1]}),
        iterations=tuple(
            _number(case.name, iteration_ns(one.latency, case) / 1e6, iteration_ns(other.latency, case) / 1e6) for case in cases
        ),
        sources=_unequal(sources[0], sources[1]), facts=_unequal(facts[0], facts[1]),
    )  # fmt: skip


def iteration_ns(latency: Latency, case: BatchCase) -> float:
    """Device and host time of one iteration, ns."""
    seqs, kv = len(case.decodes), sum(case.decodes)
    base = max(latency.floor_ns, latency.a_ns + latency.b_ns * case.tokens)
    device = base + latency.c_ns * case.qk + latency.d_ns * seqs + latency.e_ns * kv
    device += latency.p_ns * float(padding_of(np.array([case.tokens]), np.array([seqs]))[0])
    device += latency.s_ns * (max(case.decodes) - kv / seqs) if seqs else 0.0
    return device + latency.h0_ns + latency.h1_ns * len(case.shapes)


def _number(what: str, one: float, other: float) -> Differs:
    return Differs(what=what, one=one, other=other, percent=round(100 * (other / one - 1), 2) if one else None)


def _facts(profile: Profile) -> dict[str, Any]:
    found: dict[str, Any] = {"physics": "off" if profile.synthetic else "on"}
    for table in ("model", "hardware"):
        facts = getattr(profile, table)
        found |= {f"{table}.{key}": value for key, value in (asdict(facts) if facts is not None else {}).items()}
    held = profile.fit.get("settings")
    found |= {f"fit.settings.{knob}": value for knob, value in (held.items() if isinstance(held, dict) else ())}
    return found | {f"fit.{key}": value for key, value in profile.fit.items() if not isinstance(value, dict)}


def _unequal(one: dict[str, Any], other: dict[str, Any]) -> tuple[Differs, ...]:
    return tuple(
        Differs(what=key, one=one.get(key), other=other.get(key)) for key in {**one, **other} if one.get(key) != other.get(key)
    )

"""A whole study, decided before the first replay. The same plan has the same key, and so finds its study again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from replay_engine.policy import Policy
from replay_engine.profile import Profile, parse_profile
from tracekit.experiments.plan import engine_digest
from tracekit.metrics import SloTable
from tuner.cells import Cell
from tuner.objective import OBJECTIVES, Objective
from tuner.space import Point, Space, configuration_key
from tuner.windows import StudyWindow

__all__ = ["PLAN", "TunePlan", "TunedTrace"]

VERSION = 2
PLAN = "plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedTrace:
    """A trace's windows to search on and to prove on; ``lines``: what its traffic is like and how they lie."""

    name: str
    digest: str
    search: tuple[StudyWindow, ...]
    held: tuple[StudyWindow, ...]
    lines: tuple[str, ...]
    span_ns: int = 0

    @property
    def turns(self) -> bool:
        """Whether windows of both kinds take turns, rather than that one kind is the later part of the trace."""
        return bool(self.held) and min(w.begin_ns for w in self.held) < max(w.begin_ns for w in self.search)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> TunedTrace:
        windows = {side: tuple(StudyWindow.from_dict(w) for w in document[side]) for side in ("search", "held")}
        return cls(name=document["name"], digest=document["digest"], lines=tuple(document["lines"]),
                   span_ns=document["span_ns"], **windows)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TunePlan:
    """Policy, profile and SLO as documents; ``also``: other traces that the answer is held against. ``target``: the attainment
    that capacity, replicas and a cost are for. ``price``: of a card and hour; ``cards``: of the current policy."""

    trace: TunedTrace
    also: tuple[TunedTrace, ...]
    policy_document: dict[str, Any]
    profile_text: str
    slo_document: dict[str, Any]
    space_document: dict[str, Any]
    objective_names: tuple[str, ...]
    target: float
    price: float | None
    cards: int
    seed: int
    accept_degraded: bool

    @cached_property
    def policy(self) -> Policy:
        """The current policy."""
        return Policy.from_dict(self.policy_document)

    @cached_property
    def profile(self) -> Profile:
        return parse_profile(self.profile_text)

    @cached_property
    def slo(self) -> SloTable:
        return SloTable.from_dict(self.slo_document)

    @cached_property
    def space(self) -> Space:
        return Space.from_dict(self.space_document)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return tuple(OBJECTIVES[name] for name in self.objective_names)

    @cached_property
    def current(self) -> Point:
        """Where the current policy lies."""
        return self.space.point_of(self.policy)

    @property
    def windows(self) -> list[StudyWindow]:
        """Of all traces, those searched before those held out."""
        return [window for trace in (self.trace, *self.also) for side in (trace.search, trace.held) for window in side]

    def policy_at(self, point: Point) -> Policy:
        """The policy of a point; at its own point the current one exactly as it is. ``ConfigError`` where it is none."""
        return self.policy if point == self.current else self.space.policy(self.policy, point, self.profile)

    def cell(self, policy: Policy, window: StudyWindow, *, rate: float = 1.0, profile: Profile | None = None) -> Cell:
        """One replay."""
        return Cell(window=window, policy=policy, profile=profile or self.profile, slo=self.slo, seed=self.seed,
                    accept_degraded=self.accept_degraded, rate=rate)  # fmt: skip

    def key(self) -> str:
        """Sixteen hex digits: equal for plans whose searches are equal."""
        windows = [[w.key() for w in self.trace.search], [w.key() for w in self.trace.held]]
        matters = [VERSION, engine_digest(), windows, configuration_key(self.policy), self.profile_text, self.slo_document,
                   self.space_document, self.objective_names, self.target, self.price, self.cards, self.seed,
                   self.accept_degraded]  # fmt: skip
        return hashlib.sha256(json.dumps(matters, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> TunePlan:
        """The inverse of ``to_dict``, after a round through JSON."""
        also = tuple(TunedTrace.from_dict(trace) for trace in document["also"])
        trace = TunedTrace.from_dict(document["trace"])
        return cls(**{**document, "trace": trace, "also": also, "objective_names": tuple(document["objective_names"])})

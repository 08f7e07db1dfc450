"""What may be tried: knobs with their levels, which of them depend on others, and what must not be combined.

A *point* is one level for every knob that is active in it, by the knob's name. Levels rather than ranges: what lies between two
neighbouring levels is nobody's difference to tell, a configuration that was replayed can be met again, and the neighbours of an
answer are its levels one step to either side.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from replay_engine.policy import Policy, apply_set, default_policy
from replay_engine.profile import Profile
from replay_engine.rule_tables import rules_to
from replay_engine.rules import Rules
from tracekit.experiments.knobs import flat_policy, knob_text

__all__ = ["BUDGET", "CHUNK", "POOLS", "SEQS", "Knob", "Point", "Space", "configuration_key"]

Point = dict[str, Any]
BUDGET, SEQS, CHUNK = "max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold"
POOLS = "pd"
"""A knob of its own: ``P:D`` prefill and decode engines, or ``0:0``, as many engines that do both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A knob under the name that ``--set`` takes, with its levels in order. ``ordered``: neighbouring levels are alike.

    ``when``: (another knob, its levels at which this one means anything).
    """

    name: str
    levels: tuple[Any, ...]
    ordered: bool = True
    when: tuple[str, tuple[Any, ...]] | None = None

    def index(self, level: Any) -> int:
        """Where a level stands. ``ValueError`` where it is none."""
        return self.levels.index(level)

    def with_level(self, level: Any) -> Knob:
        """The knob with one more level in its place."""
        if level in self.levels:
            return self
        if not self.ordered or isinstance(level, str) or level is None:
            return replace(self, levels=(*self.levels, level))
        last = self.levels[-1:] if self.name == CHUNK and self.levels[-1] == 0 else ()
        inner = self.levels[: len(self.levels) - len(last)]
        return replace(self, levels=(*sorted((*inner, level)), *last))

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "levels": list(self.levels), "ordered": self.ordered,
                "when": None if self.when is None else [self.when[0], list(self.when[1])]}  # fmt: skip

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Knob:
        when = document["when"]
        return cls(name=document["name"], levels=tuple(document["levels"]), ordered=document["ordered"],
                   when=None if when is None else (when[0], tuple(when[1])))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Knobs, in an order in which whatever one depends on stands before it. ``engines``: those that ``pd`` shares out."""

    knobs: tuple[Knob, ...]
    engines: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(knob.name for knob in self.knobs)

    def knob(self, name: str) -> Knob:
        """A knob by name. ``KeyError`` where there is none."""
        return {knob.name: knob for knob in self.knobs}[name]

    def active(self, point: Mapping[str, Any]) -> Point:
        """The point without knobs that mean nothing in it."""
        kept: Point = {}
        for knob in self.knobs:
            if knob.name in point and (knob.when is None or kept.get(knob.when[0]) in knob.when[1]):
                kept[knob.name] = point[knob.name]
        return kept

    def broken(self, point: Mapping[str, Any]) -> str | None:
        """Which constraint a point breaks; whether its KV fits is seen when its policy is derived."""
        budget = point.get(BUDGET)
        if budget is None:
            return None
        if point.get(SEQS, 0) > budget:
            return f"{SEQS} = {point[SEQS]} is above the token budget of {budget}"
        if point.get(CHUNK, 0) >= budget:
            return f"{CHUNK} = {point[CHUNK]} is no cap below the token budget of {budget}"
        if point.get("batching.decode_reserve", 0) >= budget:
            return f"batching.decode_reserve = {point['batching.decode_reserve']} leaves nothing of the budget of {budget}"
        return None

    def points(self) -> Iterator[Point]:
        """Every point that breaks no constraint, each once."""
        seen = set()
        for levels in product(*(knob.levels for knob in self.knobs)):
            point = self.active(dict(zip(self.names, levels, strict=True)))
            mark = tuple(point.items())
            if mark not in seen and self.broken(point) is None:
                seen.add(mark)
                yield point

    @property
    def size(self) -> int:
        """Combinations of levels, constraints and conditions left aside."""
        total = 1
        for knob in self.knobs:
            total *= len(knob.levels)
        return total

    def neighbours(self, point: Mapping[str, Any]) -> Iterator[tuple[str, int, Point]]:
        """(knob, step, point) for one step of one knob; of a knob without order, every other level (step 0)."""
        for name, level in point.items():
            knob = self.knob(name)
            at = knob.index(level)
            steps = [(-1, at - 1), (1, at + 1)] if knob.ordered else [(0, i) for i in range(len(knob.levels)) if i != at]
            for step, to in steps:
                if 0 <= to < len(knob.levels):
                    moved = self.completed({**point, name: knob.levels[to]}, point)
                    if self.broken(moved) is None:
                        yield name, step, moved

    def completed(self, point: Mapping[str, Any], other: Mapping[str, Any]) -> Point:
        """``point`` with a level for every knob that it makes active: ``other``'s, else the first one."""
        full = {knob.name: point.get(knob.name, other.get(knob.name, knob.levels[0])) for knob in self.knobs}
        return self.active(full)

    def distance(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[int, int]:
        """How far two points are apart: knobs that differ, and steps in all."""
        knobs = steps = 0
        for knob in self.knobs:
            a, b = one.get(knob.name), other.get(knob.name)
            if a == b:
                continue
            knobs += 1
            steps += abs(knob.index(a) - knob.index(b)) if knob.ordered and a is not None and b is not None else 1
        return knobs, steps

    def point_of(self, policy: Policy) -> Point:
        """Where a policy lies in the space; its values need not be levels."""
        flat = flat_policy(policy.to_dict())
        if policy.rules.pd.prefill:
            flat[POOLS] = f"{policy.rules.pd.prefill}:{policy.rules.pd.decode}"
        else:
            flat[POOLS] = "0:0"
        point = self.active({name: flat.get(name) for name in self.names})
        if CHUNK in point and point[CHUNK] >= flat[BUDGET]:
            point[CHUNK] = 0  # a cap that nothing reaches
        return point

    def holding(self, point: Mapping[str, Any]) -> Space:
        """The space with the point's values among its levels."""
        return replace(self, knobs=tuple(k.with_level(point[k.name]) if k.name in point else k for k in self.knobs))

    def sets(self, point: Mapping[str, Any]) -> list[str]:
        """The point in the language of ``--set``."""
        said: list[str] = []
        for name, level in point.items():
            if name != POOLS:
                said.append(f"{name}={knob_text(level)}")
                continue
            prefill, _, decode = str(level).partition(":")
            said += [f"pd.prefill={prefill}", f"pd.decode={decode}", f"fleet.replicas={1 if int(prefill) else self.engines}"]
        return said

    def policy(self, current: Policy, point: Mapping[str, Any], profile: Profile) -> Policy:
        """The current policy at this point. ``ConfigError`` where it is no configuration, as when its KV does not fit."""
        return apply_set(current, self.sets(point), profile)

    def defaults(self, current: Policy, profile: Profile) -> Point:
        """The engine's own defaults for the knobs of the space; whatever else the current policy sets stays."""
        point = self.point_of(default_policy(profile))
        if POOLS in point:
            point[POOLS] = self.point_of(current)[POOLS]
        return point

    def to_dict(self) -> dict[str, Any]:
        return {"knobs": [knob.to_dict() for knob in self.knobs], "engines": self.engines}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Space:
        return cls(knobs=tuple(Knob.from_dict(knob) for knob in document["knobs"]), engines=document["engines"])


def configuration_key(policy: Policy, but: Container[str] = ()) -> str:
    """Sixteen hex digits over what a policy leads to: two policies of one key replay alike, however they were written. ``but``:
    knobs that are left out."""
    engines = {pool: asdict(config) for pool, config in policy.engines.items()}
    document = {"scheduler": asdict(policy.scheduler), "rules": _tables_of(policy.rules), "engines": engines}
    flat = {name: value for name, value in flat_policy(document).items() if name not in but}
    return hashlib.sha256(json.dumps(flat, sort_keys=True, default=str).encode()).hexdigest()[:16]



_LAST: list[tuple[Rules, Mapping[str, Mapping[str, Any]]]] = []
"""The rules asked for last, and their tables: most policies of a study share them, and each is asked for its key a few times. One
pair, replaced as one: whoever finds the rules that it asks for has their tables, whatever other threads ask for meanwhile."""


def _tables_of(rules: Rules) -> Mapping[str, Mapping[str, Any]]:
    for known, tables in _LAST:
        if known is rules:
            return tables
    tables = rules_to(rules)
    _LAST[:] = [(rules, tables)]
    return tables

"""A whole experiment, decided before the first replay: levels, traces, windows. The same plan has the same key.

A plan is plain data: it is written as JSON beside its results, which is where worker processes and a later start of the same
command find it. What was replayed is found again by the key, which covers everything that decides a figure: the engine's own
source, every level's derived configuration, the traces' bytes, windows, lead-ins, seed and SLO.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import replay_engine
from replay_engine.policy import Policy
from replay_engine.profile import Profile, parse_profile
from tracekit import __version__
from tracekit.experiments.measures import MEASURES
from tracekit.fingerprint import sources_digest
from tracekit.metrics import SloTable
from tracekit.traces.slicing import Slice

__all__ = ["Cell", "Plan", "PlannedLevel", "PlannedTrace", "engine_digest"]

VERSION = 1


class Cell(NamedTuple):
    """One replay: the index of its trace, window (within the trace) and level."""

    trace: int
    window: int
    level: int

    @property
    def name(self) -> str:
        return f"t{self.trace}-w{self.window}-l{self.level}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTrace:
    """A loaded trace and its windows (ns from trace start); ``requests``: in each; ``facts``: what its traffic is like."""

    trace: int
    name: str
    digest: str
    windows: tuple[tuple[int, int], ...]
    requests: tuple[int, ...]
    lead_in_ns: int
    facts: dict[str, Any]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLevel:
    """A level's text, and its policy, profile and SLO as documents."""

    text: str
    policy: dict[str, Any]
    profile: str
    slo: dict[str, Any] | None

    def restored(self) -> tuple[Policy, Profile, SloTable | None]:
        return (
            Policy.from_dict(self.policy),
            parse_profile(self.profile),
            None if self.slo is None else SloTable.from_dict(self.slo),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The factor, its levels (the first is the baseline), the traces, and the slice options that all windows share."""

    factor: str
    pinned: tuple[str, ...]
    levels: tuple[PlannedLevel, ...]
    traces: tuple[PlannedTrace, ...]
    part: dict[str, Any]
    """Fields of ``Slice`` other than its window and lead-in."""
    seed: int
    accept_degraded: bool
    notes: tuple[str, ...] = ()

    def cells(self) -> Iterator[Cell]:
        """Every replay: all levels of a window one after the other, the windows with most requests first."""
        spots = [(-n, t, w) for t, trace in enumerate(self.traces) for w, n in enumerate(trace.requests)]
        for _, t, w in sorted(spots):
            for level in range(len(self.levels)):
                yield Cell(t, w, level)

    def slice_of(self, cell: Cell) -> Slice:
        """The part of the trace that a cell replays."""
        trace = self.traces[cell.trace]
        part = {**self.part, "thin": None if self.part["thin"] is None else tuple(self.part["thin"])}
        return replace(Slice(**part), window_ns=trace.windows[cell.window], lead_in_ns=trace.lead_in_ns)

    def events(self) -> str:
        """What must be kept of a replay: every gap where the SLO asks for their P99, else outcomes."""
        asked = any("itl_ns" in json.dumps(level.slo) for level in self.levels if level.slo is not None)
        return "full" if asked else "outcomes"

    def key(self) -> str:
        """Sixteen hex digits: equal for plans whose replays are equal."""
        document = self.to_dict()
        del document["notes"]
        for trace in document["traces"]:
            for name in ("trace", "name", "facts", "lines"):
                del trace[name]
        for level in document["levels"]:
            for name in ("name", "settings", "slo", "notes"):  # what they lead to counts; the SLO is the level's
                del level["policy"][name]
        matters = [VERSION, __version__, engine_digest(), list(MEASURES), document]
        return hashlib.sha256(json.dumps(matters, sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Plan:
        """The inverse of ``to_dict``, after a round through JSON."""
        given = dict(document)
        given["levels"] = tuple(PlannedLevel(**level) for level in given["levels"])
        given["traces"] = tuple(_trace_of(trace) for trace in given["traces"])
        return cls(**{**given, "pinned": tuple(given["pinned"]), "notes": tuple(given["notes"])})


def _trace_of(document: Mapping[str, Any]) -> PlannedTrace:
    windows = tuple((int(begin), int(end)) for begin, end in document["windows"])
    return PlannedTrace(**{**document, "windows": windows, "requests": tuple(document["requests"]),
                           "lines": tuple(document["lines"])})  # fmt: skip


@cache
def engine_digest() -> str:
    """The engine's source as a digest: results of one engine are not mixed with another's."""
    return sources_digest(replay_engine)

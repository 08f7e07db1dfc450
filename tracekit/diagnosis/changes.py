"""A change of what decided a run, as a setup that can be replayed: the same requests, and nothing else touched.

The language is that of ``--set``. Two words more are about the traffic, for what no policy holds: ``traffic.arrivals=even``
(the same requests at even distances) and ``traffic.rate_scale=0.8`` (the same requests, fewer a second).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from replay_engine.policy import apply_set
from tracekit.door_facts import door_facts
from tracekit.errors import UsageError, shown
from tracekit.experiments.knobs import differing, flat_policy, knob_text

if TYPE_CHECKING:
    from tracekit.replay import Setup
    from tracekit.traces.source import TraceSource

__all__ = ["TRAFFIC", "Changed", "changed_setup", "recordable"]

TRAFFIC = "traffic."
"""What the words about the traffic begin with."""
_EXPECTED = "expected traffic.arrivals=even or traffic.rate_scale=NUMBER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """``setup``: what to replay. ``named``: the knobs that were asked for and differ, ``besides``: those that were derived anew
    because of them; both as (knob, before, after)."""

    setup: Setup
    named: tuple[tuple[str, str, str], ...]
    besides: tuple[tuple[str, str, str], ...]


def recordable(sets: Sequence[str]) -> bool:
    """Whether a run of its own can have these settings (``tracekit replay --from-run RUN --set ...``): traffic that was moved is
    replayed and not recorded."""
    return not any(pair.startswith(TRAFFIC) for pair in sets)


def changed_setup(setup: Setup, sets: Sequence[str]) -> Changed:
    """``setup`` with ``sets`` applied. Its requests are a copy; its own are left alone. Errors: ``ConfigError`` (no such knob, no
    such configuration), ``UsageError`` (it changes nothing, or is about traffic that cannot be moved)."""
    traffic = [pair for pair in sets if pair.startswith(TRAFFIC)]
    policy = apply_set(setup.policy, [pair for pair in sets if pair not in traffic], setup.profile)
    before, after = (flat_policy(each.to_dict()) for each in (setup.policy, policy))
    asked = {pair.partition("=")[0].strip().removeprefix("scheduler.") for pair in sets}
    moved = [(name, knob_text(before.get(name)), knob_text(after.get(name))) for name in differing(before, after)]
    source = copy.copy(setup.source)
    for pair in traffic:
        moved.append(_moved_traffic(source, pair))
    if not moved:
        raise UsageError(f"{shown(', '.join(sets) or 'no setting', 300)}: changes nothing of this run; expected another value")
    named = tuple(each for each in moved if _is_named(each[0], asked))
    facts = door_facts(policy, setup.profile, setup.slo, source)
    changed = replace(setup, policy=policy, source=source, facts=facts, torch=None)
    return Changed(setup=changed, named=named, besides=tuple(each for each in moved if each not in named))


def _is_named(knob: str, asked: set[str]) -> bool:
    """Whether ``knob`` is one of those asked for, or a pool's copy of one."""
    parts = knob.split(".")
    return knob in asked or (parts[0] == "pools" and parts[-1] in asked)


def _moved_traffic(source: TraceSource, pair: str) -> tuple[str, str, str]:
    name, _, value = pair.partition("=")
    arrival = source.arrival_ns
    if source.parent is not None:
        raise UsageError(f"{shown(pair)}: requests of this trace wait for each other, so their arrivals are not free to move")
    if (name, value) == ("traffic.arrivals", "even"):
        moved = np.rint(np.linspace(float(arrival[0]), float(arrival[-1]), len(arrival))).astype(np.int64)
        said = (name, "as recorded", "even")
    elif name == "traffic.rate_scale":
        try:
            scale = float(value)
        except ValueError:
            scale = math.nan
        if not scale > 0 or math.isinf(scale):
            raise UsageError(f"{shown(pair)}: {shown(value)}: expected a number above 0")
        moved = np.rint(arrival / scale).astype(np.int64)
        said = (name, "1", f"{scale:g}")
        source.window_ns = round(source.window_ns / scale)
    else:
        raise UsageError(f"{shown(pair)}: unknown; {_EXPECTED}")
    _shift(source, moved)
    return said


def _shift(source: TraceSource, moved: Any) -> None:
    """Deadlines and cancels keep their distance from the arrival."""
    by = moved - source.arrival_ns
    for name in ("deadline_ns", "cancel_ns"):
        column = getattr(source, name)
        if column is not None:
            setattr(source, name, np.where(column < 0, -1, column + by))
    source.arrival_ns = source.start_ns = moved

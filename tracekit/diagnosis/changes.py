"""A change of what decided a run, as a setup that can be replayed: the same requests, and nothing else touched.

The language is that of ``--set``. Two words more are about the traffic, for what no policy holds: ``traffic.burst_scale=0``
(the same requests at even distances) and ``traffic.rate_scale=0.8`` (fewer a second), which mean what the options so named do.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from replay_engine.policy import apply_set
from tracekit.door_facts import door_facts
from tracekit.errors import UsageError, shown
from tracekit.experiments.knobs import differing, flat_policy, knob_text
from tracekit.traces.clock import moved

if TYPE_CHECKING:
    from tracekit.replay import Setup
    from tracekit.traces.source import TraceSource

__all__ = ["TRAFFIC", "Changed", "again_options", "changed_setup"]

TRAFFIC = "traffic."
"""What the words about the traffic begin with."""
_WORDS = ("rate_scale", "burst_scale")
_EXPECTED = "expected traffic.rate_scale=NUMBER or traffic.burst_scale=NUMBER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """``setup``: what to replay. ``named``: the knobs that were asked for and differ, ``besides``: those that were derived anew
    because of them; both as (knob, before, after)."""

    setup: Setup
    named: tuple[tuple[str, str, str], ...]
    besides: tuple[tuple[str, str, str], ...]


def again_options(sets: Sequence[str]) -> list[str]:
    """What records the replay with these settings, beside ``tracekit replay --from-run RUN``: ``--set`` for a knob, and the
    options of the part that is replayed for the traffic."""
    return [
        f"--{pair.removeprefix(TRAFFIC).replace('_', '-', 1)}" if pair.startswith(TRAFFIC) else f"--set={pair}" for pair in sets
    ]


def changed_setup(setup: Setup, sets: Sequence[str]) -> Changed:
    """``setup`` with ``sets`` applied. Its requests are a copy; its own are left alone. Errors: ``ConfigError`` (no such knob, no
    such configuration), ``UsageError`` (it changes nothing, or is about traffic that cannot be moved)."""
    traffic = [pair for pair in sets if pair.startswith(TRAFFIC)]
    policy = apply_set(setup.policy, [pair for pair in sets if pair not in traffic], setup.profile)
    before, after = (flat_policy(each.to_dict()) for each in (setup.policy, policy))
    asked = {pair.partition("=")[0].strip().removeprefix("scheduler.") for pair in sets}
    told = [(name, knob_text(before.get(name)), knob_text(after.get(name))) for name in differing(before, after)]
    source = _moved(setup.source, traffic, told)
    if not told:
        raise UsageError(f"{shown(', '.join(sets) or 'no setting', 300)}: changes nothing of this run; expected another value")
    named = tuple(each for each in told if _is_named(each[0], asked))
    facts = door_facts(policy, setup.profile, setup.slo, source)
    changed = replace(setup, policy=policy, source=source, facts=facts, torch=None)
    return Changed(setup=changed, named=named, besides=tuple(each for each in told if each not in named))


def _is_named(knob: str, asked: set[str]) -> bool:
    """Whether ``knob`` is one of those asked for, or a pool's copy of one."""
    parts = knob.split(".")
    return knob in asked or (parts[0] == "pools" and parts[-1] in asked)


def _moved(source: TraceSource, traffic: Sequence[str], told: list[tuple[str, str, str]]) -> TraceSource:
    """A copy of ``source`` with its arrivals as the words about the traffic have it; what they change goes to ``told``."""
    by: dict[str, float] = {}
    for pair in traffic:
        name, _, value = pair.removeprefix(TRAFFIC).partition("=")
        if name not in _WORDS:
            raise UsageError(f"{shown(pair)}: unknown; {_EXPECTED}")
        try:
            by[name] = float(value)
        except ValueError:
            raise UsageError(f"{shown(pair)}: {shown(value)}: expected a number") from None
    found = moved(source, **by) if by else copy.copy(source)
    told += [(f"{TRAFFIC}{name}", "1", f"{scale:g}") for name, scale in by.items() if scale != 1.0]
    return found

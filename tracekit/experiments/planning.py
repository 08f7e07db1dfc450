"""From what was asked to a plan: levels, traces, windows, and whatever must be refused before the first replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tracekit.door_facts import door_facts, door_notes
from tracekit.errors import UsageError, shown
from tracekit.experiments.factor import Factor, Level, resolve_factor
from tracekit.experiments.layout import lay_windows, trace_facts
from tracekit.experiments.plan import Plan, PlannedLevel, PlannedTrace
from tracekit.metrics import SloTable
from tracekit.metrics.slo import parse_duration_ns
from tracekit.replay import _slo, _trace
from tracekit.slices import lead_in_ns, parse_window, slice_lines, slice_of
from tracekit.store import Store
from tracekit.traces.source import TraceSource

__all__ = ["make_plan"]

_PART = ("limit", "rate_scale", "where", "thin", "by", "spread_ticks", "sessions", "seed")
Say = Callable[[str], None]


def make_plan(store: Store, given: Mapping[str, Any], tell: Say, begin: Callable[[], None]) -> Plan:
    """The plan of ``experiment``'s arguments ``given``; traces that are files are loaded. ``begin()`` is called when the
    factor stands and what takes time begins. Errors: ``UsageError``, ``InputError``, ``ConfigError``."""
    if given["windows"] < 1:
        raise UsageError(f"--windows {given['windows']}: expected at least 1")
    factor = resolve_factor(given["vary"], policy=given["policy"], sets=given["sets"], profile=given["profile"], pin=given["pin"])
    slos = [_slo(dict(given), level.policy) for level in factor.levels]
    _tell_factor(factor, tell)
    begin()
    names = [given["traces"]] if isinstance(given["traces"], str) else list(given["traces"])
    traces = tuple(_planned(store, {**given, "inputs": [name]}, factor.levels, slos, tell) for name in names)
    twice = next((trace.name for at, trace in enumerate(traces) if trace.digest in [t.digest for t in traces[:at]]), None)
    if twice is not None:
        raise UsageError(f"{shown(twice)}: the same trace twice; a conclusion across traces needs different ones")
    levels = tuple(
        PlannedLevel(text=level.text, policy=level.policy.to_dict(), profile=level.profile.to_toml(),
                     slo=None if slo is None else slo.to_dict())
        for level, slo in zip(factor.levels, slos, strict=True)
    )  # fmt: skip
    part = slice_of({name: given[name] for name in _PART if name != "limit"}, 0, None)
    return Plan(
        factor=factor.name, pinned=factor.pinned, levels=levels, traces=traces, seed=given["seed"],
        part={name: getattr(part, name) for name in _PART}, accept_degraded=given["accept_degraded"],
    )  # fmt: skip


def _tell_factor(factor: Factor, tell: Say) -> None:
    base = factor.levels[0]
    others = ", ".join(shown(level.text) for level in factor.levels[1:])
    tell(f"engine: simulator, {base.profile.describe()}")
    tell(f"factor: {factor.name}, {shown(base.text)} (the baseline) against {others}; every other knob is the same")
    for each in factor.pinned:
        tell(f"pinned: {each} at every level, because {factor.name} would move it")
    for note in base.policy.notes:
        tell(f"policy: {note}")


def _planned(store: Store, given: dict[str, Any], levels: tuple[Level, ...], slos: list[SloTable | None],
             tell: Say) -> PlannedTrace:  # fmt: skip
    """One trace with its windows. A level that cannot be replayed on it is refused here, not by a worker."""
    trace, name, t0_ns, span_ns = _trace(store, given, tell)
    part = slice_of({name: given[name] for name in _PART if name not in ("limit", "rate_scale")}, span_ns, t0_ns)
    with store.read() as con:
        digest = str(con.execute("SELECT digest FROM traces WHERE trace = ?", [trace]).fetchall()[0][0])
        lead = max(lead_in_ns(con, trace, level.profile) for level in levels)
        source = TraceSource.from_database(con, trace, part)
    for level, slo in zip(levels, slos, strict=True):
        door_facts(level.policy, level.profile, slo, source)
    for line in [*slice_lines(source), *door_notes(levels[0].policy, source)]:
        tell(f"{shown(name)}: {line}")
    length = parse_duration_ns(given["length"], where="--length") if given["length"] else None
    stretch = parse_window(given["window"], span_ns, t0_ns) if given["window"] else None
    layout = lay_windows(source.start_ns, given["windows"], length_ns=length, lead_in_ns=lead, part=stretch)
    at = np.sort(source.start_ns)
    requests = tuple(int(np.searchsorted(at, end) - np.searchsorted(at, begin)) for begin, end in layout.windows)
    facts = trace_facts(source)
    lines = (facts.line(), layout.line(lead), *layout.notes)
    tell(f"{shown(name)}: {'; '.join(lines[1:])}")
    if len(layout.windows) < 2:
        tell(f"{shown(name)}: fewer than two windows: no interval, and so no conclusion, from this trace")
    return PlannedTrace(trace=trace, name=name, digest=digest, windows=layout.windows, requests=requests, lead_in_ns=lead,
                        facts=facts.to_dict(), lines=lines)  # fmt: skip

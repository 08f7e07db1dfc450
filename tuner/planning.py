"""From what was asked to a plan: space, windows, objective, and whatever must be refused before the first replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from replay_engine.policy import Policy
from replay_engine.profile import DEFAULT_PROFILE, Profile, load_profile
from tracekit.door_facts import door_facts, door_notes
from tracekit.errors import UsageError, shown
from tracekit.experiments.layout import Layout, lay_windows, trace_facts
from tracekit.metrics import SloTable
from tracekit.metrics.slo import parse_duration_ns
from tracekit.policy_source import policy_from
from tracekit.replay import _slo, _trace
from tracekit.slices import lead_in_ns, parse_window, slice_lines, slice_of
from tracekit.store import Store
from tracekit.traces.source import TraceSource
from tuner.objective import parse_objectives
from tuner.plan import TunedTrace, TunePlan
from tuner.space import Space
from tuner.space_choice import choose_space
from tuner.windows import split_windows, windows_of

__all__ = ["base_of", "cards_of", "make_plan", "planned_trace"]

SCALES = ("isl_scale", "osl_scale", "burst_scale")
PART = ("limit", "where", "thin", "by", "spread_ticks", "sessions", "seed")
Say = Callable[[str], None]


def base_of(given: Mapping[str, Any], tell: Say) -> tuple[Profile, Policy, SloTable]:
    """Profile, current policy and SLO of a command's options. Errors: ``UsageError``, ``ConfigError``."""
    profile = load_profile(given["profile"] or DEFAULT_PROFILE)
    policy = policy_from(profile, given["policy"], given["sets"])
    tell(f"engine: simulator, {profile.describe()}")
    for note in policy.notes:
        tell(f"policy: {note}")
    slo = _slo(dict(given), policy)
    if slo is None:
        raise UsageError("--slo: nothing says which requests are good; expected one, as --slo ttft=500ms,tpot=50ms")
    return profile, policy, slo


def cards_of(policy: Policy, profile: Profile) -> int:
    """Cards that a policy's engines run on."""
    return policy.rules.engine_count * (profile.hardware.tensor_parallel if profile.hardware else 1)


def make_plan(store: Store, given: Mapping[str, Any], tell: Say) -> TunePlan:
    """The plan of ``tune``'s arguments; a file is loaded. Errors: ``UsageError``, ``InputError``, ``ConfigError``."""
    if not 0 < given["target"] <= 1:
        raise UsageError(f"--target {given['target']}: expected a share of the requests, as 0.9")
    if given["price_per_hour"] is not None and given["price_per_hour"] <= 0:
        raise UsageError(f"--price-per-hour {given['price_per_hour']}: expected a price above 0")
    objectives = parse_objectives(given["objective"], given["price_per_hour"])
    profile, policy, slo = base_of(given, tell)
    trace, source = planned_trace(store, given, given["trace"], policy, profile, slo, tell)
    space: Space = choose_space(given["space"], policy, profile, source)
    if "trials" in given:  # a question of capacity searches nothing
        tell(f"space: {', '.join(f'{knob.name} ({len(knob.levels)})' for knob in space.knobs)}: {space.size:,} combinations")
    also = tuple(planned_trace(store, given, name, policy, profile, slo, tell)[0] for name in given["also"])
    return TunePlan(
        trace=trace, also=also, policy_document=policy.to_dict(), profile_text=profile.to_toml(), slo_document=slo.to_dict(),
        space_document=space.to_dict(), objective_names=tuple(o.name for o in objectives), target=given["target"],
        price=given["price_per_hour"], cards=cards_of(policy, profile), seed=given["seed"],
        accept_degraded=given["accept_degraded"],
    )  # fmt: skip


def planned_trace(store: Store, given: Mapping[str, Any], name: str, policy: Policy, profile: Profile, slo: SloTable,
                  tell: Say) -> tuple[TunedTrace, TraceSource]:  # fmt: skip
    """A trace's windows, split; and all of its requests, as the options take them."""
    options = {**given, "inputs": [name]}
    trace, name, t0_ns, span_ns = _trace(store, options, tell)
    chosen = {each: given[each] for each in PART if each != "limit"} | {each: given.get(each, 1.0) for each in SCALES}
    part = slice_of(chosen, span_ns, t0_ns)
    with store.read() as con:
        digest = str(con.execute("SELECT digest FROM traces WHERE trace = ?", [trace]).fetchall()[0][0])
        lead = lead_in_ns(con, trace, profile)
        source = TraceSource.from_database(con, trace, replace(part, burst_scale=1.0))  # windows lie where they were recorded
        told = source if part.burst_scale == 1.0 else TraceSource.from_database(con, trace, part)
    door_facts(policy, profile, slo, source)
    for line in [*slice_lines(told), *door_notes(policy, source)]:
        tell(f"{shown(name)}: {line}")
    length = parse_duration_ns(given["length"], where="--length") if given["length"] else None
    stretch = parse_window(given["window"], span_ns, t0_ns) if given["window"] else None
    layout = lay_windows(source.start_ns, given["windows"] + given["holdout"], length_ns=length, lead_in_ns=lead, part=stretch)
    shared = {each: getattr(part, each) for each in (*PART, *(each for each in SCALES if chosen[each] != 1.0))}
    windows = windows_of(layout, source, trace=trace, name=name, digest=digest, lead_in_ns=lead, part=shared,
                         rate_scale=given["rate_scale"])  # fmt: skip
    notes = list(layout.notes)
    if not windows:  # a handful, or all at one instant: the trace as it is
        whole = Layout(windows=((0, span_ns + 1),), length_ns=span_ns + 1, every_ns=span_ns + 1)
        windows = windows_of(whole, source, trace=trace, name=name, digest=digest, lead_in_ns=0, part=shared,
                             rate_scale=given["rate_scale"])  # fmt: skip
        notes.append("the whole trace is searched, and there is nothing left to prove an answer on")
    held = round(len(windows) * given["holdout"] / (given["windows"] + given["holdout"]))
    search, proof = split_windows(windows, held, given["split"])
    facts = trace_facts(source)
    how = f"{len(search)} windows to search on, {len(proof)} held out to prove on ({given['split']})"
    lines = (facts.line(), layout.line(lead), *notes, how)
    tell(f"{shown(name)}: {'; '.join(lines[1:])}")
    found = TunedTrace(name=name, digest=digest, search=tuple(search), held=tuple(proof), lines=lines,
                       span_ns=span_ns + 1)  # fmt: skip
    return found, source

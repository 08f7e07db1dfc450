"""The factor of an experiment: one thing that varies, its levels, and the proof that nothing else does.

Much of a configuration is derived: a smaller token budget lowers the default number of seats, more seats leave fewer KV
blocks. So the *derived* configurations of all levels are compared knob by knob, and a factor that moves a second one is
refused, or, with ``pin``, held in place: at the first level's values if all levels can have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from replay_engine.config import ConfigError
from replay_engine.policy import Policy
from replay_engine.profile import DEFAULT_PROFILE, Profile, load_profile
from replay_engine.vllm_flags import SIZING
from tracekit.errors import UsageError, shown
from tracekit.experiments.knobs import differing, flat_policy, knob_text
from tracekit.policy_source import policy_from

__all__ = ["ALIASES", "Factor", "Level", "parse_vary", "resolve_factor"]

ALIASES = {"replicas": "fleet.replicas", "router": "fleet.router"}
"""Short names of a factor for the knob that it is."""
PROFILE, POOLS = "profile", "pd"
_EXPECTED = "expected KNOB=VALUE,VALUE[,...] with a knob that --set takes, profile=NAME,NAME, or pd=P:D,P:D"


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One value of the factor, as it was typed, and the whole configuration it leads to."""

    text: str
    policy: Policy
    profile: Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """What varies (``name``), its levels (the first is the baseline), and what was pinned to keep it one factor."""

    name: str
    levels: tuple[Level, ...]
    pinned: tuple[str, ...] = ()


def parse_vary(text: str) -> tuple[str, list[str]]:
    """``knob=a,b,c`` as the knob and its values; commas inside brackets or quotes do not separate. Errors: ``UsageError``."""
    name, equals, rest = text.partition("=")
    name = name.strip().removeprefix("scheduler.")
    values = [value for value in (_unquoted(part.strip()) for part in _split(rest)) if value]
    where = f"--vary {shown(text)}"
    if not equals or not name:
        raise UsageError(f"{where}: {_EXPECTED}")
    if name == "slo" or name.startswith("slo."):
        raise UsageError(f"{where}: the SLO says what is good, it is no setting to try; expected a knob of the policy")
    if len(values) < 2:
        raise UsageError(f"{where}: {len(values)} level; expected at least two, the first is the baseline")
    twice = next((value for at, value in enumerate(values) if value in values[:at]), None)
    if twice is not None:
        raise UsageError(f"{where}: level {shown(twice)} stands there twice; expected different ones")
    return name, values


def _split(text: str) -> list[str]:
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth <= 0 and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def resolve_factor(vary: str, *, policy: str | None = None, sets: Sequence[str] = (), profile: str | None = None,
                   pin: bool = False) -> Factor:  # fmt: skip
    """The levels of ``vary`` over the policy that ``policy`` and ``sets`` give. Exactly one knob differs between them.

    Errors: ``UsageError`` (a second knob moves, levels that are the same), ``ConfigError`` (a level that is no configuration).
    """
    name, values = parse_vary(vary)
    knob = ALIASES.get(name, name)
    given = {pair.partition("=")[0].strip().removeprefix("scheduler.") for pair in sets}
    if knob in given:
        raise UsageError(f"--vary {shown(name)}: --set gives {shown(name)} too; expected one of them")
    given_levels = [_level(knob, value, policy, sets, profile) for value in values]
    moved = _moved(knob, name, given_levels)
    if not moved:
        return Factor(name=name, levels=tuple(given_levels))
    held, levels = _held(knob, name, given_levels, [policy, sets, profile])
    if pin and held:
        return Factor(name=name, levels=tuple(levels), pinned=tuple(held))
    raise UsageError(_refusal(name, given_levels, moved, held))


def _held(knob: str, name: str, levels: Sequence[Level], given: list[Any]) -> tuple[list[str], list[Level]]:
    """Settings that keep everything but the factor in place, and the levels under them: the first level's values, or where
    another level cannot have those, the next one's. Nothing where no level's values fit all.
    """
    policy, sets, profile = given
    for source in range(len(levels)):
        held: list[str] = []
        found = list(levels)
        try:
            while moved := _moved(knob, name, found):
                values = flat_policy(found[source].policy.to_dict())
                held += [f"{each}={knob_text(values[each])}" for each in moved]
                found = [_level(knob, level.text, policy, [*sets, *held], profile) for level in levels]
        except ConfigError:
            continue
        return held, found
    return [], []


def _level(knob: str, value: str, policy: str | None, sets: Sequence[str], profile: str | None) -> Level:
    chosen = load_profile(value if knob == PROFILE else profile or DEFAULT_PROFILE)
    own = [] if knob == PROFILE else [f"{knob}={value}"]
    if knob == POOLS:
        prefill, colon, decode = value.partition(":")
        if not colon:
            raise UsageError(
                f"--vary pd: {shown(value)} is no pair; expected P:D, prefill and decode replicas, or 0:0 for neither"
            )
        own = [f"pd.prefill={prefill}", f"pd.decode={decode}"]
    return Level(text=value, policy=policy_from(chosen, policy, [*sets, *own]), profile=chosen)


def _moved(knob: str, name: str, levels: Sequence[Level]) -> list[str]:
    """Knobs besides the factor that differ between any level and the first. ``UsageError`` where the factor does not."""
    first = _flat(levels[0])
    own = {"num_gpu_blocks"} if knob in SIZING else {"pd.prefill", "pd.decode"} if knob == POOLS else {knob}
    own |= {f"pools.{pool}.{each}" for pool in levels[0].policy.engines for each in own}
    moved: list[str] = []
    seen: list[tuple[str, dict[str, Any]]] = [(levels[0].text, first)]
    for level in levels[1:]:
        flat = _flat(level)
        same = next((text for text, other in seen if not differing(other, flat)), None)
        if same is not None:
            raise UsageError(f"--vary {shown(name)}: levels {shown(same)} and {shown(level.text)} lead to the same configuration")
        seen.append((level.text, flat))
        if knob == POOLS:  # whatever the pools are is part of whether there are any
            own |= {each for each in first.keys() ^ flat.keys() if each.startswith("pools.")}
        moved += [each for each in differing(first, flat) if each not in own and each not in moved]
    return moved


def _flat(level: Level) -> dict[str, Any]:
    return {**flat_policy(level.policy.to_dict()), PROFILE: level.profile.to_dict()}


def _refusal(name: str, levels: Sequence[Level], moved: list[str], held: list[str]) -> str:
    flats = [flat_policy(level.policy.to_dict()) for level in levels]
    second = moved[0]
    at = next(i for i, flat in enumerate(flats) if flat.get(second) != flats[0].get(second))
    values = [knob_text(flats[i].get(second)) for i in (0, at)]
    more = f" (and {', '.join(moved[1:])})" if len(moved) > 1 else ""
    cure = " ".join(f"--set {each}" for each in held)
    cure = f"{cure}, or --pin, which does that" if held else "levels that one configuration can differ in alone"
    return (
        f"--vary {shown(name)}: two factors: {second} moves too, {values[0]} at {shown(levels[0].text)} and {values[1]}"
        f" at {shown(levels[at].text)}{more}; expected one: {cure}"
    )

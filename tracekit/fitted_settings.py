"""The settings that a profile was fitted under: what a replay with it takes unless somebody says otherwise.

A profile fitted to observed latencies says in ``[fit.settings]`` under which knobs its coefficients show what was observed, and
in ``[fit.known]`` how each is known: given, found by replay, alike with others, or assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from replay_engine.profile import Profile
from replay_engine.vllm_flags import KNOBS
from tracekit.errors import shown

__all__ = ["fitted_note", "fitted_sets"]

_KNOWN = {"given": "", "by replay": "found by replay", "alike": "as well as others", "assumed": "assumed"}


def _settings(profile: Profile) -> Mapping[str, Any]:
    table = profile.fit.get("settings")
    return table if isinstance(table, Mapping) else {}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bare(name: str) -> str:
    return name.strip().removeprefix("scheduler.")


def fitted_sets(profile: Profile, sets: Iterable[str] = ()) -> tuple[str, ...]:
    """The settings of ``profile`` as ``knob=value``, without those that ``sets`` give. Empty for a profile that has none."""
    said = {_bare(each.partition("=")[0]) for each in sets}
    taken = {knob: value for knob, value in _settings(profile).items() if _bare(knob) not in said and _fits(knob)}
    return tuple(f"{knob}={_text(value)}" for knob, value in taken.items())


def _fits(knob: str) -> bool:
    """Whether a knob exists here: a profile of another version may have others. Those of other tables are looked up later."""
    return "." in knob or knob in KNOBS


def fitted_note(profile: Profile, sets: Iterable[str] = ()) -> str | None:
    """One line of what ``fitted_sets`` takes and what of the profile was overruled; ``None``: there is nothing to say."""
    taken = fitted_sets(profile, sets)
    if not taken:
        return None
    how = profile.fit.get("known")
    known = how if isinstance(how, Mapping) else {}
    parts = []
    for each in taken:
        words = _KNOWN.get(str(known.get(each.partition("=")[0], "given")), "")
        parts.append(f"{each} ({words})" if words else each)
    there = {each.partition("=")[0] for each in taken}
    over = [knob for knob in _settings(profile) if _fits(knob) and knob not in there]
    rest = f"; overruled: {', '.join(map(shown, over))}" if over else ""
    return f"{', '.join(parts)}: what profile {shown(profile.name)} was fitted under; --set or --policy say otherwise{rest}"

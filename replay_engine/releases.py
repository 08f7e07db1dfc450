"""Which release's scheduler stands for one that is not known here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from replay_engine.config import ENGINE_VERSIONS, ConfigError
from replay_engine.settings_file import one_line

__all__ = ["ASSUMED", "nearest_release", "with_known_release"]

ASSUMED = " is assumed for vLLM "
"""What marks the note of a release that stands for another one."""
_KNOB = "engine_version"


def nearest_release(text: str) -> tuple[str, str | None]:
    """The release whose scheduler is taken for ``text`` (as ``0.19.0``, ``v0.11``): the newest known one that is not newer, else
    the oldest; and what to say where that is another one. ``ConfigError``: no release."""
    if text in ENGINE_VERSIONS:
        return text, None
    numbers = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text, re.ASCII)
    if numbers is None:
        raise ConfigError(f"{_KNOB} = {one_line(text)}: expected a release of vLLM, as 0.19.0")
    asked = tuple(int(part or 0) for part in numbers.groups())
    releases = [tuple(int(part) for part in each.split(".")) for each in ENGINE_VERSIONS]
    older = [each for each in releases if each <= asked]
    chosen = ".".join(str(part) for part in (max(older) if older else min(releases)))
    if asked == tuple(int(part) for part in chosen.split(".")):
        return chosen, None
    return chosen, f"{_KNOB} = {chosen}{ASSUMED}{one_line(text)}: the nearest release whose scheduler is known here"


def with_known_release(settings: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """``settings`` with a release that is known here, and what to say of it. ``ConfigError``: no release."""
    given = settings.get(_KNOB)
    if not isinstance(given, str):
        return dict(settings), ()
    release, note = nearest_release(given)
    return {**settings, _KNOB: release}, () if note is None else (note,)

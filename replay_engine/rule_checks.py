"""Checks of the plain values in policy tables: each refusal names the knob, its value, and what was expected."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from replay_engine.config import ConfigError

__all__ = ["at_least", "check_share", "check_types", "one_of"]


def one_of(table: str, name: str, value: object, known: tuple[str, ...], *, plugin: bool = False) -> None:
    """``value`` is one of ``known``, or a plugin where one may stand. ``ConfigError`` otherwise."""
    if value in known or (plugin and isinstance(value, str) and value.startswith("plugin:") and value != "plugin:"):
        return
    own = ", or plugin:NAME" if plugin else ""
    raise ConfigError(f"{table}.{name} = {value!r}: expected one of {', '.join(known)}{own}")


def check_types(table: str, rule: Any) -> None:
    """Whole numbers where whole numbers belong, finite numbers, true or false."""
    for each in fields(rule):
        value, kind = getattr(rule, each.name), str(each.type)
        if value is None and "None" in kind:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if kind.startswith("int") and (not number or not isinstance(value, int)):
            raise ConfigError(f"{table}.{each.name} = {value!r}: expected a whole number")
        if kind.startswith("float") and (not number or not math.isfinite(value)):
            raise ConfigError(f"{table}.{each.name} = {value!r}: expected a number")
        if kind == "bool" and not isinstance(value, bool):
            raise ConfigError(f"{table}.{each.name} = {value!r}: expected true or false")
        if kind == "str" and not isinstance(value, str):
            raise ConfigError(f"{table}.{each.name} = {value!r}: expected text")


def check_share(table: str, name: str, value: float | None) -> None:
    """``value`` is a share. ``ConfigError`` otherwise."""
    if value is not None and not 0 <= value <= 1:
        raise ConfigError(f"{table}.{name} = {value!r}: expected a share, 0 to 1")


def at_least(table: str, name: str, value: float | None, low: float) -> None:
    """``value`` is a number of at least ``low``, or not set. ``ConfigError`` otherwise."""
    if value is not None and not value >= low:
        raise ConfigError(f"{table}.{name} = {value!r}: expected a number of at least {low:g}")

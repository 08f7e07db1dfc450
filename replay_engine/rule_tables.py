"""Policy rules from the tables of a policy file and from ``table.knob=value`` pairs, and back to plain tables.

Durations (knobs that end in ``_s``) are seconds, or text like ``50ms``, ``2s``, ``1.5m``. ``[[order.reserved]]`` is a list of
tables, ``[front_door.quotas.TENANT]`` one table a tenant.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from replay_engine.config import ConfigError
from replay_engine.fleet_rules import FleetRules
from replay_engine.pd_rules import KvLinkRules, Pd
from replay_engine.rules import QUOTA_KNOBS, Batching, Client, FrontDoorRules, Link, Order, Preemption, Rules, Tier
from replay_engine.settings_file import nearest, one_line
from replay_engine.vllm_flags import KNOBS, typed_value

__all__ = ["RULE_KNOBS", "RULE_TABLES", "knob_hint", "rules_from", "rules_to", "with_rule"]

RULE_TABLES: dict[str, type] = {
    "batching": Batching,
    "order": Order,
    "preemption": Preemption,
    "front_door": FrontDoorRules,
    "client": Client,
    "link": Link,
    "fleet": FleetRules,
    "pd": Pd,
    "kv_link": KvLinkRules,
}
"""The tables beyond ``[scheduler]``, in the order in which they are written."""

RULE_KNOBS: dict[str, dict[str, str]] = {
    table: {each.name: str(each.type) for each in fields(kind) if is_dataclass(kind)} for table, kind in RULE_TABLES.items()
}
"""Per table: every knob with its type."""

QUOTAS = "front_door.quotas"
_QUOTA_TYPES = {name: RULE_KNOBS["front_door"][name] for name in QUOTA_KNOBS}
_TIER_KNOBS = {each.name: str(each.type) for each in fields(Tier)}
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}

Tables = dict[str, dict[str, Any]]


def rules_from(tables: Mapping[str, Mapping[str, Any]]) -> Rules:
    """The rules that ``tables`` give, the rest at their defaults. ``ConfigError`` names the knob as ``table.knob``."""
    return Rules(**{name: _one_table(name, given) for name, given in tables.items()})


def rules_to(rules: Rules, *, changed_only: bool = False) -> Tables:
    """Plain tables, ready for JSON or TOML. ``changed_only``: the knobs that differ from the defaults."""
    found: Tables = {}
    plain = Rules()
    for name in RULE_TABLES:
        table, default = getattr(rules, name), getattr(plain, name)
        values: dict[str, Any] = {}
        for each in fields(table):
            value = getattr(table, each.name)
            if not changed_only or value != getattr(default, each.name):
                values[each.name] = _plain(value)
        if values or not changed_only:
            found[name] = values
    return found


def with_rule(tables: Mapping[str, Mapping[str, Any]], table: str, knob: str, text: str) -> Tables:
    """``tables`` with ``table.knob`` set to ``text`` as it is typed on a command line."""
    changed = {name: dict(given) for name, given in tables.items()}
    if table == QUOTAS or table.startswith(f"{QUOTAS}."):
        tenant = table[len(QUOTAS) + 1 :]
        if not tenant:
            raise ConfigError(f"{QUOTAS}.{one_line(knob)}: no tenant; expected {QUOTAS}.TENANT.{QUOTA_KNOBS[0]}")
        _known(table, knob, _QUOTA_TYPES)
        quotas = {name: dict(own) for name, own in changed.get("front_door", {}).get("quotas", {}).items()}
        quotas.setdefault(tenant, {})[knob] = typed_value(f"{table}.{knob}", _QUOTA_TYPES[knob], text)
        changed.setdefault("front_door", {})["quotas"] = quotas
        return changed
    if table not in RULE_KNOBS:
        raise ConfigError(
            f"{one_line(table)}.{one_line(knob)}: unknown table; {nearest(table, ('scheduler', 'slo', *RULE_TABLES))}"
        )
    _known(table, knob, RULE_KNOBS[table])
    changed.setdefault(table, {})[knob] = _typed(table, knob, text)
    return changed


def knob_hint(knob: str) -> str:
    """Known names like ``knob``, whatever table they are in: the tail of an error message."""
    homes: dict[str, list[str]] = {name: [name] for name in KNOBS}
    for table, knobs in RULE_KNOBS.items():
        for name in knobs:
            homes.setdefault(name, []).append(f"{table}.{name}")
    close = [knob] if knob in homes else difflib.get_close_matches(knob, homes, n=3, cutoff=0.6)
    found = [home for name in close for home in homes[name]]
    return f"did you mean {' or '.join(found)}?" if found else f"expected one of {', '.join(KNOBS)}"


def _known(table: str, knob: str, knobs: Mapping[str, str]) -> None:
    if knob not in knobs:
        raise ConfigError(f"{one_line(table)}.{one_line(knob)}: unknown knob; {nearest(knob, knobs)}")


def _one_table(table: str, given: Mapping[str, Any]) -> Any:
    knobs = RULE_KNOBS[table]
    values: dict[str, Any] = {}
    for knob, value in given.items():
        _known(table, knob, knobs)
        values[knob] = _typed(table, knob, value) if isinstance(value, str) else value
    if table == "order" and "reserved" in values:
        values["reserved"] = _tiers(values["reserved"])
    if table == "front_door" and "quotas" in values:
        values["quotas"] = _quotas(values["quotas"])
    return RULE_TABLES[table](**values)


def _typed(table: str, knob: str, text: str) -> Any:
    """``text`` as the value of ``table.knob``."""
    kind, name = RULE_KNOBS[table][knob], f"{table}.{knob}"
    if knob == "reserved":
        return [_tier_of(part) for part in text.split(";") if part.strip()]
    if knob == "quotas":
        raise ConfigError(f"{name} = {one_line(text)}: expected one knob of one tenant, as {QUOTAS}.TENANT.{QUOTA_KNOBS[0]}=500")
    if knob.endswith("_s") and not knob.endswith("per_s"):
        return _seconds(name, kind, text)
    return typed_value(name, kind, text)


def _seconds(name: str, kind: str, text: str) -> float | None:
    word = text.strip().lower()
    if "None" in kind and word in ("none", "null", "off", ""):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", word)
    if match is None or (match[2] and match[2] not in _UNITS):
        raise ConfigError(f"{name} = {one_line(text)}: expected seconds, or a time like 50ms, 2s or 1.5m")
    # exact decimals: 50ms is 0.05, which 50 * 1e-3 is not always
    unit = match[2] or "s"
    value = float(match[1]) / {"us": 1e6, "ms": 1e3}[unit] if unit in ("us", "ms") else float(match[1]) * _UNITS[unit]
    if not math.isfinite(value):
        raise ConfigError(f"{name} = {one_line(text)}: expected seconds, or a time like 50ms, 2s or 1.5m")
    return value


def _tier_of(text: str) -> dict[str, int]:
    """``priority=0 seqs=8 blocks=100`` as the table it stands for."""
    found: dict[str, int] = {}
    for part in re.split(r"[\s,]+", text.strip()):
        knob, equals, value = part.partition("=")
        if not equals or knob not in _TIER_KNOBS:
            raise ConfigError(f"order.reserved = {one_line(text)}: expected tiers like priority=0 seqs=8; priority=1 seqs=4")
        found[knob] = typed_value(f"order.reserved.{knob}", "int", value)
    return found


def _tiers(given: object) -> tuple[Tier, ...]:
    if not isinstance(given, list | tuple) or not all(isinstance(each, Mapping | Tier) for each in given):
        raise ConfigError(
            f"order.reserved = {one_line(given)}: expected tables [[order.reserved]] with priority, seqs and blocks"
        )
    tiers = []
    for each in given:
        if isinstance(each, Tier):
            tiers.append(each)
            continue
        for knob in each:
            _known("order.reserved", knob, _TIER_KNOBS)
        if "priority" not in each:
            raise ConfigError("order.reserved: a tier without priority; expected priority = N and seqs or blocks")
        tiers.append(Tier(**each))
    return tuple(tiers)


def _quotas(given: object) -> dict[str, dict[str, Any]]:
    if not isinstance(given, Mapping) or not all(isinstance(own, Mapping) for own in given.values()):
        raise ConfigError(f"{QUOTAS} = {one_line(given)}: expected tables [{QUOTAS}.TENANT]")
    for tenant, own in given.items():
        for knob in own:
            _known(f"{QUOTAS}.{tenant}", knob, _QUOTA_TYPES)
    return {str(tenant): dict(own) for tenant, own in given.items() if own}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [asdict(each) for each in value]
    if isinstance(value, dict):
        return {name: dict(own) for name, own in value.items()}
    return value

"""Whole configurations laid flat: every knob under the name that ``--set`` takes, and where two of them differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["differing", "flat_policy", "knob_text"]


def flat_policy(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Every knob of a policy's ``to_dict`` document, derived ones included; those of ``[scheduler]`` by their bare names.

    Quotas stand per tenant, the knobs of separate pools per pool. The SLO is not a knob: it says what is good, not what is done.
    """
    flat = dict(policy["scheduler"])
    for table, knobs in policy.get("rules", {}).items():
        for knob, value in knobs.items():
            if isinstance(value, Mapping):
                for name, own in value.items():
                    flat |= {f"{table}.{knob}.{name}.{each}": limit for each, limit in own.items()}
            else:
                flat[f"{table}.{knob}"] = value
    for pool, knobs in policy.get("engines", {}).items():
        flat |= {f"pools.{pool}.{knob}": value for knob, value in knobs.items()}
    return flat


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names whose values differ, or that only one of two flat configurations has, in order."""
    names = [*one, *(name for name in other if name not in one)]
    return [name for name in names if (name in one) != (name in other) or one.get(name) != other.get(name)]


def knob_text(value: Any) -> str:
    """A value as ``--set`` takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "none"
    if isinstance(value, list):  # tiers of order.reserved
        return ";".join(" ".join(f"{name}={own}" for name, own in tier.items()) for tier in value)
    return value if isinstance(value, str) else json.dumps(value)

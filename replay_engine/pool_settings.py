"""``[pools.prefill]`` and ``[pools.decode]``: what either pool sets over ``[scheduler]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.policy_defaults import derive_scheduler
from replay_engine.profile import Profile
from replay_engine.settings_file import nearest, one_line
from replay_engine.vllm_flags import KNOBS, knob_value

__all__ = ["POOLS", "Pools", "derive_pools", "pool_of", "pools_from", "with_pool_knob"]

POOLS = ("prefill", "decode")
Pools = dict[str, dict[str, Any]]
_SHARED = ("block_size", "max_model_len")


def pool_of(table: str) -> str | None:
    """The pool that a table's name means: ``pools.prefill``, or ``prefill`` for short. ``ConfigError`` for an unknown pool."""
    head, _, name = table.partition(".")
    if head != "pools":
        return table if table in POOLS else None
    if name not in POOLS:
        raise ConfigError(f"{one_line(table)}: unknown pool; expected pools.prefill or pools.decode")
    return name


def pools_from(given: object) -> Pools:
    """The pools' tables from a policy file. ``ConfigError`` names the knob as ``pools.POOL.knob``."""
    if not isinstance(given, Mapping) or not all(isinstance(own, Mapping) for own in given.values()):
        raise ConfigError(f"pools = {one_line(given)}: expected tables [pools.prefill] and [pools.decode]")
    found: Pools = {}
    for name, own in given.items():
        pool_of(f"pools.{name}")
        for knob, value in own.items():
            found = with_pool_knob(found, name, knob, value)
    return found


def with_pool_knob(pools: Mapping[str, Mapping[str, Any]], pool: str, knob: str, value: Any) -> Pools:
    """``pools`` with a knob of one pool set; text is read as it is typed on a command line."""
    name = f"pools.{pool}.{one_line(knob)}"
    if knob not in KNOBS:
        raise ConfigError(f"{name}: unknown knob; {nearest(knob, KNOBS)}")
    if knob in _SHARED:
        raise ConfigError(f"{name}: both pools hold the same KV of the same prompts; expected [scheduler] {knob}")
    changed = {each: dict(own) for each, own in pools.items()}
    changed.setdefault(pool, {})[knob] = knob_value(knob, value) if isinstance(value, str) else value
    return changed


def derive_pools(
    settings: Mapping[str, Any], pools: Mapping[str, Mapping[str, Any]], profile: Profile, length: int
) -> dict[str, SchedulerConfig]:
    """Either pool's own scheduler. The longest request is the same for both, at most ``length`` tokens where it is not given."""
    found: dict[str, SchedulerConfig] = {}
    for pool in POOLS:
        try:
            found[pool], _ = derive_scheduler({**settings, **pools.get(pool, {})}, profile)
        except ConfigError as error:
            raise ConfigError(f"pools.{pool}.{error}") from None
    if "max_model_len" in settings:
        return found
    length = min(length, *(config.max_model_len for config in found.values()))
    return {pool: replace(config, max_model_len=length) for pool, config in found.items()}

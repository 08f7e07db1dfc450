"""``fleet:`` and ``pd:`` of a recipe: replicas behind a router; prefill and decode pools, and the link between them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from replay_engine.config import ConfigError
from replay_engine.fleet.routers import make_router
from tracekit.errors import UsageError, shown
from tracekit.generators.recipe_file import Recipe
from tracekit.generators.recipe_values import parse_quotient

__all__ = ["fleet_table", "pool_tables"]

_POOLS = ("prefill", "decode")
_LINK = re.compile(r"\s*([0-9.eE+]+)\s*B/s\s*(?:\+\s*([0-9.eE+]+)\s*(ms|us|s)\s*)?")
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_QUEUES = {"none": 0, "fifo per prefill worker": 1}


def fleet_table(recipe: Recipe) -> dict[str, Any]:
    """``[fleet]``; the router ``prefix`` is ``prefix_affinity``. Errors: ``UsageError``."""
    replicas = _whole(recipe, ("fleet",), recipe.fleet, "replicas")
    route = str(recipe.fleet.get("route", "round_robin"))
    router = _router(recipe, ("fleet", "route"), "prefix_affinity" if route == "prefix" else route, replicas)
    return {"replicas": replicas, "router": router}


def pool_tables(recipe: Recipe, block_tokens: int) -> dict[str, dict[str, Any]]:
    """``[pd]``, ``[kv_link]``, ``[pools]``, and ``[scheduler]``: the prefill pool's, with the longest request that both can hold.

    The seed of a pool is that of its router; both routers draw by their sum. Errors: ``UsageError``.
    """
    for pool in _POOLS:
        if not isinstance(recipe.pd.get(pool), Mapping):
            raise UsageError(f"{recipe.at('pd', pool)}: expected n, budget, seats, kv_tokens and route")

    def whole(pool: str, key: str, low: int = 1) -> int:
        return _whole(recipe, ("pd", pool), recipe.pd[pool], key, low)

    blocks = {pool: whole(pool, "kv_tokens", block_tokens) // block_tokens for pool in _POOLS}
    pd: dict[str, Any] = {pool: whole(pool, "n") for pool in _POOLS}
    for pool in _POOLS:
        if "route" in recipe.pd[pool]:
            pd[f"{pool}_router"] = _router(recipe, ("pd", pool, "route"), str(recipe.pd[pool]["route"]), pd[pool])
    pd["seed"] = sum(whole(pool, "seed", 0) for pool in _POOLS if "seed" in recipe.pd[pool])
    pools = {
        pool: {
            "max_num_batched_tokens": whole(pool, "budget"),
            "max_num_seqs": whole(pool, "seats"),
            "num_gpu_blocks": blocks[pool] + 1,  # one of them is the null block
        }
        for pool in _POOLS
    }
    shared = {**pools["prefill"], "max_model_len": min(blocks.values()) * block_tokens}
    return {"scheduler": shared, "pd": pd, "kv_link": _link(recipe), "pools": pools}


def _whole(recipe: Recipe, path: tuple[str, ...], table: Mapping[str, Any], key: str, low: int = 1) -> int:
    value = table.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        where = recipe.at(*path, key)
        raise UsageError(f"{where}: {shown(value)}: expected a whole number of at least {low}")
    return value


def _router(recipe: Recipe, path: tuple[str, ...], given: str, engines: int) -> str:
    text = re.sub(r"\s+", "", given)
    try:
        make_router(text, engines)
    except ConfigError as error:
        raise UsageError(f"{recipe.at(*path)}: {error}") from None
    return text


def _link(recipe: Recipe) -> dict[str, Any]:
    found = _LINK.fullmatch(str(recipe.pd.get("link")))
    if found is None:
        raise UsageError(f"{recipe.at('pd', 'link')}: {shown(recipe.pd.get('link'))}: expected a link, as 40e9 B/s + 5 ms")
    where, queue = recipe.at("pd", "link"), str(recipe.pd.get("link_queue", "none"))
    if queue not in _QUEUES:
        raise UsageError(f"{recipe.at('pd', 'link_queue')}: {shown(queue)}: expected one of {', '.join(_QUEUES)}")
    delay = parse_quotient(found[2] or 0, where) * _UNITS[found[3] or "s"]
    bandwidth = parse_quotient(found[1], where) / 1e9
    weight = _whole(recipe, ("pd",), recipe.pd, "kv_bytes_per_token")
    return {"gb_per_s": bandwidth, "latency_s": delay, "concurrent": _QUEUES[queue], "kv_bytes_per_token": weight}

"""Faults that are planted in a healthy service. Each changes its recipe in one respect; undoing it is the healthy recipe again.

Nothing here knows of any diagnosis. ``NAMES`` says what an expert would call each: any of the names is right.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.planted_loads import Load

__all__ = ["FAULTS", "NAMES", "SINGLE_ENGINE", "plant"]

Recipe = dict[str, Any]
Fault = Callable[[np.random.Generator, Load, Recipe], None]


def plant(rng: np.random.Generator, load: Load, recipe: Recipe, fault: str) -> Recipe:
    """A copy of ``recipe`` (the load's own, or one that has a fault already) with a fault in it."""
    planted = copy.deepcopy(recipe)
    FAULTS[fault][1](rng, load, planted)
    return planted


def _few_seats(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    recipe["engine"]["seats"] = max(1, round(load.running * float(rng.uniform(0.4, 0.9))))


def _small_budget(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    wanted = load.rate * load.prompt * load.iteration_s + load.running
    recipe["engine"]["budget"] = max(int(wanted * float(rng.uniform(0.7, 1.05))), 16)
    recipe["engine"]["seats"] = min(recipe["engine"]["seats"], recipe["engine"]["budget"])


def _large_budget(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    recipe["engine"]["budget"] *= int(rng.choice([8, 16]))


def _short_kv(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    wanted = load.running * (load.prompt + load.output / 2)
    recipe["engine"]["kv_tokens"] = int(max(wanted * float(rng.uniform(0.6, 1.0)), 1.2 * load.longest))


def _giant_prompts(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    """A tenant whose prompts hold the token budget for seconds each, a tenth of the time."""
    cost, chat = recipe["engine"]["cost"], recipe["load"][0]
    wanted = float(rng.uniform(60, 300)) * load.iteration_s + 3.0
    a, b = cost["c4"] / 2, cost["c1"] + cost["c0"] / recipe["engine"]["budget"]
    length = int((-b + np.sqrt(b * b + 4 * a * wanted)) / (2 * a))
    span = chat["n"] / load.rate
    every = wanted / float(rng.uniform(0.1, 0.25))
    n = max(int(span / every), 2)
    recipe["load"].append({"cls": "archive", "tenant": "archive", "n": n, "arrive": f"every({every:.4g},{every / 2:.4g})",
                           "isl": f"u({0.9 * length:.0f},{1.1 * length:.0f})", "osl": "u(20,60)"})  # fmt: skip
    recipe["engine"]["kv_tokens"] += 3 * length


def _prefill_first(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    recipe["engine"]["step"] = "prefill_first"


def _no_preemption(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    recipe["policy"] = {}


def _strict_reservation(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    """Memory for all of ``max_tokens`` is reserved, many times what is answered."""
    reserve = int(load.output * float(rng.uniform(8, 20)))
    for each in recipe["load"]:
        each["max_tokens"] = reserve
    room = load.running * float(rng.uniform(0.4, 0.85))
    kept = recipe["engine"]["kv_tokens"]
    recipe["engine"]["kv_tokens"] = int(max(room * (load.prompt + reserve), 1.2 * load.longest + reserve))
    if recipe["engine"]["kv_tokens"] > kept:  # as much as the load has without reservation is enough
        for each in recipe["load"]:
            each["max_tokens"] = max(int(reserve * kept / recipe["engine"]["kv_tokens"]), int(6 * load.output) + 1)
        recipe["engine"]["kv_tokens"] = kept
    recipe["engine"]["admit"] = "isl+max"


def _round_robin(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    recipe["fleet"]["route"] = "round_robin"


def _weights(rng: np.random.Generator, n: int) -> str:
    if n == 1:
        return "round_robin"  # nothing to be unfair to: such a draw makes no misses
    first = float(rng.uniform(0.55, 0.8)) if n > 2 else float(rng.uniform(0.8, 0.95))
    rest = (1 - first) / (n - 1)
    return f"weighted({','.join(f'{each:.3f}' for each in [first, *[rest] * (n - 1)])})"


def _weighted(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    recipe["fleet"]["route"] = _weights(rng, recipe["fleet"]["replicas"])


def _pool_weights(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    recipe["pd"]["prefill"]["route"] = _weights(rng, recipe["pd"]["prefill"]["n"])


def _slow_link(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    """A link that is busy most of the time: transfers queue."""
    weight, chat = recipe["pd"]["kv_bytes_per_token"], recipe["load"][0]
    rate = float(chat["arrive"][8:-1]) / recipe["pd"]["prefill"]["n"]
    recipe["pd"]["link"] = f"{rate * load.prompt * weight / float(rng.uniform(0.75, 0.98)):.3g} B/s + 5 ms"


def _client_limit(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    recipe["client"] = {"max_in_flight": max(1, round(load.running * float(rng.uniform(0.4, 0.9))))}


def _burst(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    recipe["load"][0]["arrive"] = f"gamma({load.rate:.4g}, cv={float(rng.uniform(4, 8)):.1f})"


def _overload(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    """More than all of the engine's time, whatever its settings."""
    recipe["load"][0]["arrive"] = f"poisson({float(rng.uniform(1.15, 1.8)) / load.own_s:.4g})"


def _alignment(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    """Prompts are cut at multiples of the whole budget, so one decode keeps every prompt that does not fit from starting."""
    size = int(max(load.prompt * float(rng.uniform(0.3, 0.7)), 128)) // 16 * 16
    recipe["engine"] |= {"budget": size, "align": size, "seats": min(recipe["engine"]["seats"], size)}


def _no_second_split(rng: np.random.Generator, load: Load, recipe: Recipe) -> None:
    low = float(recipe["load"][0]["isl"][2:].partition(",")[0])
    recipe["engine"]["budget"] = int(low * float(rng.uniform(0.6, 0.75)))
    recipe["engine"]["second_prompt_split"] = False


FAULTS: dict[str, tuple[tuple[str, ...], Fault]] = {
    "few seats": (("plain", "long prompts"), _few_seats),
    "small budget": (("plain",), _small_budget),
    "large budget": (("long prompts",), _large_budget),
    "short KV, lax admission": (("plain", "long prompts"), _short_kv),
    "giant prompts": (("plain",), _giant_prompts),
    "prefill first": (("long prompts",), _prefill_first),
    "priority inversion": (("batch beside",), _no_preemption),
    "strict reservation": (("plain",), _strict_reservation),
    "round robin": (("prefixes",), _round_robin),
    "weighted router": (("fleet",), _weighted),
    "weighted prefill router": (("pools",), _pool_weights),
    "slow link": (("pools",), _slow_link),
    "client limit": (("plain", "long prompts"), _client_limit),
    "burst": (("plain",), _burst),
    "overload": (("plain",), _overload),
    "alignment": (("plain",), _alignment),
    "no second split": (("prefill only",), _no_second_split),
}
"""Each fault with the kinds of loads it is planted in."""

SINGLE_ENGINE = ("few seats", "short KV, lax admission", "giant prompts", "prefill first", "strict reservation", "client limit",
                 "burst", "small budget")  # fmt: skip
"""Faults of which two may come together."""

NAMES: dict[str, tuple[str, ...]] = {
    "few seats": ("QUEUE_SEATS",),
    "small budget": ("QUEUE_BUDGET", "CHUNK_TOO_SMALL"),
    "large budget": ("CHUNK_TOO_LARGE", "PREFILL_STALLS_DECODE"),
    "short KV, lax admission": ("PREEMPTION_STORM", "ADMISSION_LAX", "QUEUE_KV"),
    "giant prompts": ("HOL_LONG_PROMPT",),
    "prefill first": ("PREFILL_STALLS_DECODE",),
    "priority inversion": ("STARVATION",),
    "strict reservation": ("ADMISSION_STRICT",),
    "round robin": ("PREFIX_MISS",),
    "weighted router": ("ROUTING_IMBALANCE",),
    "weighted prefill router": ("PD_IMBALANCE",),
    "slow link": ("KV_TRANSFER",),
    "client limit": ("CLIENT_LIMIT",),
    "burst": ("BURST",),
    "overload": ("OVERLOAD",),
    "alignment": ("CHUNK_TOO_SMALL", "UNDERUSED_BUDGET"),
    "no second split": ("UNDERUSED_BUDGET",),
}

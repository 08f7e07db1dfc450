"""Random healthy services: an engine with room, traffic that it copes with. In the language of the recipes.

Nothing here knows of any diagnosis. Sizes follow from the load: with ``m`` seconds of own work a request, ``c0`` an iteration
and ``rate`` requests a second, an iteration takes about ``c0 / (1 - rate m)``, and ``rate x output`` times that run at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["KINDS", "Load", "draw_load"]

KINDS = ("plain", "long prompts", "batch beside", "prefixes", "fleet", "pools", "prefill only")
_BLOCK = 16


@dataclass(frozen=True, kw_only=True)
class Load:
    """A recipe, and what its sizes were made from: requests that run at a time, mean tokens, requests a second, seconds of own
    work a request, seconds of an iteration, and the longest request in tokens."""

    kind: str
    recipe: dict[str, Any]
    running: float
    prompt: float
    output: float
    rate: float
    own_s: float
    iteration_s: float
    longest: int
    exempt: tuple[str, ...] = ()
    """Classes without an SLO."""


def draw_load(rng: np.random.Generator, kind: str) -> Load:
    """A healthy load of a kind; its traffic may still turn out to miss more than a hundredth of its SLO: the caller looks."""
    while True:
        found = _try_load(rng, kind)
        if found is not None:
            return found


def _try_load(rng: np.random.Generator, kind: str) -> Load | None:
    cost = {
        "c0": round(float(rng.uniform(0.006, 0.025)), 5), "c1": round(1 / float(rng.uniform(7_000, 40_000)), 8),
        "c2": round(float(rng.uniform(3e-5, 1.2e-4)), 7), "c3": round(float(rng.uniform(5e-9, 6e-8)), 11),
        "c4": round(float(np.exp(rng.uniform(np.log(1e-10), np.log(2e-9)))), 12),
    }  # fmt: skip
    prompt, output = float(np.exp(rng.uniform(np.log(200), np.log(2500)))), float(np.exp(rng.uniform(np.log(60), np.log(350))))
    if kind == "prefill only":
        prompt, output = float(rng.uniform(3_000, 12_000)), 2.0
    prefix = 0
    if kind == "prefixes":
        prefix = int(rng.uniform(1_500, 6_000)) // _BLOCK * _BLOCK
    spread = (float(rng.uniform(0.3, 0.8)), float(rng.uniform(0.3, 0.7)))
    # the means of what is drawn below
    prompt_mean, output_mean = prompt * np.exp(spread[0] ** 2 / 2), output * np.exp(spread[1] ** 2 / 2)
    fresh = prompt_mean + 0.15 * prefix
    own = cost["c1"] * fresh + cost["c4"] * fresh**2 / 2 + output_mean * (cost["c2"] + cost["c3"] * (prefix + prompt_mean))
    busy = float(rng.uniform(0.25, 0.5))
    rate = busy / own
    iteration = cost["c0"] / (1 - busy)
    running = rate * output_mean * iteration
    if kind != "prefill only" and not 4 <= running <= 80:
        return None
    residence = output_mean * iteration
    n = int(np.clip(25 * rate * residence, 500, 1500))
    chat: dict[str, Any] = {
        "cls": "chat", "n": n, "arrive": f"poisson({rate:.4g})",
        "isl": f"ln({prompt:.0f},{spread[0]:.2f},20,{8 * prompt:.0f})",
        "osl": f"ln({output:.0f},{spread[1]:.2f},2,{6 * output:.0f})",
    }  # fmt: skip
    engine: dict[str, Any] = {
        "cost": cost, "budget": int(rng.choice([2048, 4096])), "seats": int(4 * running + 24), "step": "mixed", "admit": "chunk",
        "kv_tokens": int(max(3 * running, 8) * (prefix + prompt_mean + output_mean)) + 4 * int(8 * prompt + 6 * output),
    }  # fmt: skip
    if kind == "prefill only":
        chat |= {"osl": int(rng.integers(1, 4)), "isl": f"u({0.9 * prompt:.0f},{1.1 * prompt:.0f})", "n": 600}
        engine["budget"] = int(np.ceil(1.15 * prompt / 512)) * 1024
    recipe: dict[str, Any] = {"seed": int(rng.integers(1, 10**6)), "engine": engine, "load": [chat]}
    load = Load(kind=kind, recipe=recipe, running=running, prompt=prefix + prompt_mean, output=output_mean, rate=rate, own_s=own,
                iteration_s=iteration, longest=int(8 * prompt + 6 * output) + prefix)  # fmt: skip
    return _SPECIAL[kind](rng, load, prefix) if kind in _SPECIAL else load


def _long_prompts(rng: np.random.Generator, load: Load, _: int) -> Load:
    """A few prompts of many iterations among the others, as many as leave the engine the room it had."""
    chat, engine = load.recipe["load"][0], load.recipe["engine"]
    length = int(rng.uniform(6, 16) * engine["budget"])
    cost = engine["cost"]
    each_s = cost["c1"] * length + cost["c4"] * length**2 / 2 + length / engine["budget"] * cost["c0"]
    span = chat["n"] / load.rate
    every = each_s / float(rng.uniform(0.06, 0.14))
    n = int(span / every)
    if n < 5:
        return load
    load.recipe["load"].append({"cls": "report", "n": n, "arrive": f"every({every:.4g},{every / 2:.4g})",
                                "isl": f"u({0.8 * length:.0f},{1.2 * length:.0f})", "osl": "u(20,80)"})  # fmt: skip
    engine["kv_tokens"] += 3 * length
    return _with(load, longest=int(1.3 * length))


def _batch_beside(rng: np.random.Generator, load: Load, _: int) -> Load:
    """A batch that fills every seat, and urgent requests that may take them."""
    chat, engine = load.recipe["load"][0], load.recipe["engine"]
    seats = int(np.clip(load.running * rng.uniform(0.8, 2.0), 8, 64))
    span = chat["n"] / load.rate
    jobs = int(1.3 * span / (500 * load.iteration_s * 1.6) * seats)
    if not seats <= jobs <= 3000:
        return load
    chat["n"] = min(chat["n"], 600)
    chat |= {"cls": "urgent", "priority": 0, "arrive": f"poisson({load.rate * 0.4:.4g}) from 5"}
    batch = {"cls": "batch", "n": jobs, "arrive": "at(0)", "isl": "ln(500,0.5,100,3000)", "osl": "u(300,700)", "priority": 10}
    load.recipe["load"] = [batch, chat]
    engine |= {"seats": seats, "order": "priority", "kv_tokens": engine["kv_tokens"] + seats * 4000}
    load.recipe["policy"] = {"preemption": {"to_admit": True}}
    return _with(load, exempt=("batch",))


def _prefixes(rng: np.random.Generator, load: Load, prefix: int) -> Load:
    """Replicas that each hold their share of the prefixes, and a router that knows which."""
    chat, engine = load.recipe["load"][0], load.recipe["engine"]
    replicas = int(rng.integers(3, 7))
    groups = replicas * int(rng.integers(8, 20))
    chat |= {"isl": f"{prefix}+u({0.6 * (load.prompt - prefix):.0f},{1.4 * (load.prompt - prefix):.0f})",
             "prefix": {"groups": groups, "len": prefix}, "arrive": f"poisson({0.8 * load.rate * replicas:.4g})"}  # fmt: skip
    chat["n"] = max(chat["n"], 12 * groups)
    engine["prefix_cache"] = "lru"
    engine["kv_tokens"] = int(1.5 * groups / replicas * prefix + 2 * load.running * load.prompt) + load.longest
    load.recipe["fleet"] = {"replicas": replicas, "route": "prefix"}
    return load


def _fleet(rng: np.random.Generator, load: Load, _: int) -> Load:
    replicas = int(rng.integers(2, 6))
    load.recipe["load"][0]["arrive"] = f"poisson({load.rate * replicas:.4g})"
    load.recipe["load"][0]["n"] = min(int(load.recipe["load"][0]["n"] * replicas * 0.7), 2500)
    load.recipe["fleet"] = {"replicas": replicas, "route": "least_tokens"}
    return load


def _pools(rng: np.random.Generator, load: Load, _: int) -> Load:
    """Separate pools over a link that takes a fraction of the prefill's own time."""
    engine, chat = load.recipe["engine"], load.recipe["load"][0]
    prefills, decodes = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    own = {"route": "least_tokens", **{key: engine[key] for key in ("budget", "seats", "kv_tokens")}}
    weight = int(rng.choice([65536, 131072]))
    rate = load.rate * min(prefills, decodes)
    seconds = load.prompt * engine["cost"]["c1"]
    link = load.prompt * weight / max(0.3 * seconds, 1e-4)
    load.recipe["pd"] = {
        "prefill": {"n": prefills, **own}, "decode": {"n": decodes, **own}, "kv_bytes_per_token": weight,
        "link": f"{link:.3g} B/s + 1 ms", "link_queue": "fifo per prefill worker",
    }  # fmt: skip
    load.recipe["engine"] = {"cost": engine["cost"]}
    chat["arrive"] = f"poisson({rate:.4g})"
    return load


def _with(load: Load, **changed: Any) -> Load:
    return Load(**{**load.__dict__, **changed})


_SPECIAL = {"long prompts": _long_prompts, "batch beside": _batch_beside, "prefixes": _prefixes, "fleet": _fleet, "pools": _pools}

"""A test case from a recipe: the trace, the policy it runs under, and a profile with the recipe's cost model.

Times in seconds, rates per second. Step time = c0 + c1 x prefill tokens + c2 x decoding sequences + c3 x context + c4 x
query x context, which is our model with floor 0 and no host time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.config import ConfigError
from replay_engine.policy import Policy, build_policy
from replay_engine.profile import Latency, Profile
from replay_engine.settings_file import render_toml
from tracekit.errors import UsageError, shown, shown_path
from tracekit.generators.prefixes import BLOCK_TOKENS, PromptBlocks
from tracekit.generators.recipe_file import Recipe, read_recipe
from tracekit.generators.recipe_pools import fleet_table, pool_tables
from tracekit.generators.recipe_values import parse_amount, parse_arrivals, parse_quotient
from tracekit.traces.synth import Columns, write_jsonl

__all__ = ["Built", "build_case", "policy_of", "profile_of", "trace_of"]

COSTS: dict[str, dict[str, float]] = {
    "S24": {"c0": 16e-3, "c1": 1 / 7_000, "c2": 0.10e-3, "c3": 60e-9, "c4": 2.0e-9},
    "S80": {"c0": 7e-3, "c1": 1 / 32_000, "c2": 0.04e-3, "c3": 43e-9, "c4": 0.25e-9},
    "M320": {"c0": 18e-3, "c1": 1 / 16_000, "c2": 0.06e-3, "c3": 26e-9, "c4": 0.30e-9},
    "L640": {"c0": 22e-3, "c1": 1 / 24_000, "c2": 0.08e-3, "c3": 5e-9, "c4": 0.15e-9},
}
"""Seconds a step; seconds a prefill token, decoding sequence, context token, and query token x context token."""
_KB = 16
MOST_REQUESTS = 10_000_000


@dataclass(slots=True, kw_only=True)
class Built:
    """The files of a case: ``trace``, ``profile`` and ``policy`` of the base, and per variant those that differ from it."""

    trace: Path
    profile: Path
    policy: Path
    requests: int
    variants: dict[str, dict[str, Path]] = field(default_factory=dict)

    def commands(self) -> dict[str, str]:
        """What replays the base and each variant."""
        base = {"trace": self.trace, "profile": self.profile, "policy": self.policy}
        return {name: "tracekit replay {trace} --profile {profile} --policy {policy}".format(**(base | own))
                for name, own in {"base": {}, **self.variants}.items()}  # fmt: skip


def build_case(path: str | Path, out: str | Path) -> Built:
    """Write trace.jsonl.gz, profile.toml and policy.toml, and for every variant the files that differ, to folder ``out``.

    Errors: ``UsageError``, ``InputError``.
    """
    recipe, folder = read_recipe(path), Path(out)
    variants = {name: recipe.variant(name) for name in recipe.variants}
    base = _texts(recipe)
    others = {name: _texts(each) for name, each in variants.items()}
    trace = trace_of(recipe)
    folder.mkdir(parents=True, exist_ok=True)
    built = Built(trace=folder / "trace.jsonl.gz", profile=folder / "profile.toml", policy=folder / "policy.toml",
                  requests=len(trace))  # fmt: skip
    write_jsonl(trace, built.trace)
    built.profile.write_text(base["profile"], encoding="utf-8")
    built.policy.write_text(base["policy"], encoding="utf-8")
    for name, texts in others.items():
        own = built.variants.setdefault(name, {})
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "variant"
        for kind in ("profile", "policy"):
            if texts[kind] != base[kind]:
                own[kind] = folder / f"{kind}.{slug}.toml"
                own[kind].write_text(texts[kind], encoding="utf-8")
        if variants[name].load != recipe.load:
            own["trace"] = folder / f"trace.{slug}.jsonl.gz"
            write_jsonl(trace_of(variants[name]), own["trace"])
    return built


def _texts(recipe: Recipe) -> dict[str, str]:
    name = Path(recipe.file).stem
    profile = profile_of(recipe, name)
    policy_of(recipe, profile)
    return {"profile": profile.to_toml(), "policy": render_toml({"name": name, **_tables(recipe)})}


def profile_of(recipe: Recipe, name: str = "recipe") -> Profile:
    """The cost class as a profile of planted coefficients. Errors: ``UsageError``."""
    given = recipe.engine.get("cost")
    where = recipe.at("engine", "cost")
    if isinstance(given, str) and given in COSTS:
        cost = COSTS[given]
    elif isinstance(given, Mapping) and set(given) == set(COSTS["S24"]):
        cost = {key: parse_quotient(value, where) for key, value in given.items()}
    else:
        raise UsageError(f"{where}: {shown(given)}: expected one of {', '.join(COSTS)}, or c0, c1, c2, c3 and c4 in seconds")
    ns = {key: round(value * 1e9, 9) for key, value in cost.items()}
    latency = Latency(a_ns=ns["c0"], b_ns=ns["c1"], c_ns=ns["c4"], d_ns=ns["c2"], e_ns=ns["c3"])
    kind = f"cost class {given}" if isinstance(given, str) else "coefficients of the recipe"
    return Profile(name=name, latency=latency, synthetic=True, provenance={"kind": kind})


def policy_of(recipe: Recipe, profile: Profile) -> Policy:
    """The recipe's knobs as a policy. Errors: ``UsageError``."""
    text = render_toml(_tables(recipe))
    try:
        return build_policy(profile, text)
    except ConfigError as error:
        raise UsageError(f"{shown_path(recipe.file)}: {error}") from None


def _tables(recipe: Recipe) -> dict[str, dict[str, Any]]:
    engine = recipe.engine
    pools = pool_tables(recipe, _KB) if recipe.pd else {}
    scheduler: dict[str, Any] = {
        **(pools.pop("scheduler") if pools else _budgets(recipe)),
        "block_size": _KB,
        "async_scheduling": False,
        "enable_prefix_caching": _one_of(recipe, "prefix_cache", {"lru": True, "off": False}, "off"),
        "policy": _one_of(recipe, "order", {"fcfs": "fcfs", "priority": "priority"}, "fcfs"),
    }
    # engines that do one thing have nothing to put first
    batching: dict[str, Any] = {} if recipe.pd and "step" not in engine else {**_step(recipe)}
    scheduler["scheduler_reserve_full_isl"] = _admission(recipe, batching)
    if "long_cap" in engine:
        scheduler["long_prefill_token_threshold"] = _whole(recipe, "long_cap")
    if engine.get("align") is not None:
        batching["chunk_align"] = _whole(recipe, "align")
    if _one_of(recipe, "second_prompt_split", {"true": True, "false": False}, "true") is False:
        batching["max_partial_prefills"] = 1
    tables = {"scheduler": scheduler, "batching": batching, **pools}
    if recipe.fleet:
        tables["fleet"] = fleet_table(recipe)
    if recipe.client:
        tables["client"] = dict(recipe.client)
    for table, knobs in recipe.policy.items():
        if not isinstance(knobs, Mapping):
            raise UsageError(f"{recipe.at('policy', table)}: expected a mapping of knobs")
        tables[table] = {**tables.get(table, {}), **knobs}
    return tables


def _budgets(recipe: Recipe) -> dict[str, int]:
    blocks = _whole(recipe, "kv_tokens", _KB) // _KB
    return {
        "max_num_batched_tokens": _whole(recipe, "budget"),
        "max_num_seqs": _whole(recipe, "seats"),
        "num_gpu_blocks": blocks + 1,  # one of them is the null block
        "max_model_len": blocks * _KB,
    }


def _whole(recipe: Recipe, key: str, low: int = 1) -> int:
    value = recipe.engine.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise UsageError(f"{recipe.at('engine', key)}: {shown(value)}: expected a whole number of at least {low}")
    return value


def _one_of(recipe: Recipe, key: str, known: Mapping[str, Any], default: str) -> Any:
    given = recipe.engine.get(key)
    text = default if given is None else str(given).lower()
    if given is False and "off" in known:  # YAML reads a bare off so
        text = "off"
    if text not in known:
        raise UsageError(f"{recipe.at('engine', key)}: {shown(given)}: expected one of {', '.join(known)}")
    return known[text]


def _step(recipe: Recipe) -> dict[str, str]:
    given = str(recipe.engine.get("step", "mixed"))
    turns = re.fullmatch(r"interleave\(\s*(\d+)\s*/\s*(\d+)\s*\)", given)
    if turns:
        return {"step": "interleave", "interleave": f"{turns[1]}:{turns[2]}"}
    if given not in ("mixed", "prefill_first"):
        raise UsageError(f"{recipe.at('engine', 'step')}: {shown(given)}: expected mixed, prefill_first or interleave(n/m)")
    return {"step": "decode_first" if given == "mixed" else "prefill_first"}


def _admission(recipe: Recipe, batching: dict[str, Any]) -> bool:
    """``scheduler_reserve_full_isl``; what is reserved for output goes to ``batching``."""
    given = str(recipe.engine.get("admit", "chunk"))
    clip = re.fullmatch(r"clip\(\s*(\d+)\s*\)", given)
    if clip and int(clip[1]):
        batching.update(output_reserve="max_tokens", output_reserve_clip=int(clip[1]))
    elif given == "isl+max":
        batching["output_reserve"] = "max_tokens"
    elif given not in ("chunk", "isl"):
        raise UsageError(f"{recipe.at('engine', 'admit')}: {shown(given)}: expected chunk, isl, isl+max or clip(N)")
    return given != "chunk"


def trace_of(recipe: Recipe) -> Columns:
    """The requests of all loads in arrival order. Errors: ``UsageError``."""
    blocks = PromptBlocks()
    parts = [_load(recipe, k, each, blocks) for k, each in enumerate(recipe.load)]
    order = np.argsort(np.concatenate([part["arrival"] for part in parts]), kind="stable")
    merged: dict[str, Any] = {}
    for name in parts[0]:
        values = [value for part in parts for value in (part[name] if isinstance(part[name], list) else part[name].tolist())]
        merged[name] = [values[k] for k in order.tolist()]
    hashed = any(each.get("prefix") for each in recipe.load)
    numbers = {name: np.array(merged[name], np.int64) for name in ("arrival", "prompt", "answer", "limit", "priority")}
    return Columns(
        arrival_ns=numbers["arrival"] - numbers["arrival"][0], input_tokens=numbers["prompt"], output_tokens=numbers["answer"],
        tenant=merged["tenant"], slo_class=merged["cls"],
        max_tokens=numbers["limit"] if any("max_tokens" in each for each in recipe.load) else None,
        priority=numbers["priority"] if any("priority" in each for each in recipe.load) else None,
        block_tokens=BLOCK_TOKENS if hashed else None, runs=merged["runs"] if hashed else None,
    )  # fmt: skip


def _load(recipe: Recipe, k: int, given: dict[str, Any], blocks: PromptBlocks) -> dict[str, Any]:
    """Columns of one load. A burst load sends ``n`` requests at each of its moments."""
    rng = np.random.Generator(np.random.PCG64([recipe.seed, k]))
    arrivals = parse_arrivals(given.get("arrive"), recipe.at("load", k, "arrive"))
    n = _count(recipe, k, given, "n", 1) * len(getattr(arrivals, "moments", (0,)))
    if n > MOST_REQUESTS:
        raise UsageError(f"{recipe.at('load', k, 'n')}: {n:,} requests: expected at most {MOST_REQUESTS:,}")
    seconds = arrivals.times(rng, n)
    prompt, answer = (np.maximum(np.rint(parse_amount(given.get(name), recipe.at("load", k, name)).draw(rng, n)), 1)
                      for name in ("isl", "osl"))  # fmt: skip
    cls = str(given.get("cls", f"load{k + 1}"))
    limit = _count(recipe, k, given, "max_tokens", 1) if "max_tokens" in given else 0
    return {
        "arrival": np.rint(seconds * 1e6).astype(np.int64) * 1000,
        "prompt": prompt.astype(np.int64),
        "answer": np.minimum(answer, limit or np.inf).astype(np.int64),
        "limit": np.full(n, limit) if limit else answer.astype(np.int64),
        "priority": np.full(n, _count(recipe, k, given, "priority", -(2**31)) if "priority" in given else 0),
        "cls": [cls] * n,
        "tenant": [str(given.get("tenant", cls))] * n,
        "runs": _runs(recipe, k, given.get("prefix"), prompt.astype(np.int64).tolist(), rng, blocks),
    }


def _count(recipe: Recipe, k: int, given: Mapping[str, Any], name: str, low: int) -> int:
    value = given.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise UsageError(f"{recipe.at('load', k, name)}: {shown(value)}: expected a whole number of at least {low}")
    return value


def _runs(recipe: Recipe, k: int, prefix: Any, prompts: list[int], rng: np.random.Generator,
          blocks: PromptBlocks) -> list[list[list[int]]]:  # fmt: skip
    if prefix is None:
        return [blocks.alone(tokens) for tokens in prompts]
    where = recipe.at("load", k, "prefix")
    each_once = isinstance(prefix, Mapping) and prefix.get("group") == "each once"
    groups = len(prompts) if each_once else prefix.get("groups") if isinstance(prefix, Mapping) else None
    length = prefix.get("len") if isinstance(prefix, Mapping) else None
    if not all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in (groups, length)):
        raise UsageError(f'{where}: {shown(prefix)}: expected {{groups: G, len: L}} or {{group: "each once", len: L}}')
    assert isinstance(groups, int) and isinstance(length, int)
    drawn: npt.NDArray[np.int64] = np.arange(groups) if each_once else rng.integers(groups, size=len(prompts))
    # groups are known by number and length over all loads: one load may warm another's prefixes
    return [blocks.prompt(tokens, (length, group), length, None) for tokens, group in zip(prompts, drawn.tolist(), strict=True)]

"""Draws of healthy services with one or two faults planted, each kept only if the fault is one: removing it cures at least half
of the misses. Nothing here knows of any diagnosis.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from benchmarks.planted_faults import FAULTS, SINGLE_ENGINE, plant
from benchmarks.planted_loads import KINDS, Load, draw_load
from benchmarks.planted_replay import Recipe, Replayed, replayed
from replay_engine.config import ConfigError
from tracekit.errors import TracekitError
from tracekit.metrics import SloTable
from tracekit.metrics.slo import Slo

__all__ = ["Draw", "draw_healthy", "draw_planted"]

HEALTHY = 0.01
"""Misses of a healthy service, at most."""
FAULTY = 0.05
"""Misses that a fault makes, at least."""
OWN_PART = 0.15
"""Of the misses of two faults, the part that removing one of them cures, at least."""
TRIES = 400


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A service with its ``faults`` (none: healthy), its SLO, its misses with them and without, and how many draws were
    discarded before it."""

    faults: tuple[str, ...]
    recipe: Recipe
    slo: SloTable
    run: Replayed
    misses: float
    healthy_misses: float
    discarded: int


def draw_healthy(seed: int) -> Draw:
    rng = np.random.Generator(np.random.PCG64([seed, 1]))
    for discarded in range(TRIES):
        load = draw_load(rng, str(rng.choice(KINDS)))
        slo, run = _healthy(rng, load)
        if slo is not None and run is not None:
            return Draw(faults=(), recipe=load.recipe, slo=slo, run=run, misses=run.misses, healthy_misses=run.misses,
                        discarded=discarded)  # fmt: skip
    raise RuntimeError(f"seed {seed}: no healthy service in {TRIES} draws")


def draw_planted(seed: int, faults: int, only: str | None = None) -> Draw:
    """A service with one fault or two. ``only``: with this one, or with this one among the two."""
    rng = np.random.Generator(np.random.PCG64([seed, 2, faults]))
    for discarded in range(TRIES):
        names = _names(rng, faults, only)
        kinds = [kind for kind in FAULTS[names[0]][0] if all(kind in FAULTS[each][0] for each in names)]
        load = draw_load(rng, str(rng.choice(kinds)))
        found = _planted(rng, load, names)
        if found is not None:
            recipe, slo, run, healthy = found
            return Draw(faults=names, recipe=recipe, slo=slo, run=run, misses=run.misses, healthy_misses=healthy,
                        discarded=discarded)  # fmt: skip
    raise RuntimeError(f"seed {seed}: no such fault in {TRIES} draws")


def _names(rng: np.random.Generator, faults: int, only: str | None) -> tuple[str, ...]:
    if faults == 1:
        return (only or str(rng.choice(list(FAULTS))),)
    pairs = [pair for pair in combinations(SINGLE_ENGINE, 2) if set(FAULTS[pair[0]][0]) & set(FAULTS[pair[1]][0])]
    pairs = [pair for pair in pairs if only is None or only in pair]
    return pairs[int(rng.integers(len(pairs)))]


def _planted(rng: np.random.Generator, load: Load, names: tuple[str, ...]) -> tuple[Recipe, SloTable, Replayed, float] | None:
    slo, healthy = _healthy(rng, load)
    if slo is None or healthy is None:
        return None
    seeds = [int(rng.integers(2**31)) for _ in names]

    def faulty(*which: int) -> Recipe:
        recipe = load.recipe
        for k in which:
            recipe = plant(np.random.Generator(np.random.PCG64(seeds[k])), load, recipe, names[k])
        return recipe

    recipe = faulty(*range(len(names)))
    run = _try(recipe, slo)
    if run is None or run.misses < FAULTY or run.misses < 2 * healthy.misses:
        return None
    if len(names) == 2:
        for k in range(2):
            alone = _try(faulty(k), slo)
            if alone is None or alone.misses < FAULTY or run.misses - alone.misses < OWN_PART * run.misses:
                return None
    return recipe, slo, run, healthy.misses


def _healthy(rng: np.random.Generator, load: Load) -> tuple[SloTable | None, Replayed | None]:
    """An SLO that the healthy service meets, with room, and its replay under it; ``None`` where it does not cope."""
    free = _try(load.recipe, None)
    if free is None:
        return None, None
    slo = _slo(rng, load, free)
    run = _try(load.recipe, slo)
    return (slo, run) if run is not None and run.misses <= HEALTHY else (None, None)


def _slo(rng: np.random.Generator, load: Load, run: Replayed) -> SloTable:
    source, rows = run.setup.source, run.outcomes
    names = source.class_names
    exempt = [k for k, name in enumerate(names) if name in load.exempt]
    held = rows[~np.isin(source.class_[rows["request"]], exempt)] if source.class_ is not None else rows
    limits = {"ttft_ns": _rounded(max(float(rng.uniform(1.5, 3)) * np.percentile(held["ttft_ns"], 99), 1e8))}
    tpot = held["tpot_ns"][~np.isnan(held["tpot_ns"])]
    if len(tpot) > 50 and load.kind != "prefill only":
        limits["tpot_ns"] = _rounded(float(rng.uniform(1.4, 2.2)) * np.percentile(tpot, 99))
        if load.kind == "long prompts" or rng.random() < 0.4:
            gaps = held["max_gap_ns"][held["max_gap_ns"] >= 0]
            limits["stall_ns"] = _rounded(max(float(rng.uniform(1.6, 3)) * np.percentile(gaps, 99.8), 1e8))
    none: dict[str, int | None] = dict.fromkeys(limits)
    return SloTable(default=Slo(**limits), classes=dict.fromkeys((*load.exempt, "archive"), none))


def _rounded(ns: float) -> int:
    """To two digits, as people write limits."""
    return int(float(f"{ns:.2g}"))


def _try(recipe: dict[str, Any], slo: SloTable | None) -> Replayed | None:
    """The replay; ``None`` where there is no such configuration, or it does not end."""
    try:
        run = replayed(recipe, slo)
    except (ConfigError, TracekitError):
        return None
    return run if run.state == "finished" else None

"""Small loads with a known fault, as setups to replay: built from the recipes' language, in memory but for one trace file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from replay_engine.policy import apply_set, load_policy
from replay_engine.profile import load_profile
from tracekit.door_facts import door_facts
from tracekit.generators.recipe import build_case
from tracekit.metrics import SloTable, parse_slo
from tracekit.replay import Setup
from tracekit.traces.load import read_trace
from tracekit.traces.source import TraceSource

__all__ = ["CHAT", "setup_of_recipe"]

CHAT = {
    "seed": 7,
    "engine": {"cost": "S80", "budget": 4096, "seats": 4, "kv_tokens": 400000, "step": "mixed", "admit": "chunk"},
    "load": [
        {"cls": "chat", "n": 300, "arrive": "poisson(2.0)", "isl": "ln(600,0.6,50,3000)", "osl": "ln(200,0.5,20,600)"},
        {"cls": "code", "n": 60, "arrive": "poisson(0.4)", "isl": "ln(1500,0.5,200,5000)", "osl": "ln(120,0.5,20,400)"},
    ],
}
"""Four seats where about ten are wanted: nothing else is short."""


def setup_of_recipe(recipe: dict[str, object] | Path, folder: Path, *, slo: str | None = None, sets: Sequence[str] = ()) -> Setup:
    """The setup of a recipe's base, with ``sets`` on top."""
    if isinstance(recipe, dict):
        path = folder / "recipe.yaml"
        path.write_text(yaml.safe_dump(recipe), "utf-8")
        recipe = path
    built = build_case(recipe, folder / "built")
    profile = load_profile(str(built.profile))
    policy = apply_set(load_policy(str(built.policy), profile), sets, profile)
    source = TraceSource.from_loaded(read_trace(str(built.trace)))
    table = None if slo is None else SloTable.from_policy({}, parse_slo(slo))
    return Setup(
        profile=profile, policy=policy, slo=table, source=source, trace=0, trace_name="built", lead_in_ns=0, seed=0,
        events="full", accept_degraded=False, warmup_ns=0, facts=door_facts(policy, profile, table, source),
    )  # fmt: skip

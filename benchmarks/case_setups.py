"""A case's recipe as a setup that can be replayed and diagnosed, and its variants."""

from __future__ import annotations

from pathlib import Path

from replay_engine.policy import load_policy
from replay_engine.profile import load_profile
from tracekit.door_facts import door_facts
from tracekit.generators.recipe import Built, build_case
from tracekit.replay import Setup
from tracekit.traces.load import read_trace
from tracekit.traces.source import TraceSource

__all__ = ["CASES", "built_setup", "recipe_setup"]

CASES = Path(__file__).resolve().parents[1] / "tests" / "data" / "cases"


def recipe_setup(recipe: Path, folder: Path) -> Setup:
    """The base of a recipe, built in ``folder``, without an SLO. Errors: those of ``build_case``."""
    return built_setup(build_case(recipe, folder), "base")


def built_setup(built: Built, variant: str) -> Setup:
    """The setup of a variant of a case that was built, or of its ``base``."""
    own = {} if variant == "base" else built.variants[variant]
    profile = load_profile(own.get("profile", built.profile))
    policy = load_policy(own.get("policy", built.policy), profile)
    source = TraceSource.from_loaded(read_trace(own.get("trace", built.trace)))
    return Setup(
        profile=profile, policy=policy, slo=None, source=source, trace=0, trace_name="case", lead_in_ns=0, seed=0,
        events="full", accept_degraded=False, warmup_ns=0, facts=door_facts(policy, profile, None, source),
    )  # fmt: skip

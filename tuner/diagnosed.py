"""Before a search: whether any scheduler knob can help at all. Where none can, nothing is searched."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.cells import Replays, Result
from tuner.objective import attainment
from tuner.plan import TunePlan

__all__ = ["no_knob_helps"]


def no_knob_helps(plan: TunePlan, base: Sequence[Result], replays: Replays) -> str | None:
    """Why no search is worth a trial, in a sentence, or ``None``. ``base``: the current policy on the search windows."""
    if plan.objective_names == ("goodput",) and attainment(base) == 1.0:
        n = sum(result["n"] for result in base)
        return f"the current policy meets the SLO of all {n:,} requests on the windows searched: there is nothing to gain"
    return None

"""What was decided before the engine: whom the front door let in, cut or turned away, each with its reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.rules import Client, FrontDoorRules
from replay_engine.tables import ENUMS
from replay_engine.types import RequestState
from tracekit.metrics.distributions import missing
from tracekit.metrics.inputs import MatrixInputs

__all__ = ["entrance_section"]


def entrance_section(inputs: MatrixInputs, rows: npt.NDArray[np.void]) -> dict[str, Any]:
    """Decisions and final states by reason, over the counted requests; null without front door and client limit."""
    rules = inputs.rules
    active = [
        name
        for name, changed in (("front door", rules.front_door != FrontDoorRules()), ("client limit", rules.client != Client()))
        if changed
    ]
    if not active:
        nothing = missing("no front door rule and no client limit")
        return {"active": nothing, "decisions": nothing, "states": nothing}
    return {"active": ", ".join(active), "decisions": _decisions(inputs, rows), "states": _states(rows)}


def _decisions(inputs: MatrixInputs, rows: npt.NDArray[np.void]) -> dict[str, int]:
    rejected = rows["state"] == RequestState.rejected
    degraded = inputs.degraded[rows["request"]] if inputs.degraded is not None else np.zeros(rows.size, np.bool_)
    names = ENUMS["outcomes", "reason"]
    reasons = np.bincount(rows["reason"][rejected], minlength=len(names))
    found = {
        "admitted": int(np.count_nonzero(~rejected & ~degraded)),
        "degraded": int(np.count_nonzero(~rejected & degraded)),
    }
    return found | {f"rejected: {names[code]}": int(n) for code, n in enumerate(reasons) if n and code < len(names)}


def _states(rows: npt.NDArray[np.void]) -> dict[str, int]:
    """``state`` or ``state: reason`` with its count, in the order of the codes."""
    names = ENUMS["outcomes", "reason"]
    pairs, counts = np.unique(rows[["state", "reason"]], return_counts=True)
    found: dict[str, int] = {}
    for pair, count in zip(pairs, counts, strict=True):
        state, reason = RequestState(int(pair["state"])).name, names[int(pair["reason"])]
        found[state if reason == "none" else f"{state}: {reason}"] = int(count)
    return found

"""What preemption cost: tokens lost and computed again, copies over the link, and how long requests stood still."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.tables import ENUMS
from tracekit.metrics.distributions import describe, missing
from tracekit.metrics.inputs import MatrixInputs, Totals

__all__ = ["preemption_section"]

Rows = npt.NDArray[np.void]
_NO_ROWS = "the preemptions table needs --events full"


def preemption_section(inputs: MatrixInputs, rows: Rows) -> dict[str, Any]:
    """Counts of the counted requests, and from the ``preemptions`` table what it took to restore each."""
    totals: Totals = inputs.totals
    computed = totals.prefill_tokens + totals.decode_tokens
    return {
        "preemptions": int(rows["preemptions"].sum()),
        "requests_preempted": int(np.count_nonzero(rows["preemptions"])),
        "recomputed_tokens": int(rows["recomputed_tokens"].sum()),
        "preemptions_whole_replay": totals.preemptions,
        "recomputed_share": totals.recomputed_tokens / computed if computed else missing("no token was computed"),
        **_cost(inputs, rows),
    }


def _cost(inputs: MatrixInputs, rows: Rows) -> dict[str, Any]:
    names = ("stood_still_ns", "recovery_ns", "recovery_share", "lost_tokens", "link_ns", "not_restored", "by_kind")
    events = inputs.preemptions
    if events is None:
        return dict.fromkeys(names, missing(_NO_ROWS))
    if inputs.counted is not None:
        events = events[inputs.counted[events["request"]]]
    back = events["restored_ns"] >= 0
    still = (events["restored_ns"] - events["preempted_ns"])[back]
    lived = rows["e2e_ns"][rows["e2e_ns"] >= 0].sum()
    return {
        "stood_still_ns": describe(still, "nobody was preempted and restored"),
        "recovery_ns": int(still.sum()),
        "recovery_share": float(still.sum() / lived) if lived else missing("no request finished"),
        "lost_tokens": int(events["lost_tokens"].sum()),
        "link_ns": int(_column(events, "link_ns").sum()),
        "not_restored": int(np.count_nonzero(~back)),
        "by_kind": _kinds(events, back) or missing("nobody was preempted"),
    }


def _kinds(events: Rows, back: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """By what became of the victim's KV: events, tokens computed again, time on the link, time stood still."""
    names = ENUMS["preemptions", "kind"]
    kind = _column(events, "kind")
    found: dict[str, Any] = {}
    for code in np.unique(kind):
        here = kind == code
        still = (events["restored_ns"] - events["preempted_ns"])[here & back]
        found[names[code]] = {
            "events": int(np.count_nonzero(here)),
            "recomputed_tokens": int(events["recomputed_tokens"][here].sum()),
            "link_ns": int(_column(events, "link_ns")[here].sum()),
            "stood_still_ns": int(still.sum()),
        }
    return found


def _column(events: Rows, name: str) -> npt.NDArray[Any]:
    column: npt.NDArray[Any] = events[name]
    return column

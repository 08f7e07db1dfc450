"""Who won and who lost when one run's settings replace another's: request by request, and by class and tenant."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.comparison.pairing import Pair

__all__ = ["SAME", "contest_of"]

SAME = 0.01
"""Times that differ by less than this share count as the same."""
SHOWN = 10
GROUPS = 20
PARTS = {"ttft": "ttft_ns", "tpot": "tpot_ns", "e2e": "e2e_ns"}
Bools = npt.NDArray[np.bool_]


def contest_of(pair: Pair) -> dict[str, Any]:
    """Plain values. ``parts``: per latency how many requests are faster, slower or the same in the second run, and how many have
    it in one run only. ``slo``: who meets it in one run only. ``ends``: how requests ended in both. ``losers``, ``winners``:
    the largest changes of E2E. ``by_class``, ``by_tenant``: the same counts for TTFT, E2E and SLO, largest groups first.
    """
    everybody = np.ones(len(pair.request), np.bool_)
    change = pair.other.values["e2e_ns"] - pair.base.values["e2e_ns"]
    known = np.flatnonzero(~np.isnan(change))
    order = known[np.argsort(change[known], kind="stable")]
    return {
        "same_within": SAME,
        **_counts(pair, everybody),
        "ends": _ends(pair),
        "losers": [_request(pair, at) for at in order[::-1][:SHOWN] if change[at] > 0],
        "winners": [_request(pair, at) for at in order[:SHOWN] if change[at] < 0],
        **{f"by_{name}": _groups(pair, labels) for name, labels in pair.labels.items()},
    }


def _counts(pair: Pair, chosen: Bools) -> dict[str, Any]:
    parts = {part: _part(pair, column, chosen) for part, column in PARTS.items()}
    return {"requests": int(chosen.sum()), "parts": parts, "slo": _slo(pair, chosen)}


def _part(pair: Pair, column: str, chosen: Bools) -> dict[str, Any]:
    before, after = (side.values[column][chosen] for side in (pair.base, pair.other))
    here, there = ~np.isnan(before), ~np.isnan(after)
    both = here & there
    before, after = before[both], after[both]
    alike = np.abs(after - before) <= SAME * np.maximum(before, after)
    return {
        "faster": int((~alike & (after < before)).sum()),
        "slower": int((~alike & (after > before)).sum()),
        "same": int(alike.sum()),
        "only_before": int((here & ~there).sum()),
        "only_after": int((there & ~here).sum()),
        "median_change_ns": float(np.median(after - before)) if len(before) else None,
    }


def _slo(pair: Pair, chosen: Bools) -> dict[str, int] | None:
    before, after = pair.base.met, pair.other.met
    if before is None or after is None or pair.base.row["slo"] != pair.other.row["slo"]:
        return None
    before, after = before[chosen], after[chosen]
    return {"met_in_both": int((before & after).sum()), "won": int((~before & after).sum()), "lost": int((before & ~after).sum()),
            "missed_in_both": int((~before & ~after).sum())}  # fmt: skip


def _ends(pair: Pair) -> list[dict[str, Any]]:
    """Pairs of states, the most frequent first."""
    pairs = [f"{before}\n{after}" for before, after in zip(pair.base.state, pair.other.state, strict=True)]
    kinds, counts = np.unique(np.array(pairs, dtype=str), return_counts=True)
    found = []
    for at in np.argsort(-counts, kind="stable"):
        before, after = str(kinds[at]).split("\n")
        found.append({"before": before, "after": after, "requests": int(counts[at])})
    return found


def _request(pair: Pair, at: int) -> dict[str, Any]:
    """One request with both its values, ns."""
    row: dict[str, Any] = {"request": int(pair.request[at])}
    row |= {name: labels[at] for name, labels in pair.labels.items()}
    for column in PARTS.values():
        row[column] = [None if np.isnan(side.values[column][at]) else float(side.values[column][at])
                       for side in (pair.base, pair.other)]  # fmt: skip
    return row


def _groups(pair: Pair, labels: npt.NDArray[np.object_]) -> list[dict[str, Any]]:
    names = np.array(["" if label is None else str(label) for label in labels], dtype=str)
    kinds, counts = np.unique(names, return_counts=True)
    largest = np.argsort(-counts, kind="stable")[:GROUPS]
    return [{"name": str(kinds[at]) or None, **_counts(pair, names == kinds[at])} for at in largest]

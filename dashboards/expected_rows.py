"""Where a run's time should have gone by the model, beside where it went, as text (``expected`` of a verdict)."""

from __future__ import annotations

from typing import Any

from dashboards.words import percent, seconds

__all__ = ["expected_rows", "expected_said"]

LEAST_KIND = 0.001
"""Of all the time that requests took: a kind of time with less is left out."""
_KINDS = {"waiting": "waiting for the engine's turn", "prefill": "own prompt computed", "decode": "answering, token by token"}


def expected_said(expected: dict[str, Any]) -> str:
    """What the model is, how large the load, and whether anything is left without a name."""
    load = expected["load"]
    said = f"By {expected['by']} that knows costs and arrivals and hardly a setting"
    said += "" if load is None else f"; the load is {percent(load)} of the engine's time"
    left = len(expected["unnamed"])
    if not left:
        return f"{said}. Nothing of the difference stands out without a name."
    return f"{said}. {left} {'part of the difference has' if left == 1 else 'parts of the difference have'} no name yet:"


def expected_rows(expected: dict[str, Any]) -> list[list[str]]:
    """Kind of time, should, was, difference (with its sign), in the verdict's order; kinds that hardly count are left out."""
    total = max(sum(each["actual_s"] for each in expected["kinds"]), 1e-9)
    rows = []
    for each in expected["kinds"]:
        should, was = each["expected_s"], each["actual_s"]
        if max(should, was) < LEAST_KIND * total:
            continue
        sign = "+" if was >= should else "-"
        name = _KINDS.get(each["kind"], each["kind"].replace("_", " "))
        rows.append([name, seconds(should), seconds(was), sign + seconds(abs(was - should))])
    return rows

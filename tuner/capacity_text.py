"""A capacity answer as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["capacity_text"]

PLACES = {"now": "for the traffic", "knee": "at the knee", "needed": "for the traffic, with the replicas that it needs"}


def capacity_text(document: Mapping[str, Any]) -> str:
    """The document (``tracekit.capacity/1``) as ``tracekit capacity`` prints it."""
    lines = [f"{document['trace']}: {document['traffic'][0]}", ""]
    lines += _scenario(document, document["target"], "The current policy")
    for row in document["what_if"]:
        lines.append("")
        lines += _scenario(row, document["target"], f"What if {row['what']}")
        if row["over_current"] is not None:
            cards = f"{row['cards']} card{'s' * (row['cards'] > 1)}: {row['requests_per_s_per_card']:.3g} requests/s each"
            lines.append(f"  {row['over_current']:.2f} times the current capacity; on {cards}")
        lines += [f"  {note}" for note in row["notes"]]
    return "\n".join(lines) + "\n"


def _scenario(found: Mapping[str, Any], target: float, who: str) -> Iterator[str]:
    yield from _knee_lines(found, target, who)
    yield _replicas_line(found["replicas"])
    yield from _cost_lines(found["cost"])
    yield from _extrapolation_lines(found)


def _replicas_line(replicas: Mapping[str, Any]) -> str:
    if replicas["reason"] is not None:
        return f"  replicas: {replicas['reason']}"
    replayed = replicas["replayed"]
    ratio = "" if replayed is None else f", {replicas['ratio']:.2f} times the ideal peak"
    return (f"  replicas: an ideal autoscaler at {replicas['per_replica_per_s']:.3g} requests/s each needs"
            f" {replicas['bound_mean']:.2f} on average, {replicas['bound_peak']} at the peak, each slot served by itself;"
            f" replayed, with queueing: {'more than 64' if replayed is None else replayed}{ratio}")  # fmt: skip


def _cost_lines(cost: Mapping[str, Any] | None) -> Iterator[str]:
    for row in () if cost is None else cost["rows"]:
        million = row["per_million_output"]
        tokens = "no request meets its SLO" if million is None else f"{million:.4g} per million output tokens that met the SLO"
        both = row["per_million_input_and_output"]
        whole = "" if both is None else f", {both:.4g} per million of input and output"
        idle = "" if row["idle"] is None else f"; idle {100 * row['idle']:.0f} % of the time"
        cards = f"{row['cards']} card{'s' * (row['cards'] > 1)}"
        yield f"  cost {PLACES[row['at']]}: {row['per_hour']:g} an hour for {cards}; {tokens}{whole}{idle}"


def _extrapolation_lines(found: Mapping[str, Any]) -> Iterator[str]:
    if not found["range_known"]:
        yield "  EXTRAPOLATION unknown: the profile states no range that it was fitted for"
    outside = [point for point in found["points"] if point["extrapolation"]]
    if outside:
        few = f"{len(outside)} of {len(found['points'])} rates, x{outside[0]['factor']:.3g} to x{outside[-1]['factor']:.3g}"
        where = "every rate" if len(outside) == len(found["points"]) else few
        yield f"  EXTRAPOLATION at {where}: {'; '.join(outside[-1]['extrapolation'])}"


def _knee_lines(found: Mapping[str, Any], target: float, who: str) -> list[str]:
    goal = f"{100 * target:.0f} %"
    now = f"{100 * found['attainment_now']:.1f} % attain their SLO at the rate as it is"
    if not found["factor"]:
        return [f"{who}: {goal} is not reached at any rate down to 1/64; {now}"]
    if found["above"] is None:
        return [f"{who}: {goal} is still reached at x{found['factor']:g}, the highest rate tried; {now}"]
    lines = [f"{who}: the knee is at x{found['factor']:.3g} ({found['requests_per_s']:.3g} requests/s): {goal} attain their SLO"
             f" there and no longer at x{found['above']:.3g}; {now}",
             f"  past the knee every 10 % more traffic costs {-100 * found['slope']:.1f} points of attainment"]  # fmt: skip
    lines.append("  " + ", ".join(f"x{row['factor']:.3g}: {100 * row['attainment']:.1f} %" for row in found["curve"]))
    return lines

"""What an answer of capacity holds, as typed rows: scenarios, points of their curves, replicas over time, costs. Read from its
document, never computed anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dashboards.words import number, percent, short

__all__ = [
    "CostRow", "Extrapolated", "Knee", "Needs", "Point", "Slot", "changes_of", "costs_of", "describe_costs", "describe_curves",
    "describe_needs", "extrapolated_of", "knees_of", "needs_of", "verdict_of",
]  # fmt: skip

PLACES = {"now": "for the traffic", "knee": "at the knee", "needed": "with the replicas needed"}


class Point(NamedTuple):
    """One rate that was replayed. ``why``: why it is an extrapolation, empty where it is none."""

    factor: float
    per_s: float
    attainment: float
    n: int
    why: tuple[str, ...]


class Knee(NamedTuple):
    """A scenario. ``factor``: the highest on today's arrival rate at which the target holds (0: at none); ``open``: it still
    holds at the highest rate tried; ``slope``: attainment per 10 % more traffic past it; ``now``: attainment of its own traffic,
    which comes ``rate`` times as fast as today's. ``over``: times today's capacity."""

    name: str
    factor: float
    open: bool
    per_s: float
    slope: float | None
    now: float
    rate: float
    over: float | None
    cards: int
    points: tuple[Point, ...]


class Slot(NamedTuple):
    """A stretch of the trace (s): arrivals a second, and replicas of an ideal autoscaler."""

    begin_s: float
    end_s: float
    per_s: float
    ideal: int


class Needs(NamedTuple):
    """Replicas that a scenario's traffic needs. ``replayed``: of a fleet that stays, ``None``: more than were tried;
    ``windows``: begin, end (s) and replicas of each window alone. ``reason``: why nothing is known."""

    name: str
    reason: str | None
    slots: tuple[Slot, ...] = ()
    mean: float = 0.0
    peak: int = 0
    replayed: int | None = None
    ratio: float | None = None
    windows: tuple[tuple[float, float, int | None], ...] = ()


class CostRow(NamedTuple):
    """What a scenario costs at one place. Prices per million tokens are of requests that met their SLO (``None``: no request)."""

    name: str
    place: str
    cards: int
    per_hour: float
    output: float | None
    both: float | None
    tokens: tuple[int, int, int]
    idle: float | None


class Extrapolated(NamedTuple):
    """Why points of a scenario are extrapolations, and which."""

    name: str
    why: str
    factors: tuple[float, ...]
    all: bool


def _scenarios(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "as it is", document
    for row in document["what_if"]:
        yield str(row["what"]), row


def knees_of(document: Mapping[str, Any]) -> tuple[Knee, ...]:
    """The current policy first."""
    return tuple(
        Knee(name, row["factor"], row["above"] is None and row["factor"] > 0, row["requests_per_s"], row["slope"],
             row["attainment_now"], row["rate_scale"], row.get("over_current"), row["cards"],
             tuple(Point(p["factor"], p["requests_per_s"], p["attainment"], p["n"], tuple(p["extrapolation"]))
                   for p in row["points"]))
        for name, row in _scenarios(document)
    )  # fmt: skip


def needs_of(document: Mapping[str, Any]) -> tuple[Needs, ...]:
    """Scenario by scenario."""
    return tuple(_needs(name, row["replicas"]) for name, row in _scenarios(document))


def _needs(name: str, found: Mapping[str, Any]) -> Needs:
    if found["reason"] is not None:
        return Needs(name, str(found["reason"]))
    slots = tuple(Slot(begin, end, rate, ideal)
                  for (begin, end), rate, ideal in zip(found["slot_s"], found["slots"], found["bound"], strict=True))  # fmt: skip
    windows = tuple((begin, end, each) for (begin, end), each in zip(found["window_s"], found["replayed_by_window"], strict=True))
    return Needs(name, None, slots, found["bound_mean"], found["bound_peak"], found["replayed"], found["ratio"], windows)


def costs_of(document: Mapping[str, Any]) -> tuple[CostRow, ...]:
    """Every scenario that has a price, at every place."""
    return tuple(
        CostRow(name, PLACES[each["at"]], each["cards"], each["per_hour"], each["per_million_output"],
                each["per_million_input_and_output"],
                (each["input_tokens"], each["cached_input_tokens"], each["output_tokens"]), each["idle"])
        for name, row in _scenarios(document) if row["cost"] is not None for each in row["cost"]["rows"]
    )  # fmt: skip


def extrapolated_of(document: Mapping[str, Any]) -> tuple[Extrapolated, ...]:
    """By scenario and reason; shares of time differ from point to point and are told once, of the highest rate."""
    found = []
    for knee in knees_of(document):
        grouped: dict[str, tuple[str, list[float]]] = {}
        for point in knee.points:
            for why in point.why:
                kind = why.partition(" % of the engine's time has ")[2].partition(" (")[0] or why
                grouped[kind] = (why, [*grouped.get(kind, ("", []))[1], point.factor])
        found += [Extrapolated(knee.name, why, tuple(at), len(at) == len(knee.points)) for why, at in grouped.values()]
    unknown = [name for name, row in _scenarios(document) if not row["range_known"] and not row["extrapolation"]]
    return tuple(found) + tuple(
        Extrapolated(name, "the profile states no range that it was fitted for, so that nobody can say", (), True)
        for name in unknown
    )


def verdict_of(document: Mapping[str, Any]) -> str:
    """The answer for what runs today, in one sentence."""
    return f"As it is, {_holds(knees_of(document)[0], _target(document))}."


def changes_of(document: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The answer for each scenario: its name, and a sentence."""
    return tuple((each.name, f"{_holds(each, _target(document))}.") for each in knees_of(document)[1:])


def _target(document: Mapping[str, Any]) -> str:
    return f"{100 * document['target']:.0f} %"


def _holds(knee: Knee, target: str) -> str:
    if not knee.factor:
        return f"{target} attain their SLO at no rate that was tried"
    more = " and more" if knee.open else ""
    over = "" if knee.over is None else f", {knee.over:.2f} times today's capacity"
    return f"{target} attain their SLO up to {number(knee.per_s)} requests/s{more} (x{short(knee.factor)} of today's rate{over})"


def describe_curves(document: Mapping[str, Any]) -> str:
    """What the curves show: the slope past each knee, and where each scenario's own traffic lies."""
    parts = []
    for knee in knees_of(document):
        past = "" if knee.slope is None else f", past its knee every 10 % more traffic costs {-100 * knee.slope:.1f} points"
        parts.append(f"{_capital(knee.name)}: {percent(knee.now)} attain their SLO at x{short(knee.rate)}{past}")
    return f"{'. '.join(parts)}. Hollow points are extrapolations."


def describe_needs(needs: Needs) -> str:
    """An ideal autoscaler's replicas beside those that were replayed."""
    if needs.reason is not None:
        return f"{_capital(needs.name)}: {needs.reason}."
    replayed = "more than 64" if needs.replayed is None else str(needs.replayed)
    ratio = "" if needs.ratio is None else f", {needs.ratio:.2f} times the ideal peak"
    less = "" if needs.ratio is None or needs.ratio >= 1 else ": short peaks wait in the queue and still attain their SLO"
    return (f"{_capital(needs.name)}: an ideal autoscaler, which serves each stretch by itself without queueing, has"
            f" {needs.mean:.2f} replicas on average and {needs.peak} at the peak; replayed with queueing, a fleet of"
            f" {replayed} reaches the target{ratio}"
            f"{less}.")  # fmt: skip


def _capital(name: str) -> str:
    """Settings are left as they are."""
    return name if "=" in name else name[:1].upper() + name[1:]


def describe_costs(rows: tuple[CostRow, ...]) -> str:
    """The cheapest and the dearest that serve anybody."""
    known = [row for row in rows if row.output is not None]
    if not known:
        return "Nobody meets their SLO, so no token that did has a price."
    low, high = (pick(known, key=lambda row: row.output or 0.0) for pick in (min, max))
    said = f"A million output tokens that met their SLO cost least {low.place}, {low.name}: {number(low.output)}"
    return f"{said}; most {high.place}, {high.name}: {number(high.output)}." if high != low else f"{said}."

"""What stands above every page: which run, under which policy, held to which SLO, and what is selected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from dashboards.address import Address
from dashboards.queries import RunBook
from dashboards.spoken import spoken
from dashboards.words import count, percent, rate, seconds, short
from tracekit.errors import LockedError, TracekitError
from tracekit.metrics.slo import SloTable
from tracekit.run_policy import run_flags
from tracekit.store import load_run

__all__ = ["Chip", "Heading", "SloChip", "heading_of", "selection_chips"]


class SloChip(NamedTuple):
    """One part of the SLO: its text, and whether every request met it (``None``: not known)."""

    text: str
    met: bool | None


class Chip(NamedTuple):
    """One part of the selection, and the query string without it."""

    text: str
    without: str


class Heading(NamedTuple):
    """Title and trace of the run, its policy as flags, its SLO; ``note``: why something is missing."""

    title: str
    trace: str
    policy: str
    slo: tuple[SloChip, ...]
    note: str = ""


def heading_of(book: RunBook, address: Address) -> Heading:
    """Never fails: what cannot be read is said in ``note``."""
    try:
        row = book.recorded(address.run)
        if row is None:
            view = book.view(address.run)
            return Heading(view.title, "", "", (), "")
        kept = book.remember(f"heading {row['spool']}", lambda: _recorded(book, row["run"]))
    except LockedError as error:
        return Heading("", "", "", (), spoken(error))
    except TracekitError as error:
        return Heading("no run", "", "", (), spoken(error))
    assert isinstance(kept, Heading)
    return kept


def _recorded(book: RunBook, run: int) -> Heading:
    row = load_run(book.store, run)
    title = f"run {run}" + (f" · {row['name']}" if row["name"] else "")
    flags = run_flags(row)
    trace = f"{row['trace_name'] or 'trace'}, {count(row['requests'])} requests, {row['engine']} {row['profile'] or ''}".strip()
    policy = "the engine's defaults" if flags == "" else flags or ""
    return Heading(title, trace, policy, tuple(_slo(row["matrix"] or {}, row["slo"])))


def _slo(matrix: dict[str, Any], slo: dict[str, Any] | None) -> list[SloChip]:
    if slo is None or "slo" not in matrix:
        return [SloChip("no SLO: replay with --slo ttft=500ms,tpot=50ms", None)]
    section, table = matrix["slo"], SloTable.from_dict(slo)
    missed = section.get("missed_by") or {}
    chips = []
    for part in table.given():
        limit = table.default.limit(part) if table.default is not None else None
        name = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL P99", "stall": "longest gap", "e2e": "E2E"}[part]
        bound = f"{name} ≤ {seconds(limit / 1e9)}" if limit is not None else f"{name} by class or tenant"
        hits = missed.get(part)
        chips.append(SloChip(bound if hits is None else f"{bound}: {count(hits)} missed", None if hits is None else hits == 0))
    reached = section.get("attainment") or {}
    if reached.get("share") is not None:
        good = section.get("goodput_requests_per_s")
        text = f"attainment {percent(reached['share'])} of {count(reached['n'])}"
        chips.append(SloChip(text + (f", goodput {rate(good)}" if isinstance(good, float | int) else ""), None))
    return chips


def selection_chips(address: Address) -> list[Chip]:
    """What the address selects, a chip each, with the query string that a click leads to: the selection without it."""
    parts: list[tuple[str | None, dict[str, Any]]] = [
        (address.finding and f"finding {address.finding}", {"finding": None}),
        (f"window {short(address.t[0], 9)} to {short(address.t[1], 9)} s" if address.t else None, {"t": None}),
        (f"last {short(address.last_s, 9)} s" if address.last_s else None, {"last_s": None}),
        (address.iterations and f"iterations {address.iterations[0]:,} to {address.iterations[1]:,}", {"iterations": None}),
        (address.cls and f"class {address.cls}", {"cls": None}),
        (address.tenant and f"tenant {address.tenant}", {"tenant": None}),
        (_requests(address), {"requests": ()}),
        (_arrived(address), {"arrived_s": None}),
        (_latency(address), {"latency_s": None}),
        (address.compare and f"beside run {address.compare}", {"compare": None}),
        (f"and runs {', '.join(map(str, address.also))}" if address.also else None, {"also": ()}),
    ]
    return [Chip(text, replace(address, **change).search()) for text, change in parts if text]


def _arrived(address: Address) -> str | None:
    between = address.arrived_s
    return between and f"arrived {short(between[0], 9)} to {short(between[1], 9)} s"


def _latency(address: Address) -> str | None:
    between = address.latency_s
    return between and f"{address.metric.upper()} {short(between[0], 9)} to {short(between[1], 9)} s"


def _requests(address: Address) -> str | None:
    numbers = address.requests
    if not numbers:
        return None
    return f"request {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} requests"

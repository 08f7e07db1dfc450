"""Two recorded runs, paired request by request, or the reason why they cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tracekit.errors import TracekitError, shown
from tracekit.experiments.knobs import differing, flat_policy
from tracekit.store import Store, load_run, resolve_run

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["NotComparableError", "Pair", "Side", "load_pair", "narrowed"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
NS_COLUMNS = ("ttft_ns", "tpot_ns", "e2e_ns", "max_gap_ns")
_QUERY = (
    "SELECT request, state::VARCHAR AS state, arrival_ns, prompt_tokens, preemptions, ttft_ns::DOUBLE AS ttft_ns,"
    " tpot_ns::DOUBLE AS tpot_ns, e2e_ns::DOUBLE AS e2e_ns, max_gap_ns::DOUBLE AS max_gap_ns, tenant, class, slo_met, counted"
    " FROM outcomes WHERE run = ? ORDER BY request"
)


class NotComparableError(TracekitError):
    """Two runs between which a difference would mean nothing."""

    exit_code = 4

    def __init__(self, reason: str) -> None:
        super().__init__(f"not comparable: {reason}")


@dataclass(slots=True, kw_only=True)
class Side:
    """One run. Arrays have one entry per paired request; ``values`` are ns, NaN where the request has no such value.

    ``state``: how it ended, ``not ended`` where the run was interrupted before. ``met``: ``None`` where the run has no SLO.
    """

    number: int
    row: Mapping[str, Any]
    state: npt.NDArray[np.object_]
    arrival_ns: npt.NDArray[np.int64]
    values: dict[str, Floats]
    preemptions: Floats
    met: Bools | None

    @property
    def label(self) -> str:
        """As a report names it."""
        name = self.row["name"]
        return f"run {self.number}" + (f" ({shown(name)})" if name else "")


@dataclass(slots=True, kw_only=True)
class Pair:
    """Both runs over the counted requests of either, in the order of the first one's arrivals. ``labels``: ``tenant`` and
    ``class`` of each request, where the trace has them. ``knobs``: name, value of the first, value of the second."""

    base: Side
    other: Side
    request: npt.NDArray[np.int64]
    labels: dict[str, npt.NDArray[np.object_]]
    knobs: list[tuple[str, Any, Any]]
    notes: list[str]


def load_pair(store: Store, one: str, other: str) -> Pair:
    """The runs that two numbers or names mean. Errors: ``UsageError``; ``NotComparableError`` with the first reason."""
    rows = [load_run(store, resolve_run(store, text)) for text in (one, other)]
    _check_rows(*rows)
    with store.read() as con:
        _check_traces(con, *rows)
        tables = [con.execute(_QUERY, [row["run"]]).fetchnumpy() for row in rows]
    for row, table in zip(rows, tables, strict=True):
        if not len(table["request"]):
            raise NotComparableError(f"run {row['run']} keeps no requests (--events {row['events']})")
    return _paired(rows, tables)


def why_not_comparable(store: Store, one: int, other: int) -> str | None:
    """Why two recorded runs cannot be held against each other, as far as their rows alone tell; ``None``: nothing there says
    so. Errors: ``UsageError`` for no such run."""
    rows = [load_run(store, number) for number in (one, other)]
    try:
        _check_rows(*rows)
        with store.read() as con:
            _check_traces(con, *rows)
    except NotComparableError as error:
        return str(error)
    return None


def narrowed(pair: Pair, keep: Bools) -> Pair:
    """The same of some of its requests only."""
    at = np.flatnonzero(keep)
    sides = [replace(side) for side in (pair.base, pair.other)]
    for side in sides:
        _reorder(side, at)
    labels = {name: found[at] for name, found in pair.labels.items()}
    return replace(pair, base=sides[0], other=sides[1], request=pair.request[at], labels=labels)


def _check_rows(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    for row in (one, other):
        if row["matrix"] is None:
            raise NotComparableError(f"run {row['run']} has no matrix: its state is {row['state']}")
    pairs = [(f"the {part}s differ", _setup(one, part), _setup(other, part)) for part in ("engine", "profile")]
    pairs.append(("the parts of the trace differ", one["slice"], other["slice"]))
    for what, mine, theirs in pairs:
        if mine != theirs:
            names = [each for each in {**(mine or {}), **(theirs or {})} if (mine or {}).get(each) != (theirs or {}).get(each)]
            said = ", ".join(_both(each, (mine or {}).get(each), (theirs or {}).get(each)) for each in names)
            raise NotComparableError(f"{what}: {said}")


def _both(name: str, mine: Any, theirs: Any) -> str:
    """A part and its two values, by its name alone where they are tables."""
    return name if isinstance(mine, Mapping) or isinstance(theirs, Mapping) else f"{name} {shown(mine)} and {shown(theirs)}"


def _setup(row: Mapping[str, Any], part: str) -> dict[str, Any]:
    """What of a run's matrix says on which engine, or on which model and hardware, it ran."""
    matrix = row["matrix"]
    if part == "engine":
        return {name: matrix["engine"][name] for name in ("name", "version")}
    named = {name: matrix["profile"][name] for name in ("name", "origin", "fitted")}
    return named | {"model": matrix["model"], "hardware": matrix["hardware"]}


def _check_traces(con: DuckDBPyConnection, one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """By the bytes that were loaded; a trace that is not in the database any more by its number."""
    there = con.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'traces'").fetchall()
    digests = dict(con.execute("SELECT trace, digest FROM traces").fetchall()) if there else {}
    if digests.get(one["trace"], one["trace"]) != digests.get(other["trace"], other["trace"]):
        raise NotComparableError(f"the traces differ: {shown(one['trace_name'])} and {shown(other['trace_name'])}")


def _paired(rows: list[dict[str, Any]], tables: list[dict[str, Any]]) -> Pair:
    counted = [_counted(row, table) for row, table in zip(rows, tables, strict=True)]
    request = np.union1d(*(table["request"][keep] for table, keep in zip(tables, counted, strict=True)))
    places = [_places(table["request"], request) for table in tables]
    both = (places[0] >= 0) & (places[1] >= 0)
    prompts = [table["prompt_tokens"][place[both]] for table, place in zip(tables, places, strict=True)]
    if (prompts[0] != prompts[1]).any():
        raise NotComparableError(
            f"the requests differ: {int((prompts[0] != prompts[1]).sum()):,} of {both.sum():,} by their prompts"
        )
    sides = [_side(row, table, place) for row, table, place in zip(rows, tables, places, strict=True)]
    arrival = np.where(places[0] >= 0, sides[0].arrival_ns, sides[1].arrival_ns)
    order = np.lexsort((request, arrival))
    for side in sides:
        _reorder(side, order)
    labels = {name: _labels(tables, places, name)[order] for name in ("tenant", "class")}
    mine, theirs = _knobs(*(flat_policy(row["policy"]) for row in rows))
    knobs = [(name, mine.get(name), theirs.get(name)) for name in differing(mine, theirs)]
    return Pair(base=sides[0], other=sides[1], request=request[order], knobs=knobs, notes=_notes(*rows),
                labels={name: found for name, found in labels.items() if (found != None).any()})  # fmt: skip  # noqa: E711


def _knobs(one: dict[str, Any], other: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Where only one run has separate pools, of theirs only what they do not have from its engine's knobs."""
    pooled = [any(name.startswith("pools.") for name in flat) for flat in (one, other)]
    if pooled[0] == pooled[1]:
        return one, other
    own = [
        {name: value for name, value in flat.items()
         if not name.startswith("pools.") or value != flat.get(name.split(".", 2)[2])}
        for flat in (one, other)
    ]  # fmt: skip
    return own[0], own[1]


def _counted(row: Mapping[str, Any], table: Mapping[str, Any]) -> Bools:
    counted = table["counted"]
    known = ~np.ma.getmaskarray(counted)
    if known.all():
        return np.asarray(counted, np.bool_)
    if row["matrix"]["counted"]["lead_in_requests"]:
        raise NotComparableError(f"run {row['run']} does not say which requests its lead-in holds; expected one replayed anew")
    return np.ones(len(counted), np.bool_)


def _places(there: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where each wanted request stands in a table sorted by request; -1 where it does not."""
    at = np.minimum(np.searchsorted(there, wanted), len(there) - 1)
    return np.where(there[at] == wanted, at, -1)


def _side(row: Mapping[str, Any], table: Mapping[str, Any], place: npt.NDArray[np.int64]) -> Side:
    there = place >= 0

    def taken(name: str, missing: Any, kind: Any) -> Any:
        return np.where(there, np.ma.filled(table[name].astype(kind), missing)[place], missing)

    met = None if np.ma.getmaskarray(table["slo_met"]).all() else taken("slo_met", False, np.bool_)
    return Side(
        number=row["run"], row=row, state=taken("state", "not ended", object), arrival_ns=taken("arrival_ns", -1, np.int64),
        values={name: taken(name, np.nan, np.float64) for name in NS_COLUMNS}, met=met,
        preemptions=taken("preemptions", 0, np.float64),
    )  # fmt: skip


def _labels(tables: list[dict[str, Any]], places: list[npt.NDArray[np.int64]], name: str) -> npt.NDArray[np.object_]:
    mine, theirs = (np.ma.filled(table[name].astype(object), None)[place] for table, place in zip(tables, places, strict=True))
    found: npt.NDArray[np.object_] = np.where(places[0] >= 0, mine, theirs)
    return found


def _reorder(side: Side, order: npt.NDArray[np.intp]) -> None:
    side.state, side.arrival_ns, side.preemptions = side.state[order], side.arrival_ns[order], side.preemptions[order]
    side.values = {name: column[order] for name, column in side.values.items()}
    side.met = None if side.met is None else side.met[order]


def _notes(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    notes = []
    if one["slo"] != other["slo"]:
        notes.append("the runs' SLOs differ: attainment and goodput are not compared")
    if one["tracekit_version"] != other["tracekit_version"]:
        notes.append(f"recorded by tracekit {one['tracekit_version']} and {other['tracekit_version']}")
    for row in (one, other):
        if row["state"] != "finished":
            notes.append(f"run {row['run']} ended early ({row['state']}): whoever had not ended counts as missed")
    return notes

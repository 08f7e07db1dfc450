"""A recorded run, as a diagnosis reads it: its rows out of the database, and the setup that its ``runs`` row was made from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay_engine.policy import Policy
from replay_engine.profile import parse_profile
from replay_engine.tables import ENUMS, LONGEST, NULLABLE, TABLES
from tracekit.diagnosis.own_costs import with_own_costs
from tracekit.diagnosis.run_data import LAYOUTS, LONG_LAYOUT, RunData, tidy
from tracekit.door_facts import door_facts
from tracekit.errors import UsageError
from tracekit.metrics import SloTable
from tracekit.replay import Setup
from tracekit.store import Store, load_run, resolve_run
from tracekit.traces.slicing import Slice
from tracekit.traces.source import TraceSource

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["load_run_data", "setup_of"]


def load_run_data(store: Store, text: str) -> RunData:
    """The run that a number, ``last`` or a name means; under costs fitted to it where its profile has none. ``UsageError``: no
    such run, one that kept no requests, or one whose trace is not in the database any more."""
    row = load_run(store, resolve_run(store, text))
    setup = setup_of(store, row)
    tells = setup.profile.latency.s_ns or row["engine"] != "sim"  # who was longest
    layouts = LAYOUTS | ({"iterations": LONG_LAYOUT} if tells else {})
    with store.read() as con:
        tables = {table: tidy(table, _rows(con, table, row["run"], layouts[table])) for table in TABLES}
    if not len(tables["outcomes"]):
        raise UsageError(f"run {row['run']} keeps no requests (--events {row['events']}); replay with --events full")
    data = RunData(
        setup=setup, tables=tables, state=row["state"], run=row["run"], name=row["name"], measured=row["engine"] != "sim"
    )
    return with_own_costs(data)


def setup_of(store: Store, row: dict[str, Any]) -> Setup:
    """Everything that decided a recorded run, to be replayed as it was or with a change. A run on a real engine gets the profile
    of its model and hardware, and no engine: it is replayed by the simulator.
    """
    number = row["run"]
    if row["setup"] is None:
        raise UsageError(f"run {number} was recorded by an older version, without what it takes to replay it; replay again")
    known = row["setup"]
    policy, profile = Policy.from_dict(row["policy"]), parse_profile(known["profile"], f"profile of run {number}")
    slo = None if row["slo"] is None else SloTable.from_dict(row["slo"])
    part = dict(row["slice"])
    part = {name: part[name] for name in Slice.__dataclass_fields__}
    for name in ("window_ns", "thin"):
        part[name] = None if part[name] is None else tuple(part[name])
    part["seed"] = row["seed"]
    with store.read() as con:
        source = TraceSource.from_database(con, row["trace"], Slice(**part))
    return Setup(
        profile=profile, policy=policy, slo=slo, source=source, trace=row["trace"], trace_name=row["trace_name"],
        lead_in_ns=part["lead_in_ns"], seed=row["seed"], events=row["events"], accept_degraded=known["accept_degraded"],
        warmup_ns=row["slice"]["warmup_ns"], facts=door_facts(policy, profile, slo, source),
    )  # fmt: skip


def _rows(con: DuckDBPyConnection, table: str, run: int, layout: np.dtype[np.void]) -> npt.NDArray[np.void]:
    picks = []
    for name in layout.names or ():
        if (table, name) in ENUMS:
            picks.append(f'enum_code("{name}") AS "{name}"')
        elif name in NULLABLE[table] or name == "replica":
            unknown = "'nan'::DOUBLE" if layout[name].kind == "f" else "-1"
            picks.append(f'coalesce("{name}", {unknown}) AS "{name}"')
        elif name == LONGEST[0]:  # a run on a real engine may have been recorded before it told
            picks.append(f'coalesce("{name}", 0) AS "{name}"')
        else:
            picks.append(f'"{name}" AS "{name}"')
    found = con.execute(f"SELECT {', '.join(picks)} FROM {table} WHERE run = ?", [run]).fetchnumpy()
    rows = np.empty(len(found[picks[0].rpartition("AS ")[2].strip('"')]), layout)
    for name in layout.names or ():
        rows[name] = found[name]
    return rows

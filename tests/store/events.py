"""Event rows with recognisable values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay_engine.tables import NULLABLE, TABLES
from tracekit.store import SpoolSink, Store

CODED = {("iterations", "head_refused_by"): 17, ("spans", "phase"): 15, ("spans", "reason"): 17}
SMALL = {
    ("outcomes", "state"): 6, ("outcomes", "reason"): 5, ("preemptions", "kind"): 4, ("decisions", "decision"): 6,
    ("decisions", "reason"): 16, ("transfers", "ended"): 5, ("routing", "replica"): 1024,
}  # fmt: skip


def event_rows(table: str, count: int, first: int = 0) -> npt.NDArray[np.void]:
    """``count`` rows whose values follow from row and column; every third nullable value is unknown."""
    rows = np.zeros(count, TABLES[table])
    numbers = np.arange(first, first + count)
    for place, name in enumerate(TABLES[table].names or ()):
        codes = (CODED | SMALL).get((table, name))
        rows[name] = numbers % codes if codes else numbers * 3 + place
        if name in NULLABLE[table]:
            unknown = np.nan if TABLES[table][name].kind == "f" else -1
            rows[name][numbers % 3 == 0] = unknown
        if name in ("iteration", "request"):
            rows[name] = numbers
    return rows


CONSTANTS = {"iterations": {"budget": 8192, "kv_total": 500, "paused": 0, "swapped": 0, "mode": "eager"}}


def filled_spool(store: Store, name: str = "x", count: int = 10) -> SpoolSink:
    sink = SpoolSink(store.spool_folder, {"name": name, "engine": "sim"}, constants=CONSTANTS)
    for table in TABLES:
        sink.append(table, event_rows(table, count))
    return sink

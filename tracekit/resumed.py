"""A replay whose job was killed between its commit and its result: the run is there, and a second one is not recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracekit.jobs import Job
from tracekit.store import Store, load_run
from tracekit.store.files import read_json, write_json

__all__ = ["committed_before", "note_spool"]

_NOTE = "spool.json"


def note_spool(job: Job, spool: str) -> None:
    """The job's folder says which spool its run goes through, before a row is committed of it."""
    write_json(job.folder / _NOTE, {"spool": spool})


def committed_before(store: Store, job: Job, tell: Callable[[str], None]) -> dict[str, Any] | None:
    """``run``, ``state`` and ``matrix`` of the whole run that an earlier process of this job committed; ``None``: none did."""
    note = read_json(job.folder / _NOTE)
    if note is None or not store.exists():
        return None
    with store.read() as con:
        found = con.execute("SELECT run FROM runs WHERE spool = ? AND state = 'finished'", [note.get("spool")]).fetchall()
    if not found:
        return None
    row = load_run(store, int(found[0][0]))
    tell(f"run {row['run']} was recorded before the job's process ended: nothing is replayed again")
    return {"run": row["run"], "state": row["state"], "matrix": row["matrix"]}

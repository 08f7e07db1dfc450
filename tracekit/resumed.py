"""A replay whose job was killed after the run had ended: it is in the database or whole in its spool, and is recorded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracekit.jobs import Job
from tracekit.store import Store, find_spools, load_run, recover
from tracekit.store.files import read_json, write_json

__all__ = ["committed_before", "note_spool"]

_NOTE = "spool.json"


def note_spool(job: Job, spool: str) -> None:
    """The job's folder says which spool its run goes through, before a row is committed of it."""
    write_json(job.folder / _NOTE, {"spool": spool})


def committed_before(store: Store, job: Job, tell: Callable[[str], None]) -> dict[str, Any] | None:
    """``run``, ``state`` and ``matrix`` of the whole run that an earlier process of this job made; ``None``: none did. What it
    left in a spool is committed first."""
    note = read_json(job.folder / _NOTE)
    if note is None:
        return None
    for left in find_spools(store):
        if left.folder.name == note.get("spool") and left.complete and not left.alive and left.run.get("state") == "finished":
            recover(store, left)
    if not store.exists():
        return None
    with store.read() as con:
        found = con.execute("SELECT run FROM runs WHERE spool = ? AND state = 'finished'", [note.get("spool")]).fetchall()
    if not found:
        return None
    row = load_run(store, int(found[0][0]))
    tell(f"run {row['run']} was recorded before the job's process ended: nothing is replayed again")
    return {"run": row["run"], "state": row["state"], "matrix": row["matrix"]}

"""Spools that a killed process left: what is in them, and what to do with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.errors import InputError, UsageError
from tracekit.store.commit import commit_folder
from tracekit.store.database import Store
from tracekit.store.files import read_json
from tracekit.store.processes import is_alive
from tracekit.store.schema import RUN_COLUMNS
from tracekit.store.spool import STATE, read_header, remove_spool, spool_rows, sweep

__all__ = ["SpoolInfo", "discard", "find_spools", "recover", "spools_there"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolInfo:
    """A spool as found: ``run`` is what is known of its ``runs`` row, ``rows`` counts whole rows per table."""

    folder: Path
    run: dict[str, Any]
    rows: dict[str, int]
    complete: bool
    """Whether the run had ended: recovering it loses nothing."""
    pid: int
    alive: bool
    """Whether the process that writes it still runs: then it is not to be recovered."""
    bytes: int


def find_spools(store: Store) -> list[SpoolInfo]:
    """Every run under way or left behind, oldest first. Leftovers of runs that are already in the database are removed."""
    if not store.spool_folder.is_dir():
        return []
    sweep(store.spool_folder)
    spools = spools_there(store)
    left = [spool.folder.name for spool in spools if not spool.alive]
    if not left or not store.exists():
        return spools
    with store.read() as con:
        done = {row[0] for row in con.execute("SELECT spool FROM runs WHERE list_contains(?, spool)", [left]).fetchall()}
    for spool in spools:
        if spool.folder.name in done:
            remove_spool(spool.folder)
    return [spool for spool in spools if spool.folder.name not in done]


def spools_there(store: Store) -> list[SpoolInfo]:
    """The spools as they lie there, oldest first: nothing is removed and the database is not opened.

    Just after its commit a run can be both here and in the database.
    """
    try:
        folders = sorted(folder for folder in store.spool_folder.iterdir() if not folder.name.startswith("."))
    except FileNotFoundError:
        return []
    return [spool for spool in map(_describe, folders) if spool is not None]


def _describe(folder: Path) -> SpoolInfo | None:
    """``None``: no spool, or one that is removed in this moment."""
    try:
        header = read_header(folder)
        state = read_json(folder / STATE) or {}
        found = _info(folder, header, state)
        read_header(folder)  # what went while it was looked at is not told by halves
    except (InputError, FileNotFoundError):
        return None
    return found


def _info(folder: Path, header: dict[str, Any], state: dict[str, Any]) -> SpoolInfo:
    complete = state.get("state") == "complete"
    pid = int(header.get("pid") or 0)
    return SpoolInfo(
        folder=folder,
        run=dict(state.get("run") or {}) if complete else dict(header["run"]),
        rows={table: spool_rows(folder, table, header) for table in header["tables"]},
        complete=complete,
        pid=pid,
        alive=is_alive(pid, header.get("mark")),
        bytes=sum(file.stat().st_size for file in folder.glob("*.rows")),
    )


def recover(store: Store, spool: SpoolInfo | Path) -> int:
    """Commit a left spool and return the run's number: whole when the run had ended, else in state ``interrupted``."""
    info = spool if isinstance(spool, SpoolInfo) else _describe(spool)
    if info is None:
        raise InputError("not a spool of this program", file=str(spool))
    if info.alive:
        raise UsageError(f"{info.folder.name}: its process {info.pid} still runs; wait for it or end it first")
    if not info.folder.is_dir():
        raise UsageError(f"{info.folder.name}: no longer there; it is in the database or was discarded")
    row = {key: value for key, value in info.run.items() if key in RUN_COLUMNS and key not in ("run", "spool")}
    if not info.complete:
        row["state"] = "interrupted"
        row.setdefault("requests", info.rows.get("outcomes"))
        row["iterations"] = info.rows.get("iterations")
    return commit_folder(store, info.folder, {"state": "finished", **row})


def discard(spool: SpoolInfo | Path) -> None:
    """Remove a left spool; refused while its process runs."""
    folder = spool.folder if isinstance(spool, SpoolInfo) else spool
    info = _describe(folder)
    if info is not None and info.alive:
        raise UsageError(f"{folder.name}: its process {info.pid} still runs; wait for it or end it first")
    remove_spool(folder)

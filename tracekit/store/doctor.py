"""What is installed, missing, locked, and recoverable: facts for ``tracekit doctor``. Imports nothing heavy, waits for nobody."""

from __future__ import annotations

import platform
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from tracekit.errors import TracekitError
from tracekit.store.database import Store
from tracekit.store.recovery import find_spools
from tracekit.store.runs import database_size
from tracekit.store.schema import SCHEMA_VERSION, STORAGE_VERSION, schema_version

__all__ = ["doctor"]

_NEEDED = ("numpy", "polars", "duckdb", "pyarrow", "typer", "rich", "orjson", "psutil")
_OPTIONAL = {
    "torch": "replay on the torch engine",
    "triton": "GPU kernels of the torch engine",
    "optuna": "tune",
    "dash": "dashboard",
    "ray": "tuning on several machines",
    "psycopg": "tuning studies on PostgreSQL",
}


def doctor(store: Store) -> dict[str, Any]:
    """A plain dict, fit for JSON: ``python``, ``installed``, ``missing``, ``database``, ``spools``, ``jobs``, ``problems``."""
    from tracekit.jobs import list_jobs

    quick = Store(store.path, wait_s=0.0)
    problems: list[str] = []
    packages = {name: _version(name) for name in (*_NEEDED, *_OPTIONAL)}
    problems += [f"{name} is not installed" for name in _NEEDED if packages[name] is None]
    database = _database(quick, problems)
    spools = _spools(quick, problems)
    states = {job.id: job.state for job in list_jobs(store.folder)}
    lost = [name for name, state in states.items() if state == "lost"]
    problems += [f"job {name} ended without a result; `tracekit jobs resume {name}`" for name in lost]
    return {
        "python": platform.python_version(),
        "installed": {name: version for name, version in packages.items() if version is not None},
        "missing": {name: _OPTIONAL.get(name, "everything") for name, version in packages.items() if version is None},
        "database": database,
        "spools": spools,
        "jobs": {"total": len(states), "running": list(states.values()).count("running"), "lost": lost},
        "problems": problems,
    }


def _version(name: str) -> str | None:
    if find_spec(name) is None:
        return None
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


def _database(store: Store, problems: list[str]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "path": str(store.path),
        "exists": store.exists(),
        "readable": None,
        "locked_by": store.intent.announced(),
        "schema_version": None,
        "schema_expected": SCHEMA_VERSION,
        "storage_version": STORAGE_VERSION,
        "runs": None,
        "size": None,
    }
    if not facts["exists"]:
        return facts
    try:
        with store.read() as con:
            facts["schema_version"] = schema_version(con)
            facts["runs"] = con.execute("SELECT count(*) FROM runs").fetchall()[0][0]
        facts["size"] = database_size(store)
        facts["readable"] = True
    except TracekitError as error:
        facts["readable"] = False
        problems.append(str(error))
    return facts


def _spools(store: Store, problems: list[str]) -> list[dict[str, Any]]:
    try:
        spools = find_spools(store)
    except TracekitError as error:
        problems.append(f"spools were not looked at: {error}")
        return []
    rows = [
        {
            "spool": spool.folder.name,
            "name": spool.run.get("name"),
            "rows": spool.rows,
            "bytes": spool.bytes,
            "complete": spool.complete,
            "alive": spool.alive,
            "pid": spool.pid,
        }
        for spool in spools
    ]
    left = [row["spool"] for row in rows if not row["alive"]]
    problems += [f"run {name} was cut short and can be recovered or discarded" for name in left]
    return rows

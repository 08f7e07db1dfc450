"""What is said of a run: its title, how it stands, and what to do where it was left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.store import SpoolInfo

__all__ = ["Listed", "ago", "join", "listed_run", "listed_spool", "live_message", "recorded_message"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A run that can be picked: ``ref`` is its number, or its spool's name while it is not in the database."""

    ref: str
    title: str
    live: bool


def ago(when: Any) -> str:
    """A run's start (UTC) to the minute, as it is shown; empty where it is not known."""
    return str(when or "")[:16].replace("T", " ")


def join(parts: Sequence[object]) -> str:
    """The parts that are there, with a dot between them."""
    return " · ".join(str(part) for part in parts if part)


def live_message(info: SpoolInfo, state: str, db: Path) -> str:
    """How a run that is not in the database stands, and what to do with one whose process is gone."""
    recover = f"tracekit runs recover {info.folder.name} --db {db}"
    done, total = info.rows.get("outcomes", 0), info.run.get("requests")
    progress = f"{done:,} of {total:,} requests ended" if total else f"{done:,} requests ended"
    match state:
        case "running":
            return f"running (process {info.pid}): {progress}"
        case "committing":
            return f"finished, being committed by process {info.pid}: {progress}"
        case "left":
            return f"ended but not committed: {progress}. Its spool is left; finish it with {recover}"
    return f"killed: {progress}. Its spool is left; recover what ran with {recover}"


def recorded_message(row: dict[str, Any]) -> str:
    """How a recorded run ended, and how large it is."""
    counts = [f"{row[what]:,} {what}" for what in ("requests", "iterations") if row[what] is not None]
    return f"{row['state'].replace('_', ' ')}: {join([', '.join(counts), row['profile']])}"


def listed_run(row: dict[str, Any]) -> Listed:
    """A recorded run in a list."""
    title = join([f"run {row['run']}", row["name"], row["trace_name"], row["state"]])
    return Listed(ref=str(row["run"]), title=title, live=False)


def listed_spool(info: SpoolInfo) -> Listed:
    """A run in a list that is not in the database (yet)."""
    state = "running" if info.alive else "not committed"
    began = str(info.run.get("started_at") or "")[:19]
    title = join([state, info.run.get("name"), info.run.get("trace_name"), began and f"began {began}"])
    return Listed(ref=info.folder.name, title=title, live=info.alive)

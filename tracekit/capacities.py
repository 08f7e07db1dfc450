"""Answers of ``tracekit capacity`` as their files say them: ``<db>.d/capacity/KEY.json``, a document each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.errors import UsageError, shown
from tracekit.store import Store
from tracekit.store.files import read_json

__all__ = ["SCHEMA", "Capacity", "answers_folder", "list_capacities", "load_capacity"]

SCHEMA = "tracekit.capacity/1"
_KEY = re.compile(r"[0-9a-f]{4,16}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """An answer that is there. ``asked``: its what-ifs; ``changed``: when its file was written, Unix time."""

    key: str
    trace: str
    asked: tuple[str, ...]
    answered_at: str
    job: str
    changed: float


def answers_folder(store: Store) -> Path:
    """Where answers lie; it is made where it is not there yet."""
    folder: Path = store.folder / "capacity"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def list_capacities(store: Store, most: int | None = None) -> list[Capacity]:
    """The answers beside a database, the latest first."""
    paths = sorted((store.folder / "capacity").glob("*.json"), key=lambda path: (-_changed(path), path.name))
    rows = ((path, read_json(path)) for path in paths[:most])
    return [Capacity(key=path.stem, trace=document["trace"], asked=tuple(document["asked"]), answered_at=document["answered_at"],
                     job=document["job"], changed=_changed(path))
            for path, document in rows if document is not None and document.get("schema") == SCHEMA]  # fmt: skip


def load_capacity(store: Store, ref: str) -> dict[str, Any]:
    """The document of an answer by its key, the start of one, or ``last``. ``UsageError`` where there is none."""
    there = list_capacities(store)
    if not there:
        raise UsageError(f"{store.path} has no answer of capacity yet; `tracekit capacity TRACE --slo ...` makes one")
    found = [each.key for each in there if _KEY.fullmatch(ref) and each.key.startswith(ref)] if ref != "last" else [there[0].key]
    if len(found) != 1:
        reason = f"fits {len(found)} answers" if found else "no such answer"
        raise UsageError(f"capacity {shown(ref)}: {reason}; expected the key of one, as {there[0].key}, or last")
    document = read_json(store.folder / "capacity" / f"{found[0]}.json")
    if document is None:
        raise UsageError(f"capacity {found[0]}: its file cannot be read")
    return document


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0

"""What the replay page's form says, as words of the command line; and the traces that it may name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from dashboards.queries import RunBook
from dashboards.spoken import spoken
from dashboards.uploads import find
from tracekit.errors import LockedError, UsageError, shown
from tracekit.orders import ReplayOrder, profiles_known, replay_words
from tracekit.profile_files import list_profile_files

__all__ = [
    "KNOBS", "LoadedTrace", "is_loaded", "loaded_traces", "order_of", "profiles_options", "uploads_folder", "words_of",
]  # fmt: skip

KNOBS = ("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold", "num_gpu_blocks")
"""Settings that have a field of their own."""


class LoadedTrace(NamedTuple):
    """A trace in the database."""

    name: str
    requests: int


def uploads_folder(book: RunBook) -> Path:
    """Where files that browsers sent lie."""
    return book.store.folder / "uploads"


def profiles_options(book: RunBook) -> list[dict[str, str]]:
    """The shipped profiles and those in files beside the database or sent, as a dropdown takes them."""
    known = [{"value": name, "label": name, "title": line} for name, line in profiles_known()]
    return known + [{"value": each.key, "label": each.name, "title": each.told} for each in list_profile_files(book.store)]


def loaded_traces(book: RunBook) -> tuple[list[LoadedTrace], str]:
    """Latest first, for a list to pick from; and who writes so that it cannot be read, empty where it can."""
    try:
        return _read_traces(book), ""
    except LockedError as error:
        return [], spoken(error)


def is_loaded(book: RunBook, name: str) -> bool:
    """Whether there is a trace of this name. ``LockedError``: a writer is at work, so that nobody can say."""
    return name in {each.name for each in _read_traces(book)}


def _read_traces(book: RunBook) -> list[LoadedTrace]:
    if not book.store.exists():
        return []
    with book.store.read() as con:
        there = con.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'traces'").fetchall()
        rows = con.execute("SELECT name, rows_kept FROM traces ORDER BY trace DESC").fetchall() if there else []
    return [LoadedTrace(str(name), int(count)) for name, count in rows]


def order_of(book: RunBook, form: dict[str, Any]) -> ReplayOrder:
    """The form's values, each a text or ``None``. ``UsageError`` where it names no trace that is there."""
    text = {name: str(value).strip() if value not in (None, "") else "" for name, value in form.items()}
    sets = [f"{knob}={text[knob]}" for knob in KNOBS if text.get(knob)]
    several = {"fleet.replicas": text.get("replicas"), "fleet.router": text.get("router")}
    sets += [f"{knob}={value}" for knob, value in several.items() if value]
    sets += [line.strip() for line in text.get("more", "").splitlines() if line.strip()]
    return ReplayOrder(
        trace=_trace(book, text.get("trace", "")),
        engine=text.get("engine") or "auto",
        profile=text.get("profile", ""),
        policy=text.get("policy", ""),
        sets=tuple(sets),
        slo=text.get("slo", ""),
        window=text.get("window", ""),
        limit=text.get("limit", ""),
        name=text.get("name", ""),
    )


def words_of(book: RunBook, form: dict[str, Any]) -> list[str]:
    """The command line after ``tracekit``. Errors: ``UsageError``, ``ConfigError``."""
    return replay_words(order_of(book, form), db=book.store.path.absolute())


def _trace(book: RunBook, picked: str) -> str:
    """A loaded trace by its name, an upload by its digest; nothing else that the server could find."""
    kind, _, name = picked.partition(":")
    if kind == "upload":
        return str(find(uploads_folder(book), name).path.absolute())
    if kind == "trace" and is_loaded(book, name):
        return name
    if not picked:
        raise UsageError("no trace; expected one that is loaded, or a file that is sent")
    raise UsageError(f"{shown(name or picked)}: no such trace in {book.store.path}; load it, or send it")

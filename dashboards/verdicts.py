"""The verdict of a run as pages show it: the latest one recorded, else the one its replay ended with, else one made now, without
replays, and kept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from dashboards.queries import RunBook
from dashboards.words import percent
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.verdict import build_verdict
from tracekit.diagnosis.wording import figure_text
from tracekit.errors import UsageError
from tracekit.manifest import kept_verdict

__all__ = ["SOON_S", "Card", "Proven", "Verdict", "cards_of", "coming_verdict", "figure_name", "read_verdict"]

SOON_S = 0.4
"""How long a page waits for a verdict before it says that it is being made."""
_ABBREVIATED = ("ttft", "tpot", "itl", "e2e")
_COUNTED = ("of one request",)
"""Units that begin as those of shares do and are none."""


class Verdict(NamedTuple):
    """``document``: ``tracekit.verdict/1``. ``recorded``: it was made by ``tracekit diagnose``, else at the end of its
    replay or now, without replays."""

    run: int
    document: dict[str, Any]
    recorded: bool


class Proven(NamedTuple):
    """A change of the policy in words, as ``--set`` takes it and as flags, and what replaying it did (``outcome`` empty: none was
    made). ``moved``: name, before, after of what it moved; ``figures``: the same as text."""

    change: str
    sets: tuple[str, ...]
    flags: str
    price: str
    why: str
    outcome: str
    reason: str
    figures: tuple[str, ...]
    moved: tuple[tuple[str, str, str], ...] = ()


class Card(NamedTuple):
    """One finding as text. ``share`` of all excess, 0 to 1; ``depth``: 1 for a consequence. ``evidence``: name, value, threshold,
    how to check it (SQL, after the command that records the replay it is of, if it is of one). ``advice``: what may be
    recommended; ``tried``: other changes that were replayed. ``t_s``: where it shows, seconds."""

    id: str
    name: str
    what: str
    depth: int
    under: str | None
    excess_s: float
    share: float
    confidence: str
    because: str
    measure: str
    classes: tuple[str, ...]
    evidence: tuple[tuple[str, str, str, str], ...]
    is_not: tuple[str, ...]
    advice: Proven | None
    tried: tuple[Proven, ...]
    t_s: tuple[float, float]
    requests: tuple[int, ...]


def read_verdict(book: RunBook, ref: str) -> Verdict:
    """Errors: ``UsageError`` for a run under way or without requests, ``LockedError``."""
    row = book.recorded(ref)
    if row is None:
        raise UsageError("this run is under way: its verdict comes when it has been committed")
    run = int(row["run"])
    with book.store.read() as con:
        there = con.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'findings'").fetchall()
        query = "SELECT document FROM findings WHERE run = ? AND rank = 0 ORDER BY diagnosis DESC LIMIT 1"
        found = con.execute(query, [run]).fetchall() if there else []
        begun = con.execute("SELECT started_at FROM runs WHERE run = ?", [run]).fetchall()
    if found:
        return Verdict(run, json.loads(found[0][0]), True)

    def make() -> dict[str, Any]:
        kept = kept_verdict(book.store, run, begun[0][0]) if begun else None
        if kept is not None:
            return kept
        data = book.data(ref)
        return build_verdict(data, diagnose(data), budget=None)

    return Verdict(run, book.remember(f"verdict {row['spool']}", make), False)


def coming_verdict(book: RunBook, ref: str, within_s: float) -> Verdict | None:
    """The same for a page that shall stand before it is there: ``None`` where it is still being made ``within_s`` from now, as
    that of a large run whose replay ended without one. Ask again."""
    return book.coming.soon(f"verdict of {ref}", lambda: read_verdict(book, ref), within_s)


def cards_of(document: dict[str, Any]) -> tuple[Card, ...]:
    """The findings in the verdict's order, consequences right after their causes."""
    findings = document["findings"]
    ids = {each["id"] for each in findings}
    ordered = []
    for each in findings:
        if each["under"] in ids:
            continue
        ordered.append((0, each))
        ordered += [(1, other) for other in findings if other["under"] == each["id"]]
    return tuple(_card(depth, each) for depth, each in ordered)


def _card(depth: int, each: dict[str, Any]) -> Card:
    advice = [_proven(change) for change in each["recommend"]]
    where = each["where"]
    return Card(
        id=each["id"],
        name=each["name"],
        what=each["what"],
        depth=depth,
        under=each["under"],
        excess_s=each["excess_s"],
        share=each["share_of_excess"],
        confidence=each["confidence"],
        because=each["because"],
        measure=each["measure"],
        classes=tuple(each["classes"]),
        evidence=tuple(_evidence(one) for one in each["evidence"]),
        is_not=tuple(each["not"]),
        advice=advice[0] if advice else None,
        tried=tuple(_proven(change) for change in each["tried"]),
        t_s=(where["t0_s"], where["t1_s"]),
        requests=tuple(where["requests_top"]),
    )


def _evidence(each: dict[str, Any]) -> tuple[str, str, str, str]:
    def said(value: float | None) -> str:
        if value is None:
            return "-"
        if each["unit"].startswith("of ") and each["unit"] not in _COUNTED:
            return f"{percent(value)} {each['unit']}"
        unit = "" if each["unit"] in ("ns", "share", "s") else f" {each['unit']}"
        return figure_text(value, each["unit"]) + unit

    bound = "" if each["threshold"] is None else said(each["threshold"])
    return each["metric"], said(each["value"]), bound, _check(each)


def _check(each: dict[str, Any]) -> str:
    if each.get("replay") is None or each["sql"] is None:
        return each["sql"] or "; ".join(text for text in (each["note"], each.get("replay")) if text)
    return f"{each['replay']}; then, RUN being the run that it makes: {each['sql'].replace('{run}', 'RUN')}"


def _proven(change: dict[str, Any]) -> Proven:
    done = change.get("replayed") or {}
    moved = tuple(_moved(done))
    knob = f"{change['knob']} {change['old']} → {change['new']}" if change.get("new") else change["knob"]
    return Proven(
        change=knob,
        sets=tuple(change["set"]),
        flags=" ".join(change["flags"].get("vllm", [])) if change.get("flags") else "",
        price=change.get("price") or "",
        why=change.get("why") or "",
        outcome=done.get("outcome", ""),
        reason=done.get("reason", ""),
        figures=tuple(f"{name} {before} → {after}" for name, before, after in moved),
        moved=moved,
    )


def figure_name(name: str) -> str:
    """``ttft p99`` as ``TTFT P99``."""
    words = (word.upper() if word in _ABBREVIATED or re.fullmatch(r"p\d+", word) else word for word in name.split())
    said = " ".join(words)
    return said[0].upper() + said[1:]


def _moved(done: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for each in done.get("figures", ()):
        if each["before"] == each["after"]:
            continue
        before, after = (figure_text(each[side], each["unit"]) for side in ("before", "after"))
        if before == after:
            continue
        unit = "" if each["unit"] in ("ns", "share", "count", "s") else f" {each['unit']}"
        yield each["metric"], before, after + unit

"""What is laid over the timeline of a recorded run: its findings as brackets, and when the selected requests waited.

Both need all rows of the run, which takes a moment where it is large: the timeline is drawn without them first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from dashboards.address import Address
from dashboards.blame import Waits, waits_of
from dashboards.queries import RunBook
from dashboards.selection import settle
from dashboards.verdicts import Card, cards_of, read_verdict
from tracekit.errors import LockedError, TracekitError

__all__ = ["MOST_BRACKETS", "NOTHING", "Bracket", "Overlay", "overlay_key", "overlay_of"]

MOST_BRACKETS = 4


class Bracket(NamedTuple):
    """A finding and where it shows, seconds on the engine clock. ``chosen``: it is the one that is looked at."""

    id: str
    share: float
    t_s: tuple[float, float]
    chosen: bool


class Overlay(NamedTuple):
    """``waits``: of the selected requests; ``None`` where none are selected."""

    brackets: tuple[Bracket, ...] = ()
    waits: Waits | None = None


NOTHING = Overlay()


def overlay_key(spool: str, address: Address) -> str:
    """Tells selections of a run apart, whatever the window that is looked at."""
    wide = replace(address, run="", replica=None, t=None, last_s=None, compare=None, iterations=None, ignored=())
    return f"overlay {spool} {wide.search()}"


def overlay_of(book: RunBook, address: Address) -> Overlay:
    """Of a recorded run, kept. What cannot be had is left out: the pages that are about it say why. Errors: ``UsageError`` for no
    such run, ``LockedError``."""
    row = book.recorded(address.run)
    if row is None:
        return NOTHING
    return book.remember_arrays(overlay_key(row["spool"], address), lambda: _made(book, str(row["run"]), address))


def _made(book: RunBook, ref: str, address: Address) -> Overlay:
    try:
        cards = cards_of(read_verdict(book, ref).document)
        waits = waits_of(book.data(ref), settle(book, address)) if address.selects else None
    except LockedError:
        raise
    except TracekitError:
        return NOTHING
    chosen = [card for card in cards if card.id == address.finding]
    shown = [*chosen, *(card for card in cards if not card.depth and card.id != address.finding)][:MOST_BRACKETS]
    return Overlay(tuple(_bracket(card, address) for card in shown), waits)


def _bracket(card: Card, address: Address) -> Bracket:
    return Bracket(card.id, card.share, card.t_s, card.id == address.finding)

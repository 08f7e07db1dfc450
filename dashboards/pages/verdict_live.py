"""The verdict of a run that is under way: not one yet, but what its ended requests and its queue say so far."""

from __future__ import annotations

from typing import Any

from dash import html

from dashboards.address import parse_address
from dashboards.markup import data_table
from dashboards.so_far import SoFar, SoFarKeeper
from dashboards.spoken import spoken
from dashboards.words import MISSING, count, percent, seconds
from tracekit.errors import LockedError, TracekitError

__all__ = ["render_live"]

HEAD = ("So far", "Requests", "P50", "P99", "Most", "Miss the SLO")


def render_live(keeper: SoFarKeeper, search: str | None) -> tuple[Any, Any] | None:
    """The sentence and the tables; ``None`` where the run is not under way."""
    try:
        found = keeper.look(parse_address(search).run)
    except LockedError as error:
        return f"waiting: {spoken(error)}", None
    except TracekitError:
        return None
    return None if found is None else (_said(found), _body(found))


def _said(found: SoFar) -> str:
    of = f" of {count(found.total)}" if found.total else ""
    cause = ""
    if found.refusals:
        reason, share = found.refusals[0]
        cause = f" While somebody waited, the head of the queue was refused by {reason} {percent(share)} of the time."
    return f"Under way: {count(found.ended)}{of} requests have ended.{cause} The verdict comes when the run has been committed."


def _body(found: SoFar) -> Any:
    rows = [
        [each.name, count(each.n), seconds(each.p50_s), seconds(each.p99_s), seconds(each.most_s), _missed(each.missed, each.n)]
        for each in found.measures
    ]
    refused = [[reason, percent(share)] for reason, share in found.refusals]
    return html.Div(
        [
            data_table(
                HEAD, rows, caption="Requests that have ended: the slow ones end last, so that this is too good", numeric=1
            ),
            data_table(("Refused by", "Of the time waited"), refused, caption="What held the head of the queue up", numeric=1),
        ]
    )


def _missed(missed: int | None, n: int) -> str:
    return MISSING if missed is None else f"{count(missed)} ({percent(missed / n)})"

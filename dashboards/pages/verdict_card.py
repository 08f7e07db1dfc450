"""One finding as a card, in the order in which people ask: what, how sure, what it rests on, what to change, at what price, and
what a replay of the change said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dash import dcc, html

from dashboards.acts import change_button
from dashboards.address import Address
from dashboards.download_links import finding_links
from dashboards.markup import aria, copy_button, data_table
from dashboards.verdicts import Card, Proven, figure_name
from dashboards.words import percent, seconds
from tracekit.diagnosis.meanings import meaning_of

__all__ = ["SIGNS", "card_of"]

SHOWN_EVIDENCE = 3
SIGNS = {"confirmed": "✓ confirmed by replay", "refuted": "✗ refuted by replay", "within noise": "≈ within noise",
         "not replayed": "not replayed", "": "not replayed yet"}  # fmt: skip
MEASURES = {"ttft": "time to the first token", "tpot": "time per token", "gap": "longest gap", "e2e": "time to the last token"}


def card_of(card: Card, address: Address, run: int) -> Any:
    """``run``: the number of the run that the card is of, for what is asked of its tables."""
    whose = f", {', '.join(card.classes)}" if card.classes else ""
    measure = MEASURES.get(card.measure, card.measure)
    sure = f"{percent(card.share)} of the excess, {seconds(card.excess_s)} ({measure}{whose})"
    parts = [
        html.Div(
            [
                html.H2([html.Code(card.id), " ", card.name]),
                html.P(f"{sure}; confidence {card.confidence}: {card.because}", className="quiet"),
            ]
        ),
        html.P(f"A consequence of {card.under}.", className="hint") if card.depth else None,
        html.P(card.what),
        _evidence(card, run),
        html.P(["It is not: ", "; ".join(card.is_not), "."], className="quiet") if card.is_not else None,
        *_advice(card),
        _ways(card, address),
        finding_links(run, card.id) if change_button(card) else None,
    ]
    name = "card finding step" + (" under" if card.depth else "") + (" chosen" if address.finding == card.id else "")
    return html.Section([each for each in parts if each is not None], className=name, tabIndex="-1", **aria(f"Finding {card.id}"))


def _evidence(card: Card, run: int) -> Any:
    first = [[_in_words(name), value, bound or "-"] for name, value, bound, _ in card.evidence[:SHOWN_EVIDENCE]]
    table = data_table(("Evidence", "Value", "Held against"), first, caption="What it rests on", numeric=1)
    more = [
        [name, value, bound or "-", html.Code(check.replace("{run}", str(run))), meaning_of(name)]
        for name, value, bound, check in card.evidence
    ]
    head = ("Evidence", "Value", "Held against", "How to check it", "What it is")
    rest = data_table(head, more, caption="All of it", numeric=9)
    return html.Div([table, html.Details([html.Summary("All evidence, and the SQL that yields it"), rest])])


def _in_words(name: str) -> Any:
    meaning = meaning_of(name)
    return [meaning[0].upper() + meaning[1:], " ", html.Code(name, className="quiet")] if meaning else html.Code(name)


def _advice(card: Card) -> Iterator[Any]:
    if card.advice is None:
        why = "Nothing is recommended: what was replayed did not help." if card.tried else "No scheduler knob is recommended."
        yield html.P(why, className="advice")
        if card.tried:
            yield html.Ul([_tried(each) for each in card.tried])
        return
    advice = card.advice
    outcome = SIGNS.get(advice.outcome, advice.outcome)
    yield html.P([html.Strong("Change "), html.Code(advice.change), f" · {outcome}"], className="advice")
    yield from (
        html.P([html.Strong(f"{name} "), text]) for name, text in (("Why", advice.why), ("Price", advice.price)) if text
    )
    yield _proof(advice, card.classes)
    if card.tried:
        others = html.Ul([_tried(each) for each in card.tried])
        yield html.Details([html.Summary("Other changes that were replayed"), others])


def _proof(advice: Proven, classes: tuple[str, ...]) -> Any:
    if not advice.reason and not advice.moved:
        return None
    reason = f": {advice.reason}" if advice.reason else ""
    said = html.P([html.Strong("Proof "), f"the same requests, replayed with this change{reason}"])
    whose = f"Requests of class {', '.join(classes)}" if classes else "All requests"
    rows = [[figure_name(name), before, after] for name, before, after in advice.moved]
    table = data_table((whose, "As it was", "With the change"), rows, caption="What moved", numeric=1) if rows else None
    return html.Div([each for each in (said, table) if each is not None], className="proof")


def _tried(each: Proven) -> Any:
    return html.Li(
        [html.Code(each.change), f": {SIGNS.get(each.outcome, each.outcome)}", f". {each.reason}" if each.reason else ""]
    )


def _ways(card: Card, address: Address) -> Any:
    """Show me (the timeline with this finding), its requests, and its flags to paste."""
    begin, end = card.t_s
    window = (max(begin, 0.0), end) if end > begin else None
    shown = address.search(finding=card.id, t=window, last_s=None, requests=(), latency_s=None, arrived_s=None,
                           iterations=None)  # fmt: skip
    requests = address.search(finding=card.id, t=None, last_s=None, requests=card.requests[:50], latency_s=None, arrived_s=None)
    links: list[Any] = [
        dcc.Link("Show me", href="/timeline" + shown, className="button", title="When it happened, on the timeline"),
        dcc.Link("Its requests", href="/requests" + requests, className="button", title="Those that suffered most from it"),
    ]
    if card.advice is not None and card.advice.flags:
        name = {"type": "vd-flags", "finding": card.id}
        links.append(html.Code(card.advice.flags, id=name, className="flags"))
        links.append(copy_button(card.advice.flags, "Copy flags"))
    links += change_button(card)
    return html.Div(links, className="ways")

"""The answer of a tuner as one page: what to set and what it brings first, then why it may be believed, and who loses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from dashboards.palette import Theme
from dashboards.plain_figures import bar_figure
from dashboards.report_markup import Html, data_table, element, listed
from dashboards.report_page import Drawing, Page, figure_box
from dashboards.words import percent
from tracekit.experiments.knobs import knob_text

__all__ = ["tune_page"]


def tune_page(document: Mapping[str, Any], text: str) -> Page:
    """``document``: ``tracekit.tune/1``; ``text``: the same as ``tracekit tune`` prints it."""
    drawings = [each for each in (_importance(document), _neighbours(document), _gains(document)) if each is not None]
    body = [
        element("h1", f"Tuned: {document['trace']}"),
        element("p", document["traffic"][0], f"; profile {document['profile']}; ", _trials(document), class_="meta"),
        element("p", _verdict(document), class_="verdict"),
        *_change(document),
        *(figure_box(each) for each in drawings),
        element("h2", "The whole answer"),
        element("pre", text),
        element("p", "The gain is on windows of the trace that were not searched. Nothing on this page was loaded from a network"
                     " or sent to one.", class_="quiet"),
    ]  # fmt: skip
    return Page(f"tracekit tune: {document['trace']}", body, drawings)


def _trials(document: Mapping[str, Any]) -> str:
    trials = document["trials"]
    return f"{trials['complete']} trials complete, {trials['pruned']} pruned, {trials['failed']} failed"


def _verdict(document: Mapping[str, Any]) -> str:
    if document["no_search"]:
        return f"No search: {document['no_search']}. No change recommended."
    return f"{'Change' if document['recommended'] else 'No change recommended'}: {document['why']}."


def _change(document: Mapping[str, Any]) -> Iterator[Html | None]:
    if document["recommended"]:
        flags = document["flags"] or "none: the change is beyond vLLM"
        yield element("p", "vLLM flags: ", element("code", flags), class_="advice")
        sets = " ".join(f"--set {each}" for each in document["sets"])
        yield element("p", "tracekit: ", element("code", sets))
    rows = [[each["knob"], knob_text(each["old"]), knob_text(each["new"]), "follows from the others" if each["derived"] else ""]
            for each in document.get("changes", ())]  # fmt: skip
    if rows:
        caption = "What changes" if document["recommended"] else "What the best candidate would change"
        yield data_table(("Knob", "Today", "Then", ""), rows, caption)
    gain = document.get("gain")
    if gain is not None and gain["estimate"] is not None:
        yield element("p", f"SLO-goodput on windows that were not searched: {_gain(gain)}; attainment"
                           f" {percent(gain['base_attainment'])} → {percent(gain['level_attainment'])}.",
                      class_="trust")  # fmt: skip
    yield listed([f"Cliff beside it: {each}" for each in document.get("cliffs", ())])


def _gain(gain: Mapping[str, Any] | None) -> str:
    if gain is None or gain["estimate"] is None:
        return "unknown"
    interval = "" if gain["low"] is None else f" [{100 * gain['low']:+.1f}, {100 * gain['high']:+.1f}]"
    return f"{100 * gain['estimate']:+.1f} %{interval} (n = {gain['n']} windows, {gain['requests']:,} requests)"


def _bars(labels: Sequence[str], name: str, values: Sequence[float], x: str, y: str, theme: Theme) -> dict[str, Any]:
    figure = bar_figure(labels, [(name, values, theme.decode, "")], theme, x, y)
    figure["layout"]["yaxis"] |= {"ticksuffix": " %", "rangemode": "normal"}
    figure["layout"]["xaxis"] |= {"automargin": True, "tickangle": "auto"}
    figure["layout"]["xaxis"]["title"] |= {"standoff": 12}
    return figure


def _importance(document: Mapping[str, Any]) -> Drawing | None:
    shares = {name: 100 * float(share) for name, share in (document.get("importance") or {}).items()}
    if not shares:
        return None
    make = partial(_bars, list(shares), "importance", list(shares.values()), "knob", "share of how the value varies")
    first = max(shares, key=lambda name: shares[name])
    n = (document.get("importance_of") or {}).get("n")
    told = "" if n is None else f", n = {n} trials"
    named = list(document.get("objectives") or [])
    what = named[0] if len(named) > 1 else "the value"  # of several the first
    return Drawing("importance", f"How {what} varies over the space: {first} the most ({shares[first]:.0f} %{told}).", make,
                   ("Knob", "Share"), [[name, f"{value:.1f} %"] for name, value in shares.items()])  # fmt: skip


def _neighbours(document: Mapping[str, Any]) -> Drawing | None:
    found = {f"{each['knob']} = {knob_text(each['level'])}": 100 * (each["ratio"] - 1) for each in document.get("neighbours", ())
             if each.get("ratio") is not None}  # fmt: skip
    if not found:
        return None
    make = partial(_bars, list(found), "neighbour", list(found.values()), "one step of one knob", "against the winner")
    worst = min(found, key=lambda name: found[name])
    said = f"One step of one knob away from the winner: the worst is {worst} ({found[worst]:+.1f} %)."
    return Drawing("neighbours", said, make, ("Neighbour", "Against the winner"),
                   [[name, f"{value:+.1f} %"] for name, value in found.items()])  # fmt: skip


def _gains(document: Mapping[str, Any]) -> Drawing | None:
    """The gain at other rates, with a profile that is off, without each change."""
    cases: list[tuple[str, Mapping[str, Any] | None]] = [("as it is", document.get("gain"))]
    cases += [(str(row["case"]), row["gain"]) for row in document.get("robustness") or ()]
    ablation = document.get("ablation") or {}
    for kind, told in (("plus", "only {}"), ("minus", "without {}")):
        cases += [(told.format(row["knob"]), row["gain"]) for row in ablation.get(kind, ())]
    known = {name: gain for name, gain in cases if gain is not None and gain["estimate"] is not None}
    if not known:
        return None
    values = [100 * gain["estimate"] for gain in known.values()]
    make = partial(_bars, list(known), "gain", values, "what was replayed", "gain over today")
    said = f"The gain over the current policy: {_gain(known.get('as it is'))}; between {min(values):+.1f} % and" \
           f" {max(values):+.1f} % under other conditions and with single changes."  # fmt: skip
    return Drawing("gains", said, make, ("What was replayed", "Gain"), [[name, _gain(gain)] for name, gain in known.items()])

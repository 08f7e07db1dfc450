"""What a study recommends, and the proof: the flags, the gain on traffic that was not searched, each change alone, who loses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dash import html

from dashboards.download_links import study_links
from dashboards.interval_figure import Whisker, interval_figure
from dashboards.markup import copy_button, data_table, figure_with_table
from dashboards.palette import Theme
from dashboards.study_rows import Effect, effects_of, gains_of
from dashboards.study_words import describe_gains, no_answer, none_allowed, of_fewer
from dashboards.words import MISSING, count, percent
from tracekit.studies import Study

__all__ = ["answer_of", "proof_of"]


def answer_of(study: Study) -> Iterator[Any]:
    """What to set, in words and as flags to copy."""
    answer = study.answer
    if answer is None:
        yield html.P(no_answer(study), className="hint")
        return
    yield html.H2("What to set")
    if (older := of_fewer(study)) is not None:
        yield html.P(older, className="hint")
    head = "CHANGE" if answer["recommended"] else "NO CHANGE RECOMMENDED"
    yield html.P([html.Strong(head), f": {answer['why']}."], className="advice")
    if "winner" not in answer and not answer.get("no_search"):
        yield html.P(none_allowed(study), className="advice")
    if answer["recommended"]:
        lines = {"vLLM": answer["flags"], "tracekit": " ".join(f"--set {each}" for each in answer["sets"])}
        for name, text in lines.items():
            if text:
                copy = copy_button(text, "Copy", f"Copy the flags for {name}")
                yield html.Div([html.Span(name, className="quiet"), html.Code(text, className="flags"), copy], className="ways")
    changes = [
        [c["knob"], str(c["old"]), str(c["new"]), "follows from the others" if c["derived"] else ""]
        for c in answer.get("changes", ())
    ]
    if changes:
        yield data_table(("Knob", "Now", "Then", ""), changes, caption="What differs from the current policy", numeric=9)
    yield study_links(study.key)
    before, after = ([each["id"] for each in answer.get(name, ())] for name in ("findings", "findings_after"))
    if before and "findings_after" in answer:
        said = [f"{each} ({'still there' if each in after else 'gone'})" for each in before]
        yield html.P(f"What the current policy suffers from, and what is left of it: {', '.join(said)}.", className="summary")


def proof_of(study: Study, theme: Theme) -> Iterator[Any]:
    """The gain and what stands behind it, as far as there is an answer."""
    for title, name, effects in (
        ("What it brings on traffic that was not searched", "tn-gains", gains_of(study)),
        ("Which change does it", "tn-ablation", effects_of(study)),
    ):
        drawn = [each for each in effects if each.estimate is not None]
        if not drawn:
            continue
        yield html.H2(title)
        rows = [
            [_label(e), _gain(e.estimate), _gain(e.low), _gain(e.high), count(e.n), count(e.requests), e.reason or ""]
            for e in effects
        ]
        head = ("Case", "Gain", "from", "to", "Windows", "Requests", "")
        figure = interval_figure([_whisker(each) for each in drawn], theme, "SLO-goodput against the current policy, %")
        yield figure_with_table(name, figure, describe_gains(effects), head, rows)
    losers = (study.answer or {}).get("losers")
    if losers:
        yield html.H2("Who loses")
        rows = [[g["kind"], g["name"], percent(g["before"]), percent(g["after"]), count(g["n"])] for g in losers["groups"][:50]]
        said = (f"{count(losers['won'])} requests meet their SLO only now, {count(losers['lost'])} no longer do, of"
                f" {count(losers['n'])} on the windows held out.")  # fmt: skip
        yield html.P(said, className="summary")
        yield data_table(("By", "Group", "Attained now", "then", "n"), rows, caption="Largest loss first", numeric=2)


def _whisker(effect: Effect) -> Whisker:
    assert effect.estimate is not None
    low, high = effect.low, effect.high
    clear = low is not None and high is not None and (low > 0 or high < 0)
    verdict = "unclear" if not clear else "better" if effect.estimate > 0 else "worse"
    return Whisker(_label(effect), effect.estimate, low, high, verdict, f"(n {effect.n} windows, {effect.requests:,} requests)")


def _label(effect: Effect) -> str:
    return f"{effect.group}: {effect.label}"


def _gain(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:+.1f} %"

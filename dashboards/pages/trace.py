"""What the loaded traffic is: arrivals over time, lengths, who sends it, and what a prefix cache could give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dash import Dash, Input, Output, html

from dashboards.address import parse_address
from dashboards.markup import data_table, figure_with_table
from dashboards.palette import THEMES, Theme
from dashboards.plain_figures import bar_figure, curve_figure, step_figure
from dashboards.queries import RunBook
from dashboards.spoken import spoken
from dashboards.traffic import Arrivals, Traffic, describe_run_trace
from dashboards.words import MISSING, count, percent, seconds, short
from tracekit.errors import TracekitError

__all__ = ["layout", "register", "render"]


def layout() -> Any:
    return html.Div(
        [
            html.H1("Trace"),
            html.P("Loading …", id="tr-said", className="summary", role="status"),
            html.Div(id="tr-body"),
        ]
    )


def register(app: Dash, book: RunBook) -> None:
    def show(search: str | None, theme: str | None) -> tuple[Any, Any]:
        return render(book, search, theme if theme in THEMES else "light")

    app.callback(Output("tr-said", "children"), Output("tr-body", "children"), Input("url", "search"), Input("theme", "data"))(
        show
    )


def render(book: RunBook, search: str | None, theme: str) -> tuple[Any, Any]:
    """The sentence at the head, and all below it."""
    try:
        traffic = describe_run_trace(book, parse_address(search).run)
    except TracekitError as error:
        return spoken(error), None
    return _said(traffic.document), list(_body(traffic, THEMES[theme]))


def _said(document: dict[str, Any]) -> str:
    facts, whole = document["trace"], document["whole"]
    came = whole["arrivals"]
    rate = f"{short(came['rate_per_s'])} requests/s" if came["rate_per_s"] is not None else str(came["rate_refused"])
    return (
        f"{facts['name']}: {count(whole['requests'])} requests over {seconds(came['span_s'])}, {rate}; the busiest second has"
        f" {count(came['peak_1s'])}. Prompts P50 {count(whole['input_tokens'].get('p50'))} tokens, answers"
        f" {count(whole['output_tokens'].get('p50'))}."
    )


def _body(traffic: Traffic, theme: Theme) -> Iterator[Any]:
    whole = traffic.document["whole"]
    yield from _arrivals(whole["arrivals"], traffic.arrivals, theme)
    yield html.H2("Lengths")
    labels = [f"≤ {upto:,}" for upto, _, _ in traffic.lengths]
    series = [
        ("prompts", [p for _, p, _ in traffic.lengths], theme.fill(theme.prefill), ""),
        ("answers", [o for _, _, o in traffic.lengths], theme.decode, "/"),
    ]
    rows = [[label, count(p), count(o)] for label, (_, p, o) in zip(labels, traffic.lengths, strict=True)]
    figure = bar_figure(labels, series, theme, "tokens", "requests")
    yield figure_with_table("tr-lengths", figure, _lengths(whole), ("Tokens", "Prompts", "Answers"), rows)
    if whole["prefix"] is not None:
        yield from _prefix(whole["prefix"], theme)
    yield from _labels(whole)
    yield from _windows(traffic.document)


def _arrivals(numbers: dict[str, Any], came: Arrivals, theme: Theme) -> Iterator[Any]:
    yield html.H2("Arrivals")
    said = (
        f"Gaps between arrivals vary by {_number(numbers['cv'])} of their mean (1 is Poisson); counts per second have a variance"
        f" of {_number(numbers['dispersion_1s'])} of theirs. The longest time without one is {seconds(numbers['longest_gap_s'])}."
    )
    lines = [("requests", came.requests, theme.decode)]
    figure = step_figure(came.begin_s, came.width_s, lines, theme, "seconds from the trace's start", "requests/s")
    rows = [
        [f"{came.begin_s + at * came.width_s:,.1f}", *(short(value, 4) for value in values)]
        for at, values in enumerate(zip(came.requests, came.prompt, came.output, strict=True))
    ]
    head = ("From, s", "Requests/s", "Prompt tokens/s", "Answer tokens/s")
    yield figure_with_table("tr-arrivals", figure, said, head, rows)


def _windows(document: dict[str, Any]) -> Iterator[Any]:
    if document["windows"]:
        yield html.H2("Representative windows")
        rows = [
            [each["kind"], each["option"], count(each["requests"]), short(each['rate_per_s']), each["why"]]
            for each in document["windows"]
        ]
        head = ("Window", "--window", "Requests", "Requests/s", "Chosen for")
        yield data_table(head, rows, caption="Parts of the trace that stand for the rest", numeric=9)
    for warning in document["warnings"]:
        yield html.P(warning, className="notice")


def _number(value: float | None) -> str:
    return MISSING if value is None else short(value)


def _lengths(whole: dict[str, Any]) -> str:
    parts = []
    for name, key in (("Prompts", "input_tokens"), ("answers", "output_tokens")):
        own = whole[key]
        points = ", ".join(f"{point.upper()} {count(own.get(point))}" for point in ("p50", "p90", "p99"))
        parts.append(f"{name} {points}, at most {count(own.get('max'))} tokens (n {count(own.get('n'))})")
    return "; ".join(parts) + "."


def _prefix(prefix: dict[str, Any], theme: Theme) -> Iterator[Any]:
    yield html.H2("What a prefix cache could give")
    said = (
        f"An unbounded cache gives {percent(prefix['share_unbounded'])} of all prompt tokens; half of that needs"
        f" {count(prefix['tokens_for'].get('50%'))} tokens of cache. {prefix['rule'].capitalize()}."
    )
    points = prefix["by_cache_size"]
    lines = [
        ("of prompt tokens", [each["share"] for each in points], theme.decode),
        ("in the last half", [each["share_last_half"] for each in points], theme.fill(theme.prefill)),
    ]
    figure = curve_figure([each["cache_tokens"] for each in points], lines, theme, "cache, tokens", "found")
    yield figure_with_table(
        "tr-prefix",
        figure,
        said,
        ("Cache, tokens", "Found", "In the last half"),
        [[count(each["cache_tokens"]), percent(each["share"]), percent(each["share_last_half"])] for each in points],
    )


def _labels(whole: dict[str, Any]) -> Iterator[Any]:
    for key in ("tenant", "class", "model"):
        found = whole.get(key)
        if not isinstance(found, dict) or not found.get("largest"):
            continue
        yield html.H2(f"By {key}")
        rows = [
            [each["name"], percent(each["share"]), *(count(each[name]) for name in ("requests", "input_tokens", "output_tokens"))]
            for each in found["largest"][:50]
        ]
        head = (key.capitalize(), "Share", "Requests", "Prompt tokens", "Answer tokens")
        yield data_table(head, rows, caption=f"The largest of {count(found.get('values'))}", numeric=1)

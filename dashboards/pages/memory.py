"""Is memory the limit, and is reuse lost? The pool over the run, who held it at its fullest, and what a cache could give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dash import Dash, Input, Output, dcc, html

from dashboards.address import Address, parse_address
from dashboards.markup import data_table, figure_with_table
from dashboards.memory import Peak, peak_of, preempted, pressure_of
from dashboards.palette import THEMES, Theme
from dashboards.plain_figures import curve_figure
from dashboards.queries import RunBook
from dashboards.spoken import spoken
from dashboards.traffic import describe_run_trace
from dashboards.words import MISSING, count, percent, seconds
from tracekit.diagnosis import RunData
from tracekit.errors import TracekitError

__all__ = ["layout", "register", "render"]


def layout() -> Any:
    return html.Div(
        [
            html.H1("Memory & cache"),
            html.P("Loading …", id="mm-said", className="summary", role="status"),
            html.Div(id="mm-body"),
        ]
    )


def register(app: Dash, book: RunBook) -> None:
    def show(search: str | None, theme: str | None) -> tuple[Any, Any]:
        return render(book, search, theme if theme in THEMES else "light")

    app.callback(Output("mm-said", "children"), Output("mm-body", "children"), Input("url", "search"), Input("theme", "data"))(
        show
    )


def render(book: RunBook, search: str | None, theme: str) -> tuple[Any, Any]:
    """The sentence at the head, and all below it."""
    address = parse_address(search)
    try:
        data = book.data(address.run)
        if not data.has_iterations:
            return "This run kept no iterations, so its memory cannot be seen; replay with --events full.", None
        return _said(data), [*_pool(data, address), *_reuse(book, data, address, THEMES[theme]), *_evictions(data, address)]
    except TracekitError as error:
        return spoken(error), None


def _said(data: RunData) -> str:
    found = pressure_of(data)
    worst = max(found, key=lambda each: each.most / each.total)
    where = f" on replica {worst.replica}" if len(found) > 1 else ""
    full = f"more than 95 % was used in {percent(worst.near_full)} of the busy time"
    return (
        f"At most {count(worst.most)} of {count(worst.total)} blocks ({percent(worst.most / worst.total)}) were used{where};"
        f" {full}; {count(sum(each.preemptions for each in found))} preemptions."
    )


def _pool(data: RunData, address: Address) -> Iterator[Any]:
    rows = [
        [
            f"replica {each.replica}",
            count(each.total),
            count(each.most),
            count(each.median),
            count(each.p95),
            percent(each.near_full),
            count(each.evicted),
            count(each.preemptions),
        ]
        for each in pressure_of(data)
    ]
    head = ("", "Blocks", "Most used", "Median", "P95", "Time above 95 %", "Cached blocks evicted", "Preemptions")
    yield html.H2("The pool")
    yield data_table(head, rows, caption="KV blocks by busy time", numeric=1)
    peaks = [peak for replica in data.replicas if (peak := peak_of(data, replica)) is not None]
    peak = max(peaks, key=lambda each: each.used / each.total)
    yield html.H2("At its fullest")
    yield html.P(_peak(peak), className="summary")
    holders = [
        [
            dcc.Link(f"#{each.request}", href="/requests" + address.search(requests=(each.request,))),
            each.cls or MISSING,
            each.phase,
            count(each.blocks),
            count(each.could_be),
        ]
        for each in peak.largest
    ]
    columns = ("Request", "Class", "Doing", "Blocks at its end", "Blocks at max_tokens")
    yield data_table(columns, holders, caption="The largest that held blocks then", numeric=3)


def _peak(peak: Peak) -> str:
    said = (
        f"At {peak.at_s:,.3f} s (iteration {peak.iteration:,} of replica {peak.replica}) {count(peak.holders)} requests held"
        f" {count(peak.used)} of {count(peak.total)} blocks."
    )
    if peak.could_be is None:
        return said
    grown = peak.could_be / peak.total
    return f"{said} Had all of them gone on to max_tokens they would need {count(peak.could_be)}: {percent(grown)} of the pool."


def _reuse(book: RunBook, data: RunData, address: Address, theme: Theme) -> Iterator[Any]:
    yield html.H2("Prefix reuse")
    prefix = describe_run_trace(book, address.run).document["whole"]["prefix"]
    if prefix is None:
        yield html.P("The trace has no prefix identities: reuse cannot be seen.", className="notice")
        return
    rows = data.outcomes[data.counted[data.outcomes["request"]]]
    prompt = max(int(rows["prompt_tokens"].sum()), 1)
    hit = float(rows["cached_tokens"][rows["cached_tokens"] > 0].sum()) / prompt
    config = data.engine_of(data.replicas[0])
    size = config.usable_blocks * config.block_size
    off = "" if config.enable_prefix_caching else " Prefix caching is off in this run."
    said = (
        f"Found in the cache: {percent(hit)} of prompt tokens; an unbounded cache shared by all gives"
        f" {percent(prefix['share_unbounded'])}."
        f" One replica's pool is {count(size)} tokens.{off}"
    )
    points = prefix["by_cache_size"]
    lines = [("could be found", [each["share"] for each in points], theme.decode)]
    figure = curve_figure(
        [each["cache_tokens"] for each in points], lines, theme, "cache, tokens", "of prompt tokens", mark=(size, "this pool")
    )
    rows_shown = [[count(each["cache_tokens"]), percent(each["share"])] for each in points]
    yield figure_with_table("mm-reuse", figure, said, ("Cache, tokens", "Found"), rows_shown)


def _evictions(data: RunData, address: Address) -> Iterator[Any]:
    yield html.H2("Preempted requests")
    found = preempted(data)
    if not found:
        yield html.P("No request was preempted.", className="summary")
        return
    rows = [
        [
            dcc.Link(f"#{each.request}", href="/requests" + address.search(requests=(each.request,))),
            each.cls or MISSING,
            count(each.times),
            count(each.lost_tokens),
            count(each.recomputed_tokens),
            seconds(each.stood_s),
        ]
        for each in found
    ]
    head = ("Request", "Class", "Times", "Tokens lost", "Computed again", "Stood still")
    yield data_table(head, rows, caption="Those preempted most often", numeric=2)

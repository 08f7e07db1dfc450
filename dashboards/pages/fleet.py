"""Several engines: is the load even, does a queue stand beside an idle engine, and do separate pools pay?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dash import Dash, Input, Output, html

from dashboards.address import parse_address
from dashboards.fleet_figures import heat_figure, imbalance_figure, link_figure, stages_figure
from dashboards.fleet_rows import (
    Heat,
    Imbalance,
    LinkUse,
    Stages,
    Together,
    heats_of,
    imbalance_of,
    link_of,
    stages_of,
    together_of,
)
from dashboards.markup import figure_with_table
from dashboards.palette import THEMES, Theme
from dashboards.queries import RunBook
from dashboards.spoken import spoken
from dashboards.words import MISSING, count, percent, seconds, short
from tracekit.diagnosis import RunData
from tracekit.errors import TracekitError

__all__ = ["layout", "register", "render"]

_TITLES = {"waiting": "Waiting", "running": "Running", "kv": "KV in use"}
ONE = (
    "This run has one engine. tracekit replay TRACE --replicas 4 --router least_tokens replays it on several behind a router,"
    " with --pd 1:3 on separate prefill and decode engines."
)


def layout() -> Any:
    return html.Div(
        [
            html.H1("Fleet"),
            html.P("Loading …", id="fl-said", className="summary", role="status"),
            html.Div(id="fl-body"),
        ]
    )


def register(app: Dash, book: RunBook) -> None:
    def show(search: str | None, theme: str | None) -> tuple[Any, Any]:
        return render(book, search, theme if theme in THEMES else "light")

    app.callback(Output("fl-said", "children"), Output("fl-body", "children"), Input("url", "search"), Input("theme", "data"))(
        show
    )


def render(book: RunBook, search: str | None, theme: str) -> tuple[Any, Any]:
    """The sentence at the head, and all below it."""
    try:
        data = book.data(parse_address(search).run)
    except TracekitError as error:
        return spoken(error), None
    if not data.policy.rules.several:
        return ONE, None
    if not data.has_iterations:
        return "This run kept no iterations: replay it with --events full.", None
    return _said(data), list(_body(data, THEMES[theme]))


def _said(data: RunData) -> str:
    pd, fleet = data.policy.rules.pd, data.policy.rules.fleet
    if pd.prefill:
        return f"{pd.prefill} prefill and {pd.decode} decode engines; routers {pd.prefill_router} and {pd.decode_router}."
    faults = " ".join(part for part in (fleet.fail and f"Failed: {fleet.fail}.", fleet.slow and f"Slow: {fleet.slow}.") if part)
    return f"{fleet.replicas} replicas behind {fleet.router}. {faults}".strip()


def _body(data: RunData, theme: Theme) -> Iterator[Any]:
    yield from _together(together_of(data))
    heats = heats_of(data)
    for heat in heats:
        yield html.H2(_TITLES[heat.what])
        name = f"fl-{heat.what}"
        yield figure_with_table(name, heat_figure(heat, theme), _hottest(heat), ("From, s", *heat.engines), _heat_rows(heat))
    pools = imbalance_of(data)
    if pools:
        yield html.H2("How even it is")
        yield _imbalance(pools, theme)
    stages = stages_of(data)
    if stages:
        yield html.H2("Where first tokens wait")
        yield _stages(stages, theme)
    link = link_of(data)
    if link is not None:
        yield html.H2("The link")
        yield from _link(link, theme)
    if data.policy.rules.pd.prefill:
        yield html.P(_separation(data), className="hint")


def _together(found: tuple[Together, ...]) -> Iterator[Any]:
    if not found:
        return
    yield html.H2("A queue here while an engine is idle there")
    for each in found:
        said = (
            f"{each.pool.capitalize()}: {seconds(each.both_s)} ({percent(each.both_s / each.span_s)} of {seconds(each.span_s)})"
            f" in which one engine has a queue and another runs nothing, {seconds(each.lost_s)} of idle engine time; some engine"
            f" has a queue for {seconds(each.queue_s)}."
        )
        yield html.P(said, className="summary")


def _hottest(heat: Heat) -> str:
    where = np.unravel_index(np.nanargmax(np.where(np.isnan(heat.values), -1, heat.values)), heat.values.shape)
    most, at = float(heat.values[where]), float(heat.edges_s[where[1]])
    size = percent(most) if heat.what == "kv" else f"{short(most)} {heat.unit}"
    means = [float(np.nanmean(row)) if not np.isnan(row).all() else 0.0 for row in heat.values]
    told = ", ".join(
        f"{engine} {percent(mean) if heat.what == 'kv' else short(mean)}"
        for engine, mean in zip(heat.engines, means, strict=True)
    )
    return f"Most on {heat.engines[int(where[0])]} at {short(at, 4)} s: {size}. Means: {told}. All engines on one scale."


def _heat_rows(heat: Heat) -> list[list[str]]:
    def text(value: float) -> str:
        return MISSING if value != value else percent(value) if heat.what == "kv" else short(value)

    return [[short(heat.edges_s[at], 4), *(text(float(v)) for v in heat.values[:, at])] for at in range(heat.values.shape[1])]


def _imbalance(pools: tuple[Imbalance, ...], theme: Theme) -> Any:
    said = "; ".join(
        f"{pool.pool}: the fullest of {count(pool.engines)} engines has {pool.mean:.2f} times the mean, weighted by requests;"
        f" of all tokens {pool.whole:.2f} times"
        for pool in pools
    )
    rows = [
        [short(pools[0].edges_s[at], 4), *(MISSING if p.ratio[at] != p.ratio[at] else f"{p.ratio[at]:.2f}" for p in pools)]
        for at in range(len(pools[0].ratio))
    ]
    head = ("From, s", *(pool.pool for pool in pools))
    return figure_with_table("fl-imbalance", imbalance_figure(pools, theme), said[0].upper() + said[1:] + ".", head, rows)


def _stages(groups: tuple[Stages, ...], theme: Theme) -> Any:
    first = groups[0]
    name, most = max(first.seconds, key=lambda each: each[1])
    share = percent(most / first.ttft_s)
    said = f"Mean TTFT {seconds(first.ttft_s)} (n {count(first.n)}); most of it is {name}: {seconds(most)}, {share}."
    rows = [[g.group, count(g.n), seconds(g.ttft_s), *(seconds(value) for _, value in g.seconds)] for g in groups]
    head = ("Requests", "n", "Mean TTFT", *(name for name, _ in first.seconds))
    return figure_with_table("fl-stages", stages_figure(groups, theme), said, head, rows)


def _link(link: LinkUse, theme: Theme) -> Iterator[Any]:
    effective = "none" if link.effective_gb_per_s is None else f"{short(link.effective_gb_per_s)} GB/s"
    cached = "" if not link.cached_share else f"; {percent(link.cached_share)} of the blocks were cached and not moved"
    broken = f", {count(link.broken_off)} broken off" if link.broken_off else ""
    said = (
        f"{count(link.transfers)} transfers{broken}, {short(link.moved_gb)} GB at {effective} each; a transfer waits"
        f" {seconds(link.wait_s)} on average for the link and the target{cached}."
    )
    rows = [
        [short(link.edges_s[at], 4), f"{link.moving[at]:.2f}", f"{link.asking[at]:.2f}", short(link.gb_per_s[at])]
        for at in range(len(link.moving))
    ]
    yield figure_with_table("fl-link", link_figure(link, theme), said, ("From, s", "Under way", "Waiting", "GB/s"), rows)
    if link.break_even is not None and link.effective_gb_per_s is not None and link.kb_per_token is not None:
        faster = link.effective_gb_per_s / link.break_even
        verdict = (
            f"{short(faster if faster >= 1 else 1 / faster, 2)} times as {'fast' if faster >= 1 else 'slow'} as computing"
        )
        yield html.P(
            f"Break-even: a token's KV is {short(link.kb_per_token, 4)} kB, and at {short(link.break_even)} GB/s moving it takes"
            f" as long as the prefill engines took to compute it. The link, at {effective}, is {verdict} the prompt again on the"
            " other side.",
            className="summary",
        )


def _separation(data: RunData) -> Any:
    n = data.policy.rules.pd.prefill + data.policy.rules.pd.decode
    ways: list[Any] = [f"Whether separate pools pay is a comparison with {n} engines that do both: replay the trace with "]
    return [*ways, html.Code(f"--replicas {n}"), ", and put the two runs beside each other on Compare."]

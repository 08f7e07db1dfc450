"""The pages: each says its path and title, lays itself out, and registers what answers its controls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dash import Dash
from dash.development.base_component import Component

from dashboards.pages import (
    compare,
    experiments,
    fleet,
    jobs,
    memory,
    quality,
    replay,
    requests,
    runs,
    tail,
    timeline,
    trace,
    tuner,
    verdict,
    what_if,
)
from dashboards.queries import RunBook

__all__ = ["PAGES", "Page"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """``path`` without a trailing slash; ``asks``: the question it answers; ``register`` is called once per app."""

    path: str
    title: str
    asks: str
    layout: Callable[[], Component]
    register: Callable[[Dash, RunBook], None]


def _page(module: Any, path: str, title: str, asks: str) -> Page:
    return Page(path=path, title=title, asks=asks, layout=module.layout, register=module.register)


PAGES = (
    _page(runs, "/runs", "Runs", "Which run?"),
    _page(verdict, "/verdict", "Verdict", "What is wrong, how sure is it, and what do I change?"),
    _page(tail, "/tail", "Tail", "Which requests are slow, and what do they have in common?"),
    _page(timeline, "/timeline", "Timeline", "What was the scheduler doing then?"),
    _page(requests, "/requests", "Requests", "What happened to this one?"),
    _page(memory, "/memory", "Memory & cache", "Is memory the limit, and is reuse lost?"),
    _page(fleet, "/fleet", "Fleet / P-D", "Is the load even, and do separate pools pay?"),
    _page(compare, "/compare", "Compare", "Did the change help, and whom did it hurt?"),
    _page(experiments, "/experiments", "Experiments", "What does one factor do, and for which traffic?"),
    _page(tuner, "/tuner", "Tuner", "What should be set, and why may I believe it?"),
    _page(what_if, "/what-if", "What if", "What if traffic doubles, prompts grow, an engine fails?"),
    _page(trace, "/trace", "Trace", "What is this traffic?"),
    _page(replay, "/replay", "Replay", "What would this traffic do on another engine or policy?"),
    _page(jobs, "/jobs", "Jobs", "What runs, and what has run?"),
    _page(quality, "/quality", "Data quality", "Can I believe this?"),
)
"""In the order of the navigation; the first is the landing page."""

"""Options that say which part of a trace is taken: the same for every verb that takes one."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

__all__ = [
    "BurstScale", "ByOption", "Grouping", "Limit", "RateScale", "Seed", "Sessions", "SpreadTicks", "Thin", "Where", "Window",
]  # fmt: skip


class Grouping(StrEnum):
    session = "session"
    prefix = "prefix"
    request = "request"


Window = Annotated[
    str | None,
    typer.Option("--window", metavar="FROM:TO", help="Part of the trace: 10m:20m from its start, or absolute times."),
]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Only the first N requests (of the window).")]
RateScale = Annotated[float, typer.Option("--rate-scale", metavar="X", help="Arrivals come X times as fast.")]
BurstScale = Annotated[
    float,
    typer.Option("--burst-scale", metavar="X", help="Gaps between arrivals to the power X, the same requests over the same time:"
                 " 0 even, 1 as they are, above it burstier."),
]  # fmt: skip
Where = Annotated[
    str | None,
    typer.Option("--where", metavar="SQL", help="Only requests for which it holds, as \"tenant = 'a' AND input_tokens < 4000\"."),
]
Thin = Annotated[
    str | None, typer.Option("--thin", metavar="N/M", help="Only this share, as 1/64, chosen by the seed; groups stay whole.")
]
ByOption = Annotated[
    Grouping | None,
    typer.Option("--by", help="What --thin keeps whole [default: session, else prefix, else request, as the trace has them]."),
]
SpreadTicks = Annotated[
    bool, typer.Option("--spread-ticks", help="Spread arrivals uniformly inside the tick of the trace's clock, by the seed.")
]
Sessions = Annotated[
    str | None,
    typer.Option(
        "--sessions",
        metavar="HOW",
        help="Where sessions start: poisson:rate=0.1,seed=1 (the default where they have no common clock) or start_together;"
        " turns follow the completion of the one before. as_recorded: every turn at its recorded time.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]

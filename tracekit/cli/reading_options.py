"""Options on what a log leaves unsaid: the same for every verb that reads files."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

__all__ = ["ArrivalOption", "CachedOption", "Dedupe", "Format", "Map", "MaxDropped", "OnError", "OnErrorOption", "Place"]


class Place(StrEnum):
    inside = "inside"
    outside = "outside"


class OnError(StrEnum):
    skip = "skip"
    fail = "fail"


Map = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="COLUMN=SOURCE", help="A canonical column from a source column, as arrival=ts:ms; repeatable."),
]
Format = Annotated[
    str | None, typer.Option("--format", metavar="NAME", help="The trace's format; found by its content when not given.")
]
OnErrorOption = Annotated[OnError, typer.Option("--on-error", help="What a bad row does: it is left out, or ends the load.")]
MaxDropped = Annotated[
    str | None, typer.Option("--max-dropped", metavar="SHARE", help="Most rows that may be lost, as 0.05 or 5% [default: half].")
]
Dedupe = Annotated[bool, typer.Option("--dedupe", help="Of the rows with one request id only the first is kept.")]
ArrivalOption = Annotated[
    str | None,
    typer.Option("--arrival", metavar="PROCESS", help="Arrivals for a trace of lengths only: poisson:rate=5[,cv=2][,seed=1]."),
]
CachedOption = Annotated[
    Place | None, typer.Option("--cached", help="Where the log counts cached prompt tokens: in the input count or beside it.")
]

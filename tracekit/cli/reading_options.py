"""Options on what a log leaves unsaid: the same for every verb that reads files."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

__all__ = ["ArrivalOption", "CachedOption", "Place"]


class Place(StrEnum):
    inside = "inside"
    outside = "outside"


ArrivalOption = Annotated[
    str | None,
    typer.Option("--arrival", metavar="PROCESS", help="Arrivals for a trace of lengths only: poisson:rate=5[,cv=2][,seed=1]."),
]
CachedOption = Annotated[
    Place | None, typer.Option("--cached", help="Where the log counts cached prompt tokens: in the input count or beside it.")
]

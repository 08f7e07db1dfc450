"""Options that every verb has, declared once."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["DEFAULT_DB", "AsJson", "Db", "Debug", "plain_options"]

DEFAULT_DB = Path("tracekit.duckdb")

Db = Annotated[Path, typer.Option("--db", metavar="FILE", help="The DuckDB file that traces and runs are kept in.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def plain_options(options: dict[str, Any], repeated: Sequence[str]) -> None:
    """Options of a command as its library function takes them, in place: a tuple for each of the ``repeated`` ones, the word of a
    choice, and the parts of ``--goodput`` in one text."""
    for name in repeated:
        options[name] = tuple(options[name] or ())
    for name, value in options.items():
        if isinstance(value, Enum):
            options[name] = value.value
    if "goodput" in options:
        options["goodput"] = " ".join(options["goodput"]) if options["goodput"] else None

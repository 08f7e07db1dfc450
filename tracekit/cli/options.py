"""Options that every verb has, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["DEFAULT_DB", "AsJson", "Db", "Debug"]

DEFAULT_DB = Path("tracekit.duckdb")

Db = Annotated[Path, typer.Option("--db", metavar="FILE", help="The DuckDB file that traces and runs are kept in.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

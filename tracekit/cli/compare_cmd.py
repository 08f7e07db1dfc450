"""``tracekit compare``: two recorded runs of the same requests, the figures with intervals and who won and who lost."""

from __future__ import annotations

from typing import Annotated

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug

__all__ = ["register"]

INCONCLUSIVE = 4

Before = Annotated[str, typer.Argument(metavar="RUN", help="The run to compare with: its number, its name, or last.")]
After = Annotated[str, typer.Argument(metavar="OTHER", help="The run that is compared with it.")]


def compare(run: Before, other: After, db: Db = DEFAULT_DB, as_json: AsJson = False, debug: Debug = False) -> int:
    """Compare two runs of the same requests: better, worse or within noise, and who won and lost, request by request."""
    from tracekit.cli.output import emit, note, print_text
    from tracekit.comparison import compare as compare_runs

    found = compare_runs(run, other, db=db)
    emit(found.document, as_json, lambda: print_text(found.text))
    if not found.conclusive:
        note("inconclusive: no clear difference, nor equality, in the measure that decides")
    return 0 if found.conclusive else INCONCLUSIVE


def register(app: typer.Typer) -> None:
    app.command("compare", short_help="Compare two runs of the same requests, figure by figure.")(compare)

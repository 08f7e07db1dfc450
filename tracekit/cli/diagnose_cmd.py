"""``tracekit diagnose``: why a run is slow, what to change, and what replaying the change shows."""

from __future__ import annotations

from typing import Annotated

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug

__all__ = ["register"]

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run: its number, its name, or last.")]
Prove = Annotated[
    str, typer.Option("--prove", metavar="N", help="Iterations that all replays of changes may take together, as 5M or 500k.")
]
NoProve = Annotated[bool, typer.Option("--no-prove", help="Replay nothing: proposals are shown as such.")]
Limit = Annotated[
    int | None, typer.Option("--limit-findings", metavar="N", min=1, help="Show at most so many findings [default: all].")
]
Workers = Annotated[
    int | None, typer.Option("--jobs", metavar="N", min=1, help="Processes that replay at a time [default: one per core].")
]


def diagnose(
    run: Run = "last",
    prove: Prove = "5M",
    no_prove: NoProve = False,
    limit_findings: Limit = None,
    jobs: Workers = None,
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Say why requests of a run are slow, what to change and at what price, and replay the change on the same requests."""
    from tracekit.cli.output import emit, note, print_text
    from tracekit.cli.progress import ProgressDisplay
    from tracekit.diagnosis.run import diagnose as diagnose_run
    from tracekit.diagnosis.run import parse_iterations

    iterations = None if no_prove else parse_iterations(prove)
    with ProgressDisplay("diagnose", unit="replays") as progress:
        report = diagnose_run(run, prove_iterations=iterations, workers=jobs, limit_findings=limit_findings, db=db,
                              progress=progress, say=note)  # fmt: skip
    emit(report.document, as_json, lambda: print_text(report.text))
    where = "" if db == DEFAULT_DB else f" --db {db}"
    note(f"diagnosis {report.number} of run {report.run} is in {db} (table findings)")
    note(f"tracekit explain {report.run} REQUEST{where} tells the story of one request")
    return 0


def register(app: typer.Typer) -> None:
    app.command("diagnose", short_help="Why a run is slow, what to change, and the proof by replay.")(diagnose)

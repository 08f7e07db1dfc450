"""``tracekit trial``: one trial of a study as a run, with every event."""

from __future__ import annotations

from typing import Annotated

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug

__all__ = ["register"]

StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="The study: its key, the start of one, or last.")]
Number = Annotated[int, typer.Argument(metavar="TRIAL", min=0, help="The trial's number; 0 is the current policy.")]
Window = Annotated[
    int | None,
    typer.Option("--window", metavar="N", min=1, help="Search window [default: the one that the current policy served worst]."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Replay it again, though the run is there.")]


def trial(
    study: StudyName, number: Number, window: Window = None, fresh: Fresh = False, db: Db = DEFAULT_DB, as_json: AsJson = False,
    debug: Debug = False,
) -> int:  # fmt: skip
    """Replay one trial of a study with every event, and record the run: a search itself keeps outcomes only."""
    from tracekit.cli.output import emit_run, note
    from tracekit.cli.progress import ProgressDisplay
    from tracekit.replay import run_result
    from tuner import replay_trial

    with ProgressDisplay("trial") as progress:
        report = replay_trial(study, number, window=window, fresh=fresh, db=db, progress=progress, say=note)
    emit_run(report.run, report.state, report.matrix, as_json, verdict=report.verdict)
    where = "" if db == DEFAULT_DB else f" --db {db}"
    note(f"run {report.run} is in {db}: tracekit diagnose {report.run}{where} says why it is slow, and proves it")
    return int(run_result(report)["exit_code"])


def register(app: typer.Typer) -> None:
    app.command("trial", short_help="Replay one trial of a study with every event.")(trial)

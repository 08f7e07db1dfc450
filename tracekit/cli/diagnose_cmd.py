"""``tracekit diagnose``: why a run is slow, what to change, and what replaying the change shows."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug, plain_options

__all__ = ["register"]

Run = Annotated[
    str, typer.Argument(metavar="RUN|TRACE", help="The run: its number, its name, or last; with --observed: a trace.")
]
ObservedOption = Annotated[
    bool, typer.Option("--observed", help="Diagnose a trace by the latencies it has itself, without or beside a replay.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KNOB=VALUE", help="Of --observed: a setting its engine ran with; repeatable."),
]
PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", metavar='FILE|"vllm serve ..."', help="Of --observed: all of its settings; a file or command."),
]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME|FILE", help="Of --observed: calibrated for its engine; replayed beside it."),
]
SloOption = Annotated[
    str | None, typer.Option("--slo", metavar="PARTS", help="Of --observed: who is late, as ttft=500ms,tpot=50ms; also e2e.")
]
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
    observed: ObservedOption = False,
    sets: Sets = None,
    policy: PolicyOption = None,
    profile: ProfileOption = None,
    slo: SloOption = None,
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Say why requests of a run or of an observed trace are slow, what to change, and replay the change on the same requests."""
    return _run(**locals())


def _run(*, as_json: bool, debug: bool, **options: Any) -> int:
    """Each option goes to the library under its own name."""
    from tracekit.api import diagnose as diagnose_any
    from tracekit.cli.output import emit, note, print_text
    from tracekit.cli.progress import ProgressDisplay
    from tracekit.diagnosis.run import DiagnosisReport

    plain_options(options, ("sets",))
    run, db = options.pop("run"), options["db"]
    with ProgressDisplay("diagnose", unit="replays") as progress:
        report = diagnose_any(run, progress=progress, say=note, **options)
    emit(report.document, as_json, lambda: print_text(report.text))
    if isinstance(report, DiagnosisReport):
        where = "" if db == DEFAULT_DB else f" --db {db}"
        note(f"diagnosis {report.number} of run {report.run} is in {db} (table findings)")
        note(f"tracekit explain {report.run} REQUEST{where} tells the story of one request")
    elif options["profile"] is None:
        note(f"tracekit calibrate {run} --out profile.toml makes a profile from it; --profile profile.toml replays it beside")
    return 0


def register(app: typer.Typer) -> None:
    app.command("diagnose", short_help="Why a run is slow, what to change, and the proof by replay.")(diagnose)

"""``tracekit experiment``: one factor, several levels, the same windows, and what may be concluded."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug, plain_options
from tracekit.cli.reading_options import ArrivalOption, CachedOption, Dedupe, Format, Map, MaxDropped, OnError, OnErrorOption
from tracekit.cli.replay_cmd import AcceptDegraded, Goodput, Profile, Sets, SloOption
from tracekit.cli.slice_options import ByOption, RateScale, Seed, Sessions, SpreadTicks, Thin, Where

__all__ = ["register"]

INCONCLUSIVE = 4

Traces = Annotated[
    list[str], typer.Argument(metavar="TRACE...", help="One or more traces: a file or the name of a loaded trace each.")
]
Vary = Annotated[
    list[str],
    typer.Option(
        "--vary", metavar="KNOB=A,B[,...]", help="The one factor and its levels, the first is the baseline; or profile=A,B."
    ),
]
Base = Annotated[
    str | None,
    typer.Option(
        "--base", "--policy", metavar='FILE|"vllm serve ..."', help="What all levels share [default: vLLM's API server's]."
    ),
]
Pin = Annotated[bool, typer.Option("--pin", help="Hold whatever else the factor would move at one value for all levels.")]
Windows = Annotated[int, typer.Option("--windows", metavar="N", min=1, help="Windows of each trace, evenly spaced in time.")]
Length = Annotated[
    str | None, typer.Option("--length", metavar="TIME", help="Length of a window, as 5m [default: about a thousand requests].")
]
Stretch = Annotated[
    str | None, typer.Option("--window", metavar="FROM:TO", help="Lay the windows in this part of the trace only, as 1h:3h.")
]
Jobs = Annotated[int | None, typer.Option("--jobs", metavar="N", min=1, help="Replays at a time [default: one per core].")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Replay everything, also what was replayed or recorded before.")]
Name = Annotated[str | None, typer.Option("--name", metavar="TEXT", help="The experiment's name.")]


def experiment(
    traces: Traces,
    vary: Vary,
    policy: Base = None,
    sets: Sets = None,
    pin: Pin = False,
    profile: Profile = None,
    slo: SloOption = None,
    goodput: Goodput = None,
    windows: Windows = 8,
    length: Length = None,
    window: Stretch = None,
    rate_scale: RateScale = 1.0,
    where: Where = None,
    thin: Thin = None,
    by: ByOption = None,
    spread_ticks: SpreadTicks = False,
    sessions: Sessions = None,
    seed: Seed = 0,
    mapping: Map = None,
    trace_format: Format = None,
    arrival: ArrivalOption = None,
    cached: CachedOption = None,
    on_error: OnErrorOption = OnError.skip,
    max_dropped: MaxDropped = None,
    dedupe: Dedupe = False,
    accept_degraded: AcceptDegraded = False,
    jobs: Jobs = None,
    fresh: Fresh = False,
    name: Name = None,
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Vary one knob over the same windows of one or more traces, and say what is better, worse, or within noise."""
    return _run(**locals())


def _run(*, as_json: bool, debug: bool, **options: Any) -> int:
    """Each option goes to the library under its own name. Exit code 4: nothing can be concluded."""
    from tracekit.cli.output import emit, note, print_text
    from tracekit.cli.progress import ProgressDisplay
    from tracekit.experiments import experiment as run_experiment

    plain_options(options, ("sets", "mapping"))
    options["vary"] = _factor(options["vary"])
    try:
        with ProgressDisplay("experiment", unit="replays") as progress:
            report = run_experiment(progress=progress, say=note, **options)
    except KeyboardInterrupt:
        note("what is done is kept: the same command goes on where it stopped")
        raise
    emit(report.document, as_json, lambda: print_text(report.text))
    note(f"experiment {report.experiment} is in {options['db']} (table experiments)")
    if not report.conclusive:
        note("inconclusive: no clear difference, nor equality, in the measure that decides")
    return 0 if report.conclusive else INCONCLUSIVE


def _factor(given: list[str]) -> str:
    """One factor at a time; of an option given twice the parser would keep the last without a word."""
    from tracekit.errors import UsageError, shown

    if len(given) > 1:
        raise UsageError(f"--vary {shown(given[1])}: a second factor; expected one, as an experiment changes one thing at a time")
    return given[0]


def register(app: typer.Typer) -> None:
    app.command("experiment", short_help="Vary one knob over the same windows of traces.")(experiment)

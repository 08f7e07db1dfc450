"""``tracekit tune``: the settings that serve a trace's SLO best, proved on windows that were not searched."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tracekit.cli.notifying import Notify, tell
from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug, plain_options
from tracekit.cli.reading_options import ArrivalOption, CachedOption, Dedupe, Format, Map, MaxDropped, OnError, OnErrorOption
from tracekit.cli.replay_cmd import AcceptDegraded, Goodput, Profile, Sets, SloOption
from tracekit.cli.slice_options import ByOption, RateScale, Seed, Sessions, SpreadTicks, Thin, Where

__all__ = ["register"]

Trace = Annotated[str | None, typer.Argument(metavar="TRACE", help="A file or the name of a loaded trace; or --job names it.")]
Base = Annotated[
    str | None,
    typer.Option("--policy", "--base", metavar='FILE|"vllm serve ..."', help="What runs today [default: vLLM's API server's]."),
]
SpaceOption = Annotated[
    str | None,
    typer.Option("--space", metavar="scheduler|policy|FILE", help="What is searched [default: scheduler, three knobs]."),
]
ObjectiveOption = Annotated[
    str,
    typer.Option(metavar="NAME[,NAME]", help="goodput, capacity, cost, replicas; several give a Pareto front."),
]
Target = Annotated[float, typer.Option(metavar="SHARE", help="Attainment that capacity, replicas and cost are for.")]
Price = Annotated[float | None, typer.Option("--price-per-hour", metavar="X", help="Of one card; for the objective cost.")]
Trials = Annotated[int, typer.Option(metavar="N", min=1, help="Trials of the whole study.")]
Minutes = Annotated[float | None, typer.Option(metavar="M", help="No trial begins after so many minutes of searching.")]
Workers = Annotated[int | None, typer.Option(metavar="N", min=1, help="Processes that replay [default: one per core].")]
Storage = Annotated[
    str | None,
    typer.Option(metavar="postgresql://...", envvar="TRACEKIT_STORAGE",
                 help="The study's database, for many machines [default: a file]."),
]
Executor = Annotated[str, typer.Option(metavar="local|ray", help="Where workers run: here, or on a Ray cluster.")]
Address = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The Ray cluster [default: RAY_ADDRESS, or the one this machine is in].")
]
SearchOnly = Annotated[
    bool, typer.Option("--search-only", help="Carry out trials of a study that others share; leave the answer to them.")
]
Windows = Annotated[int, typer.Option(metavar="N", min=1, help="Windows of the trace to search on.")]
Holdout = Annotated[int, typer.Option(metavar="N", min=0, help="Other windows, to prove the answer on.")]
Split = Annotated[str, typer.Option(metavar="alternate|past", help="Hold out windows among the others, or the last ones.")]
Length = Annotated[str | None, typer.Option(metavar="TIME", help="Length of a window, as 5m [default: a thousand requests].")]
Stretch = Annotated[str | None, typer.Option("--window", metavar="FROM:TO", help="Only this part of the trace, as 1h:3h.")]
Also = Annotated[list[str] | None, typer.Option(metavar="TRACE", help="Another trace that the answer must hold on; repeatable.")]
Verify = Annotated[
    str | None, typer.Option(metavar="torch", help="Replay the best configurations on a real engine too.")
]
Top = Annotated[int, typer.Option(metavar="N", min=1, help="How many configurations --verify replays beside the current policy.")]
VerifyModel = Annotated[
    str | None, typer.Option("--model", metavar="NAME|DIR", help="What --verify computes [default: llama-3.1-8b, tiny on a CPU].")
]
JobFile = Annotated[str | None, typer.Option("--job", metavar="FILE.toml", help="These options from a file's table [tune].")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say how many replays and minutes it will take, and stop.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Begin again, whatever was searched before.")]


def tune(
    context: typer.Context,
    trace: Trace = None,
    slo: SloOption = None,
    goodput: Goodput = None,
    policy: Base = None,
    sets: Sets = None,
    profile: Profile = None,
    space: SpaceOption = None,
    objective: ObjectiveOption = "goodput",
    target: Target = 0.9,
    price_per_hour: Price = None,
    trials: Trials = 60, minutes: Minutes = None, workers: Workers = None,
    storage: Storage = None, executor: Executor = "local", address: Address = None, search_only: SearchOnly = False,
    windows: Windows = 4, holdout: Holdout = 4, split: Split = "alternate",
    length: Length = None, window: Stretch = None,
    rate_scale: RateScale = 1.0,
    where: Where = None, thin: Thin = None, by: ByOption = None,
    spread_ticks: SpreadTicks = False,
    sessions: Sessions = None,
    also: Also = None,
    verify: Verify = None, top: Top = 3, model: VerifyModel = None,
    seed: Seed = 0,
    mapping: Map = None, trace_format: Format = None,
    arrival: ArrivalOption = None,
    cached: CachedOption = None,
    on_error: OnErrorOption = OnError.skip,
    max_dropped: MaxDropped = None,
    dedupe: Dedupe = False,
    accept_degraded: AcceptDegraded = False,
    job: JobFile = None,
    dry_run: DryRun = False,
    fresh: Fresh = False,
    notify: Notify = None,
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:  # fmt: skip
    """Search the settings that serve the SLO best, on windows of a trace, and prove them on others."""
    return _run(**locals())


def _run(*, context: typer.Context, notify: list[str] | None, as_json: bool, debug: bool, job: str | None, **options: Any) -> int:
    """Each option goes to the library under its own name."""
    from tracekit.cli.output import emit, note, print_text
    from tracekit.cli.progress import ProgressDisplay
    from tracekit.errors import UsageError
    from tracekit.notify import check_hows, tune_message
    from tuner import tune as run_tune

    check_hows(notify or ())
    plain_options(options, ("sets", "mapping", "also"))
    if job is not None:
        from tuner.job_file import read_job

        options = read_job(job, options, {name for name in options if _typed(context, name)})
    out = options.pop("out", None)
    if options["trace"] is None:
        raise UsageError("tune: no trace; expected TRACE, or --job FILE.toml that names one")
    trace = options.pop("trace")
    try:
        with ProgressDisplay("tune", unit="trials") as progress:
            report = run_tune(trace, progress=progress, say=note, **options)
    except KeyboardInterrupt:
        note("what is done is kept: the same command goes on where it stopped")
        raise
    if out is not None and not options["search_only"]:  # the answer is another's to write
        from tuner.job_file import write_out_files

        write_out_files(out, report)
    emit(report.document, as_json, lambda: print_text(report.text))
    if notify:
        tell(notify, tune_message(report.text, 0), as_json)
    return 0


def _typed(context: typer.Context, name: str) -> bool:
    """Whether an option was given on the command line, or in the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")


def register(app: typer.Typer) -> None:
    app.command("tune", short_help="Find the settings that serve a trace's SLO best.")(tune)

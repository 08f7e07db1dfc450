"""``tracekit gate``: limits that a replay must keep, for a CI job or a nightly one. Exit codes: 0 passed, 1 failed,
2 usage or another baseline's, 3 input unusable, 4 inconclusive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tracekit.cli.notifying import Notify, tell
from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug, plain_options
from tracekit.cli.reading_options import ArrivalOption, CachedOption, Dedupe, Format, Map, MaxDropped, OnError, OnErrorOption
from tracekit.cli.replay_cmd import (
    AcceptDegraded,
    Fail,
    Goodput,
    PdOption,
    PolicyOption,
    Profile,
    Replicas,
    RouterOption,
    Sets,
    SloOption,
    Slow,
    Warmup,
)
from tracekit.cli.slice_options import ByOption, Limit, RateScale, Seed, Sessions, SpreadTicks, Thin, Where, Window

__all__ = ["register"]

Subject = Annotated[
    list[str], typer.Argument(metavar="RUN|TRACE...", help="A run (number, name, last), or a trace as replay takes it.")
]
Gates = Annotated[
    list[str] | None,
    typer.Option("--gate", metavar="LIMIT", help="As ttft_p99<=2s, tpot_p99<=+5%, attainment>=0.95, no:OVERLOAD; repeatable."),
]
BaselineOption = Annotated[
    Path | None, typer.Option("--baseline", metavar="FILE", help="What changes are measured against, by --write-baseline.")
]
AllowMismatch = Annotated[
    bool, typer.Option("--allow-mismatch", help="Compare with a baseline of another trace, profile, engine version or policy.")
]
WriteBaseline = Annotated[
    Path | None, typer.Option("--write-baseline", metavar="FILE", help="Write the figures as a new baseline, if no gate fails.")
]
Seeds = Annotated[int, typer.Option("--seeds", metavar="N", min=2, help="Draws of traffic and noise.")]
GateFile = Annotated[Path, typer.Option("--gate-file", metavar="FILE", help="Where the verdict is written before the exit.")]
Junit = Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="JUnit XML: one test per gate and per finding.")]
GithubSummary = Annotated[
    bool, typer.Option("--github-summary", help="Append the table to the summary of a GitHub job, also when it is red.")
]


def gate(
    inputs: Subject,
    gates: Gates = None,
    baseline: BaselineOption = None,
    allow_mismatch: AllowMismatch = False,
    write_baseline: WriteBaseline = None,
    seeds: Seeds = 5,
    gate_file: GateFile = Path("gate.json"),
    junit: Junit = None,
    github_summary: GithubSummary = False,
    notify: Notify = None,
    profile: Profile = None,
    policy: PolicyOption = None,
    sets: Sets = None,
    slo: SloOption = None,
    goodput: Goodput = None,
    window: Window = None,
    warmup: Warmup = None,
    limit: Limit = None,
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
    replicas: Replicas = None, pd: PdOption = None, router: RouterOption = None, fail: Fail = None, slow: Slow = None,
    db: Db = DEFAULT_DB, as_json: AsJson = False, debug: Debug = False,
) -> int:  # fmt: skip
    """Hold a replay against limits: absolute, against a baseline, or on what the diagnosis finds; noise is measured."""
    return _run(**locals())


def _run(*, notify: list[str] | None, as_json: bool, debug: bool, **options: Any) -> int:
    """Each option goes to the library under its own name."""
    from tracekit.cli.output import emit, note, print_text
    from tracekit.cli.progress import ProgressDisplay
    from tracekit.gate.run import gate as gate_run
    from tracekit.notify import check_hows, error_message, gate_message

    plain_options(options, ("gates", "sets", "mapping", "fail", "slow"))
    check_hows(notify or ())
    try:
        with ProgressDisplay("gate", unit="replays") as progress:
            report = gate_run(progress=progress, say=note, **options)
    except Exception as error:  # whoever waits for the night's gate must hear of it too
        tell(notify or (), error_message("gate", error, getattr(error, "exit_code", 5)), as_json)
        raise
    emit(report.document, as_json, lambda: print_text(report.text))
    tell(notify or (), gate_message(report.document), as_json)
    note(f"the verdict is in {options['gate_file']}")
    return report.exit_code


def register(app: typer.Typer) -> None:
    app.command("gate", short_help="Hold a replay against limits, and a baseline, in CI.")(gate)

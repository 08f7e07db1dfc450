"""``tracekit replay``: the main job. Load, schedule, simulate, record, and print the acceptance matrix."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli.notifying import Notify, tell
from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug, plain_options
from tracekit.cli.reading_options import ArrivalOption, CachedOption, Dedupe, Format, Map, MaxDropped, OnError, OnErrorOption
from tracekit.cli.slice_options import BurstScale, ByOption, Limit, RateScale, Seed, Sessions, SpreadTicks, Thin, Where, Window

if TYPE_CHECKING:
    from tracekit.replay import ReplayReport

__all__ = ["register"]



class Engine(StrEnum):
    auto = "auto"
    sim = "sim"
    torch = "torch"


class Events(StrEnum):
    full = "full"
    outcomes = "outcomes"
    none = "none"


Inputs = Annotated[
    list[str] | None,
    typer.Argument(metavar="TRACE...", help="Files, globs, a folder, - for standard input, or the name of a loaded trace."),
]
FromRun = Annotated[
    str | None,
    typer.Option("--from-run", metavar="RUN", help="No TRACE but a recorded run once more; with --set for what differs."),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="MANIFEST", help="Repeat the run of a manifest.json; the same bytes must come out."),
]
EngineOption = Annotated[Engine, typer.Option("--engine", help="What runs the iterations; auto: torch where CUDA is, else sim.")]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME|DIR", help="For torch: a shipped model with dummy weights, or a Hugging Face folder."),
]
Profile = Annotated[
    str | None, typer.Option("--profile", metavar="NAME|FILE", help="Latency profile [default: the published H100 one].")
]
PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", metavar='FILE|"vllm serve ..."', help="Policy file or command [default: vLLM's API server's]."),
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KNOB=VALUE", help="One setting on top of the policy; repeatable.")
]
SloOption = Annotated[str | None, typer.Option("--slo", metavar="PARTS", help="As ttft=500ms,tpot=50ms; also itl, stall, e2e.")]
Goodput = Annotated[
    list[str] | None,
    typer.Option("--goodput", metavar="PARTS", help="The SLO as vLLM's benchmark writes it, in ms: ttft:200 tpot:50 e2el:5000."),
]
EventsOption = Annotated[Events, typer.Option("--events", help="What is recorded of the run.")]
Name = Annotated[str | None, typer.Option("--name", metavar="TEXT", help="The run's name.")]
Warmup = Annotated[
    str | None, typer.Option("--warmup", metavar="TIME", help="Leave this much more of the start uncounted, as 30s.")
]
AcceptDegraded = Annotated[bool, typer.Option("--accept-degraded", help="A request whose answer was cut can meet its SLO.")]
NoDiagnose = Annotated[bool, typer.Option("--no-diagnose", help="Leave out the verdict at the end.")]
Replicas = Annotated[int | None, typer.Option("--replicas", metavar="N", help="Engines behind one router [default: 1].")]
PdOption = Annotated[
    str | None, typer.Option("--pd", metavar="P:D", help="Separate pools: so many prefill and decode engines, as 2:6.")
]
RouterOption = Annotated[
    str | None,
    typer.Option("--router", metavar="NAME", help="round_robin, least_tokens, prefix_affinity, power_of_two, weighted(w1,...); "
                 "with --pd one a pool: P=...,D=..."),
]  # fmt: skip
Fail = Annotated[
    list[str] | None,
    typer.Option("--fail", metavar="FAULT", help="As replica1@60s:30s, down for 30 s; with --pd P0, D1 or link; repeatable."),
]
Slow = Annotated[
    list[str] | None,
    typer.Option("--slow", metavar="FAULT", help="As replica2@60s:2x, or for a while replica2@60s:2x:30s; repeatable."),
]


def replay(
    inputs: Inputs = None, from_run: FromRun = None, from_manifest: From = None,
    engine: EngineOption = Engine.auto,
    model: Model = None,
    profile: Profile = None,
    policy: PolicyOption = None,
    sets: Sets = None,
    slo: SloOption = None,
    goodput: Goodput = None,
    window: Window = None,
    warmup: Warmup = None,
    limit: Limit = None,
    rate_scale: RateScale = 1.0, burst_scale: BurstScale = 1.0,
    where: Where = None,
    thin: Thin = None,
    by: ByOption = None,
    spread_ticks: SpreadTicks = False,
    sessions: Sessions = None,
    seed: Seed = 0,
    events: EventsOption = Events.full,
    mapping: Map = None,
    trace_format: Format = None,
    arrival: ArrivalOption = None,
    cached: CachedOption = None,
    on_error: OnErrorOption = OnError.skip,
    max_dropped: MaxDropped = None,
    dedupe: Dedupe = False,
    accept_degraded: AcceptDegraded = False,
    replicas: Replicas = None,
    pd: PdOption = None,
    router: RouterOption = None,
    fail: Fail = None,
    slow: Slow = None,
    name: Name = None, no_diagnose: NoDiagnose = False, notify: Notify = None,
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:  # fmt: skip
    """Replay a trace through the engine and print its acceptance matrix."""
    return _run(**locals())


def _run(*, notify: list[str] | None, as_json: bool, debug: bool, **options: Any) -> int:
    """Each option goes to the library under its own name."""
    from tracekit.cli.output import emit_run, note
    from tracekit.cli.progress import ProgressDisplay
    from tracekit.cycles import quiet_gc
    from tracekit.notify import check_hows, replay_message

    check_hows(notify or ())
    plain_options(options, ("inputs", "sets", "mapping", "fail", "slow"))
    options["diagnose"] = not options.pop("no_diagnose")
    with ProgressDisplay("replay") as progress, quiet_gc():  # most of what is loaded and made stays to the end
        from tracekit.replay import replay as replay_trace

        report = replay_trace(progress=progress, say=note, **options)
    emit_run(report.run, report.state, report.matrix, as_json, verdict=report.verdict)
    db = options["db"]
    where = "" if db == DEFAULT_DB else f" --db {db}"
    told = f"tracekit explain {report.run} REQUEST{where} tells the story of one request"
    if options["events"] != "full":
        told = f"tracekit show {report.run}{where} prints it again; stories of requests need --events full"
    note(f"run {report.run} is in {db}: {told}")
    code = _exit_code(report)
    if notify:
        tell(notify, replay_message(report.run, report.state, report.matrix, report.verdict, code), as_json)
    return code


def _exit_code(report: ReplayReport) -> int:
    """How the run ended; of one that repeats another, also whether the same came out, which is told."""
    from tracekit.cli.output import note
    from tracekit.replay import run_result

    code: int = run_result(report)["exit_code"]
    if code or report.differences is None:
        return code
    note("not reproduced:" if report.differences else "reproduced: the same bytes as the manifest says")
    for line in report.differences:
        note(f"  {line}")
    return 1 if report.differences else 0


def register(app: typer.Typer) -> None:
    app.command("replay", short_help="Replay a trace and print its acceptance matrix.")(replay)

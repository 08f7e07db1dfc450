"""``tracekit capacity``: the rate at which the SLO no longer holds, the slope past it, replicas over time, cost, and what-ifs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug, plain_options
from tracekit.cli.replay_cmd import AcceptDegraded, Goodput, Profile, Sets, SloOption
from tracekit.cli.slice_options import BurstScale, ByOption, RateScale, Seed, Sessions, SpreadTicks, Thin, Where
from tracekit.cli.tune_cmd import Base, Length, Stretch, Target, Windows

__all__ = ["register"]

Trace = Annotated[str, typer.Argument(metavar="TRACE", help="A file or the name of a loaded trace.")]
WhatIf = Annotated[
    list[str] | None,
    typer.Option("--what-if", metavar="'KNOB=VALUE ...'", help="The knee under other settings; also profile=NAME, hardware=NAME,"
                 " tensor_parallel=N, kv_cache_dtype=fp8, kv_scale=X, kv_memory=NGiB, lose=N replicas, rate_scale=X, isl_scale=X,"
                 " osl_scale=X, burst_scale=X, mix=CLASS_OR_TENANT:X,..., slo=..., price_per_hour=X; repeatable."),
]
IslScale = Annotated[float, typer.Option(metavar="X", help="Prompts X times as long; says where that breaks prefix hashes.")]
OslScale = Annotated[float, typer.Option(metavar="X", help="Outputs X times as long.")]
Price = Annotated[
    float | None,
    typer.Option("--price-per-hour", metavar="X", help="Of one card: says what an hour costs, and a million tokens that met the"
                 " SLO."),
]  # fmt: skip


def capacity(
    trace: Trace, slo: SloOption = None, goodput: Goodput = None, policy: Base = None, sets: Sets = None, profile: Profile = None,
    target: Target = 0.9, what_if: WhatIf = None, windows: Windows = 4, length: Length = None, window: Stretch = None,
    rate_scale: RateScale = 1.0, isl_scale: IslScale = 1.0, osl_scale: OslScale = 1.0, burst_scale: BurstScale = 1.0,
    price_per_hour: Price = None,
    where: Where = None, thin: Thin = None, by: ByOption = None, spread_ticks: SpreadTicks = False,
    sessions: Sessions = None, seed: Seed = 0, accept_degraded: AcceptDegraded = False, db: Db = DEFAULT_DB,
    as_json: AsJson = False, debug: Debug = False,
) -> int:  # fmt: skip
    """Find the highest rate at which the SLO holds, what follows it, how many replicas the traffic needs, and what they cost."""
    return _run(**locals())


def _run(*, as_json: bool, debug: bool, **options: Any) -> int:
    """Each option goes to the library under its own name."""
    from tracekit.cli.output import emit, note, print_text
    from tracekit.cli.progress import ProgressDisplay
    from tuner import capacity as run_capacity

    plain_options(options, ("sets", "what_if"))
    try:
        with ProgressDisplay("capacity", unit="replays") as progress:
            report = run_capacity(options.pop("trace"), say=note, progress=progress, **options)
    except KeyboardInterrupt:
        note("what is done is kept: the same command goes on where it stopped")
        raise
    emit(report.document, as_json, lambda: print_text(report.text))
    return 0


def register(app: typer.Typer) -> None:
    app.command("capacity", short_help="Find the rate at which the SLO no longer holds.")(capacity)

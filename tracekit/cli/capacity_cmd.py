"""``tracekit capacity``: the rate at which the SLO no longer holds, the slope past it, replicas over time, and what-ifs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug
from tracekit.cli.replay_cmd import AcceptDegraded, Goodput, Profile, Sets, SloOption
from tracekit.cli.slice_options import ByOption, RateScale, Seed, Sessions, SpreadTicks, Thin, Where
from tracekit.cli.tune_cmd import Base, Length, Stretch, Target, Windows

__all__ = ["register"]

Trace = Annotated[str, typer.Argument(metavar="TRACE", help="A file or the name of a loaded trace.")]
WhatIf = Annotated[
    list[str] | None,
    typer.Option("--what-if", metavar="'KNOB=VALUE ...'", help="The knee under other settings; also profile=NAME, hardware=NAME,"
                 " tensor_parallel=N, kv_cache_dtype=fp8, lose=N replicas; repeatable."),
]
IslScale = Annotated[float, typer.Option(metavar="X", help="Prompts X times as long; says where that breaks prefix hashes.")]
OslScale = Annotated[float, typer.Option(metavar="X", help="Outputs X times as long.")]


def capacity(
    trace: Trace, slo: SloOption = None, goodput: Goodput = None, policy: Base = None, sets: Sets = None, profile: Profile = None,
    target: Target = 0.9, what_if: WhatIf = None, windows: Windows = 4, length: Length = None, window: Stretch = None,
    rate_scale: RateScale = 1.0, isl_scale: IslScale = 1.0, osl_scale: OslScale = 1.0,
    where: Where = None, thin: Thin = None, by: ByOption = None, spread_ticks: SpreadTicks = False,
    sessions: Sessions = None, seed: Seed = 0, accept_degraded: AcceptDegraded = False, db: Db = DEFAULT_DB,
    as_json: AsJson = False, debug: Debug = False,
) -> int:  # fmt: skip
    """Find the highest rate at which the SLO holds, what follows it, and how many replicas the traffic needs."""
    return _run(**locals())


def _run(*, as_json: bool, debug: bool, **options: Any) -> int:
    """Each option goes to the library under its own name."""
    from tracekit.cli.output import emit, note, print_text
    from tuner import capacity as run_capacity

    for option in ("sets", "what_if"):
        options[option] = tuple(options[option] or ())
    options["by"] = None if options["by"] is None else options["by"].value
    options["goodput"] = " ".join(options["goodput"]) if options["goodput"] else None
    report = run_capacity(options.pop("trace"), say=note, **options)
    emit(report.document, as_json, lambda: print_text(report.text))
    return 0


def register(app: typer.Typer) -> None:
    app.command("capacity", short_help="Find the rate at which the SLO no longer holds.")(capacity)

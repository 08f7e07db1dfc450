"""``tracekit calibrate``: measure or fit a latency profile, say how far it can be trusted, write it as TOML."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug
from tracekit.cli.output import emit, note

__all__ = ["register"]


class Split(StrEnum):
    time = "time"
    random = "random"


class Engine(StrEnum):
    torch = "torch"


SourceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[SOURCE]",
        help="A trace with latencies (a file or a loaded one's name), a vLLM, SGLang or event log, a run, a model's config.json"
        " [default: a model is measured].",
    ),
]
As = Annotated[
    str | None, typer.Option("--as", metavar="KIND", help="What kind of source it is; found by what it is when not given.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KNOB=VALUE", help="A setting the engine is known to have run with; repeatable."),
]
PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", metavar='FILE|"vllm serve ..."', help="All settings it ran with: a policy file or command."),
]
Prior = Annotated[
    str | None, typer.Option("--profile", metavar="NAME|FILE", help="Whose numbers stand where the source cannot tell.")
]
Hardware = Annotated[
    str | None, typer.Option("--hardware", metavar="NAME", help="Of a config.json: the accelerator, as h100 or rtx4090.")
]
TensorParallel = Annotated[
    int | None,
    typer.Option("--tensor-parallel", metavar="N", min=1, help="Of a config.json: so many cards [default: 1]."),
]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", metavar="NAME", help="Of a config.json: weights as bfloat16, fp8, int4 [default: its own]."),
]
KvDtype = Annotated[
    str | None,
    typer.Option("--kv-dtype", metavar="NAME", help="Of a config.json: KV as bfloat16 or fp8 [default: 16 bits]."),
]
Check = Annotated[
    str | None,
    typer.Option("--check", metavar="PROFILE", help="Fit nothing: hold PROFILE against the latencies that SOURCE, a trace, has."),
]
SplitOption = Annotated[
    Split | None,
    typer.Option(
        "--split", help="Of --check: which half is held out, the later one or a random one; the verdict is made from it."
    ),
]
Configs = Annotated[
    Path | None,
    typer.Option(
        "--configs", metavar="FILE", help="Of --check: observed configurations, as [[config]] tables with trace or run."
    ),
]
EngineOption = Annotated[Engine, typer.Option("--engine", help="What is measured: our engine, with real weights or dummy ones.")]
Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME|DIR", help="A shipped model or a Hugging Face folder [default: tiny].")
]
Cases = Annotated[
    list[str] | None,
    typer.Option(
        "--cases", metavar="BATCHES",
        help="Exact batches, as decode=32*1@8192 prefill=2048 chunk=512@8192c mix=512,16*1@1024; repeatable [default: a grid].",
    ),
]  # fmt: skip
From = Annotated[str | None, typer.Option("--from", metavar="RUN", help="Fit the recorded iterations of a run, measure nothing.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where the profile goes, for replay --profile FILE.")]
Repeats = Annotated[
    int | None, typer.Option("--repeats", metavar="N", min=1, help="Runs of each batch; their median counts [default: 7].")
]
Device = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="As torch names it [default: cuda where there is one].")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="For dummy weights and the lengths of the short replay.")]


def calibrate(
    source: SourceArgument = None,
    kind: As = None,
    sets: Sets = None,
    policy: PolicyOption = None,
    prior: Prior = None,
    hardware: Hardware = None,
    tensor_parallel: TensorParallel = None,
    dtype: Dtype = None,
    kv_dtype: KvDtype = None,
    check: Check = None,
    split: SplitOption = None,
    configs: Configs = None,
    engine: EngineOption = Engine.torch,
    model: Model = None,
    cases: Cases = None,
    run: From = None,
    out: Out = None,
    repeats: Repeats = None,
    device: Device = None,
    seed: Seed = 0,
    db: Db = DEFAULT_DB,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Make a latency profile from a trace, a log, a recorded run, a model on paper or measured batches, or check one."""
    _run(**locals())


def _run(*, as_json: bool, debug: bool, **options: Any) -> None:
    """Each option goes to the library under its own name."""
    from tracekit.calibration.verb import calibrate as calibrate_profile
    from tracekit.cli.calibrate_view import render_found
    from tracekit.cli.progress import ProgressDisplay
    from tracekit.cli.trust_view import render_trust
    from tracekit.trust import TrustReport

    for name in ("sets", "cases"):
        options[name] = tuple(options[name] or ())
    for name in ("engine", "split"):
        options[name] = None if options[name] is None else options[name].value
    measured = options["source"] is None and options["run"] is None
    label, unit = ("check", "replays") if options["check"] else ("calibrate", "batches" if measured else "steps")
    with ProgressDisplay(label, unit=unit) as progress:
        report: Any = calibrate_profile(progress=progress, **options)
    if isinstance(report, TrustReport):
        emit({"schema": "tracekit.trust/1", **report.to_dict()}, as_json, lambda: render_trust(report))
        return
    out = options["out"]
    emit({"schema": "tracekit.calibration/1", **report.to_dict()}, as_json, lambda: render_found(report, out))
    if out is None and not as_json:
        note("the profile was not written; --out FILE keeps it")


def register(app: typer.Typer) -> None:
    app.command("calibrate", short_help="Make a latency profile, and say how far to believe it.")(calibrate)

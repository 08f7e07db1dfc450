"""``tracekit calibrate``: measure or fit a latency profile, say how far it can be trusted, write it as TOML."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli.options import DEFAULT_DB, AsJson, Db, Debug
from tracekit.cli.output import emit, note, print_table, print_text

if TYPE_CHECKING:
    from tracekit.calibration import CalibrationReport

__all__ = ["register"]


class Engine(StrEnum):
    torch = "torch"


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
    """Fit a latency profile from measured batches or a recorded run."""
    from tracekit.calibration import calibrate as calibrate_engine
    from tracekit.calibration import calibrate_run
    from tracekit.cli.progress import ProgressDisplay
    from tracekit.errors import UsageError

    if out is not None and not out.resolve().parent.is_dir():
        raise UsageError(f"--out {out}: no such folder; expected a file in one that exists")
    if run is not None:
        for name, value in (("--cases", cases), ("--model", model), ("--repeats", repeats), ("--device", device)):
            if value:
                raise UsageError(f"{name} and --from: the run is fitted as it was recorded; expected one of them")
        report = calibrate_run(run, db=db)
    else:
        with ProgressDisplay("calibrate", unit="batches") as progress:
            report = calibrate_engine(
                model=model, cases=cases or (), repeats=repeats, device=device, seed=seed, progress=progress
            )
    if out is not None:
        report.write(out)
    emit({"schema": "tracekit.calibration/1", **report.to_dict()}, as_json, lambda: _render(report, out))
    if out is None and not as_json:
        note("the profile was not written; --out FILE keeps it")


_TERMS = {
    "floor_ns": "an iteration, at least", "a_ns": "an iteration with prefill, before its tokens", "b_ns": "a prefill token",
    "c_ns": "a prefill token x context token", "d_ns": "a decoding sequence", "e_ns": "a KV token read by decodes",
    "h0_ns": "host, an iteration", "h1_ns": "host, a running sequence", "h2_ns": "host, a join or leave of the decodes",
}  # fmt: skip


def _render(report: CalibrationReport, out: Path | None) -> None:
    from dataclasses import asdict

    latency, found = asdict(report.profile.latency), report.found
    modes = {mode: asdict(each) for mode, each in found.by_mode.items()} if len(found.by_mode) > 1 else {}
    if report.batches:
        batches = [(name, ns / 1e6, round(100 * spread, 1), mode) for name, ns, spread, mode in report.batches]
        print_table(("batch", "ms", "spread %", "mode"), batches)
        print_text("")
    rows = [
        (key, what, latency[key], *(each[key] if key[0] != "h" else None for each in modes.values()))
        for key, what in _TERMS.items()
    ]
    print_table(("coefficient", "cost of", "ns", *(f"ns, {mode} alone" for mode in modes)), rows)
    print_text("")
    for what, value in report.implied():
        print_text(f"implied by {what}: {value}")
    if found.factor is not None:
        print_text(f"within a replay an iteration takes {found.factor:.3f} times as long as the same batch over and over")
    print_text(f"median error on the {found.iterations} fitted iterations: {found.error:.1%}")
    if found.held is None:
        print_text("held-out error: unknown, too few shapes")
    else:
        held = found.held
        print_text(f"held-out shapes ({len(held.shapes)}, fitted without them): median {held.median:.1%}, P90 {held.p90:.1%}")
        print_table(
            ("held-out shape", "measured ms", "predicted ms", "error %"),
            [(s.shape, s.measured_ns / 1e6, s.predicted_ns / 1e6, 100 * s.error) for s in held.shapes],
        )
    spans = ", ".join(f"{name} {low:,.0f} to {high:,.0f}" for name, (low, high) in found.ranges.items())
    print_text(f"measured range, beyond which it extrapolates: {spans}")
    if report.profile.synthetic:
        print_text('physics = "off": no peak numbers of this hardware are known to hold the coefficients against')
    if out is not None:
        print_text(f"written: {out}; tracekit replay TRACE --engine sim --profile {out}")


def register(app: typer.Typer) -> None:
    app.command()(calibrate)

"""``tracekit calibrate``: a latency profile from a model measured here, or from the iterations of a recorded run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replay_engine.calibration.outcome import Calibration, calibrate_samples, implied, profile_of
from replay_engine.calibration.samples import samples_of_rows
from replay_engine.profile import Profile
from tracekit.errors import UsageError, shown
from tracekit.store import Store, load_run, resolve_run

if TYPE_CHECKING:
    from replay_engine.torch_engine.measure import Measured

__all__ = ["CalibrationReport", "calibrate", "calibrate_run"]

Progress = Callable[[int, int, str], None]
_COLUMNS = (
    "device_ns, host_ns, prefill_tokens, prefill_qk, decode_seqs, decode_kv_tokens, running, admitted, finished, preempted,"
    " CAST(mode AS VARCHAR) AS mode, COALESCE(padded_tokens, 0) AS padded_tokens"
)


@dataclass(slots=True, kw_only=True)
class CalibrationReport:
    """The profile, the fit behind it, and the batches where any were measured: (name, measured ns, spread, mode)."""

    profile: Profile
    found: Calibration
    batches: list[tuple[str, float, float, str]] = field(default_factory=list)

    def write(self, file: str | Path) -> None:
        """The profile as TOML, for ``--profile``. ``UsageError``: the file cannot be written."""
        try:
            Path(file).write_text(self.profile.to_toml(), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--out {shown(file)}: {error.strerror or error}") from None

    def implied(self) -> list[tuple[str, str]]:
        """What the coefficients say of the hardware; nothing where the model is not known."""
        if self.profile.model is None:
            return []
        return implied(self.profile.latency, self.profile.model, None if self.profile.synthetic else self.profile.hardware)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        held = self.found.held
        return {
            "profile": self.profile.to_dict(),
            "implied": dict(self.implied()),
            "held_out": None if held is None else {
                "median_error": held.median, "p90_error": held.p90,
                "shapes": [
                    {"shape": s.shape, "measured_ns": s.measured_ns, "predicted_ns": s.predicted_ns, "error": s.error}
                    for s in held.shapes
                ],
            },
            "batches": [dict(zip(("case", "device_ns", "spread", "mode"), each, strict=True)) for each in self.batches],
        }  # fmt: skip


def calibrate(
    *,
    model: str | None = None,
    cases: Sequence[str] = (),
    repeats: int | None = None,
    device: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> CalibrationReport:
    """Measure ``model`` on the torch engine: ``cases`` as ``replay_engine.calibration.cases`` reads them, or a grid of them, and
    a short replay. ``UsageError``: torch is missing; ``ConfigError``: the model or the cases."""
    if find_spec("torch") is None:
        raise UsageError("--engine torch: torch is not installed; expected pip install 'tracekit-llm[engine]', or --from RUN")
    from replay_engine.calibration.cases import parse_cases
    from replay_engine.torch_engine.calibrate import calibrate_model, plan_for
    from replay_engine.torch_engine.engine import EngineOptions, load_model

    given = parse_cases(cases) if cases else None
    options = EngineOptions(model=model or "tiny", device=device, seed=seed)
    loaded = load_model(options)
    plan = plan_for(loaded, given)
    if repeats is not None:
        from dataclasses import replace

        plan = replace(plan, repeats=repeats)

    def on_batch(done: int, total: int) -> None:
        if progress is not None:
            progress(done, total, "batches")

    result = calibrate_model(loaded, options, plan, on_batch)
    return CalibrationReport(profile=result.profile, found=result.found, batches=[_line(each) for each in result.measured])


def _line(each: Measured) -> tuple[str, float, float, str]:
    return each.case.name, each.device_ns, each.spread, each.mode


def calibrate_run(run: str, *, db: str | Path = "tracekit.duckdb") -> CalibrationReport:
    """Fit the recorded iterations of ``run`` (a number, a name, ``last``).

    Rows do not tell who joined or left the decode set: who was admitted, finished or was preempted stands for them.
    ``UsageError``: no such run, or it kept no iterations. ``ConfigError``: too few of them.
    """
    store = Store(db)
    number = resolve_run(store, run)
    row = load_run(store, number)
    with store.read() as con:
        columns = con.execute(
            f"SELECT {_COLUMNS} FROM iterations WHERE run = ? ORDER BY replica, iteration", [number]
        ).fetchnumpy()
    if not len(columns["device_ns"]):
        raise UsageError(f"--from {shown(run)}: run {number} kept no iterations; expected a replay with --events full")
    plain = {name: values.filled(0) if hasattr(values, "filled") else values for name, values in columns.items()}
    samples = samples_of_rows(plain)
    engine = str(row.get("engine") or "an engine")
    name = shown(row.get("name") or f"run {number}")
    note = f"fitted: least squares of {len(samples)} recorded iterations of {name} ({shown(engine)})"
    host = f"{note}; joined and left estimated by admitted, finished and preempted"
    found = calibrate_samples(samples, sources={"device": note, "host": host})
    profile = profile_of(
        found, name=f"run-{number}", kind=f"fitted to the iterations of a recorded run ({shown(engine)})", model=None,
        hardware=None, peaks=False,
    )  # fmt: skip
    return CalibrationReport(profile=profile, found=found)

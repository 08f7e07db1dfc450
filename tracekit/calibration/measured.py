"""A profile of a model measured here, on the torch engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tracekit.calibration.report import CalibrationReport
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from replay_engine.torch_engine.measure import Measured

__all__ = ["calibrate"]

Progress = Callable[[int, int, str], None]


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

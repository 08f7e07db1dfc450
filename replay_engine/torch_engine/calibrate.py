"""A model calibrated on this device: exact batches, a short replay for what only a replay shows, one fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from replay_engine.calibration.cases import BatchCase, default_cases
from replay_engine.calibration.outcome import Calibration, calibrate_samples, joined, known_peaks, profile_of
from replay_engine.config import SchedulerConfig, cdiv
from replay_engine.profile import Profile
from replay_engine.torch_engine.engine import EngineOptions, engine_profile
from replay_engine.torch_engine.measure import Groups, Measured, as_samples, measure_batches, measure_replay
from replay_engine.torch_engine.model import DecoderModel

__all__ = ["Calibrated", "Plan", "calibrate_model", "plan_for"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured: ``cases``, each ``repeats`` times, and a replay of groups of requests of up to ``prompt`` and ``output``
    tokens, at most ``seats`` at a time and ``budget`` tokens an iteration; ``asynchronous`` as the scheduler is to run."""

    cases: Sequence[BatchCase]
    repeats: int
    prompt: int
    output: int
    seats: int
    budget: int
    groups: tuple[int, ...]
    asynchronous: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """The batches as measured, the fit, and the profile."""

    measured: list[Measured]
    found: Calibration
    profile: Profile


def plan_for(model: DecoderModel, cases: Sequence[BatchCase] | None = None) -> Plan:
    """What is measured without being told: seconds on a GPU, and half a minute for a tiny model on one core."""
    if model.device.type == "cuda":
        longest, seats, budget, output, groups = 16384, 256, 8192, 128, (1, 2, 4, 8, 16, 32, 64, 128)
    else:
        longest, seats, budget, output, groups = 2048, 16, 512, 48, (1, 2, 3, 4, 6, 8, 12, 16)
    longest = min(longest, model.shape.max_positions - output)
    given = cases if cases is not None else default_cases(longest=longest, seats=seats, budget=budget)
    return Plan(
        cases=given, repeats=7, prompt=longest // 2, output=output, seats=seats, budget=budget, groups=groups,
    )  # fmt: skip


def calibrate_model(model: DecoderModel, options: EngineOptions, plan: Plan, progress: Progress | None = None) -> Calibrated:
    """Measure and fit. ``ConfigError``: a batch that does not fit, too few of them, or a fit that beats the hardware."""
    graphs = model.device.type == "cuda" if options.graphs is None else options.graphs
    measured = measure_batches(model, plan.cases, repeats=plan.repeats, graphs=graphs, progress=progress)
    batches = as_samples(measured)
    longest = plan.prompt + plan.output
    config = SchedulerConfig(
        max_model_len=longest, max_num_seqs=plan.seats, max_num_batched_tokens=plan.budget, enable_prefix_caching=False,
        async_scheduling=plan.asynchronous, num_gpu_blocks=plan.seats * cdiv(longest, 16) + 2,
    )  # fmt: skip
    quickest = min(each.device_ns for each in measured)
    source = Groups(sizes=plan.groups, prompt=plan.prompt, output=plan.output, gap_ns=round(2 * quickest), seed=options.seed + 1)
    replay = measure_replay(model, source, config, options)
    samples, factor = joined(batches, replay)
    setup = engine_profile(model)
    assert setup.model is not None and setup.hardware is not None
    sources = {
        "device": f"measured: least squares of {len(batches)} exact batches (median of {plan.repeats} runs each) and"
        f" {len(replay)} iterations of a replay, on the torch engine",
        "host": f"measured: least squares of the {len(replay)} iterations of that replay",
        "model": "the model's configuration",
        "hardware": "as the driver reports it",
    }
    found = calibrate_samples(samples, factor=factor, sources=sources)
    peaks = known_peaks(setup.hardware.name, setup.hardware.memory_bytes)
    if peaks is not None:
        found.sources["hardware"] += "; peak numbers of a shipped profile of this card"
    else:
        found.sources["hardware"] += "; its peak numbers are not known, 1 stands for them"
    profile = profile_of(
        found, name=f"{setup.model.name}-measured", kind="measured on the torch engine", model=setup.model,
        hardware=replace(peaks or setup.hardware, name=setup.hardware.name), peaks=peaks is not None,
    )  # fmt: skip
    return Calibrated(measured=measured, found=found, profile=profile)

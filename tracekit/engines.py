"""Which engine runs a replay's iterations, and what follows from it for the policy: the simulator, or a real model in torch."""

from __future__ import annotations

import glob
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from replay_engine.policy import Policy, apply_set, build_policy
from replay_engine.profile import DEFAULT_PROFILE, Profile, load_profile
from tracekit.errors import UsageError, shown

if TYPE_CHECKING:
    from replay_engine.config import SchedulerConfig
    from replay_engine.kv_counted import BlockPool
    from replay_engine.rules import Rules
    from replay_engine.torch_engine.engine import Engine, EngineOptions
    from replay_engine.torch_engine.model import DecoderModel
    from replay_engine.types import EventSink, Executor
    from tracekit.replay import Setup
    from tracekit.traces.source import TraceSource

__all__ = ["ENGINES", "EngineSetup", "TorchEngine", "executor_for", "executors_for", "settle_engine"]

Own = Callable[[int, "EventSink"], "tuple[BlockPool | None, EventSink]"]
ENGINES = ("auto", "sim", "torch")
CUDA_MODEL, CPU_MODEL = "llama-3.1-8b", "tiny"
"""What ``--engine torch`` computes without ``--model``."""


@dataclass(slots=True, kw_only=True)
class TorchEngine:
    """A loaded model, and how an engine is to be built around it."""

    model: DecoderModel
    options: EngineOptions

    def build(self, config: SchedulerConfig, rules: Rules, source: TraceSource) -> Engine:
        """The engine for this trace, warmed up."""
        from replay_engine.torch_engine.engine import Extent, build_engine

        longest = int((source.prompt_tokens + source.output_tokens).max()) if source.total else 1
        output = int(source.output_tokens.max()) if source.total else 1
        limit = config.max_model_len
        extent = Extent(sequence=min(longest, limit), output=max(1, min(output, limit)), requests=max(1, source.total))
        return build_engine(self.model, config, rules, extent, self.options)


@dataclass(slots=True, kw_only=True)
class EngineSetup:
    """``torch`` is ``None`` for the simulator; ``profile`` then holds what iterations cost, else what the model and the device
    are. ``line`` says it to the user."""

    profile: Profile
    policy: Policy
    torch: TorchEngine | None
    line: str


def settle_engine(given: dict[str, Any]) -> EngineSetup:
    """Decide what runs, from ``engine``, ``model``, ``profile``, ``policy``, ``sets`` and ``seed`` as given.

    ``UsageError``: options that contradict each other, or torch that is not installed. ``ConfigError``: the model or the policy.
    """
    engine, model = given["engine"], given.get("model")
    if engine not in ENGINES:
        raise UsageError(f"--engine {shown(engine)}: expected one of {', '.join(ENGINES)}")
    if engine == "auto":
        engine = "torch" if given["profile"] is None and _cuda() else "sim"
    if engine == "torch":
        return _torch_setup(given, model)
    if model is not None:
        raise UsageError(f"--model {shown(model)}: the simulator computes no model; expected --engine torch, or --profile")
    profile = load_profile(given["profile"] or DEFAULT_PROFILE)
    line = f"engine: simulator, {profile.describe()}" + ("" if given["profile"] else "; choose another with --profile")
    return EngineSetup(profile=profile, policy=build_policy(profile, given["policy"], given["sets"]), torch=None, line=line)


def _cuda() -> bool:
    """Whether torch would find a CUDA device; torch itself is only loaded where there is a device file."""
    if not glob.glob("/dev/nvidia[0-9]*") or find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def _torch_setup(given: dict[str, Any], model: str | None) -> EngineSetup:
    if given["profile"] is not None:
        raise UsageError(f"--profile {shown(given['profile'])}: this engine measures what iterations take; expected --engine sim")
    if find_spec("torch") is None:
        raise UsageError("--engine torch: torch is not installed; expected pip install 'tracekit-llm[engine]', or --engine sim")
    from replay_engine.torch_engine.engine import EngineOptions, default_blocks, engine_profile, load_model

    name = model or (CUDA_MODEL if _cuda() else CPU_MODEL)
    options = EngineOptions(model=name, seed=given["seed"])
    loaded = load_model(options)
    profile = engine_profile(loaded)
    policy = build_policy(profile, given["policy"], given["sets"])
    if policy.estimated:
        share = policy.settings.get("gpu_memory_utilization", options.memory_share)
        blocks = default_blocks(loaded, policy.scheduler, share, max(policy.rules.fleet.replicas, 1))
        policy = apply_set(policy, [f"num_gpu_blocks={blocks}"], profile)
    assert profile.model is not None and profile.hardware is not None
    blocks = policy.scheduler.num_gpu_blocks
    line = (
        f"engine: torch, {profile.model.name} ({profile.model.dtype}) on {profile.hardware.name}, {blocks:,} KV blocks"
        + ("" if model else "; choose another with --model")
    )
    return EngineSetup(profile=profile, policy=policy, torch=TorchEngine(model=loaded, options=options), line=line)


def executor_for(setup: Setup, rules: Rules, sink: EventSink) -> tuple[Executor, BlockPool | None, EventSink]:
    """What runs the iterations, the KV pool it needs (``None``: the scheduler's choice), and where its rows go."""
    (executor,), own = executors_for(setup, rules, 1)
    return (executor, *own(0, sink)) if own is not None else (executor, None, sink)


def executors_for(setup: Setup, rules: Rules, count: int) -> tuple[list[Executor], Own | None]:
    """``count`` engines, and what a real one needs besides: its KV pool, and a sink through which its rows go. Real ones share
    the model and the device, one iteration at a time."""
    config = setup.policy.scheduler
    if setup.torch is None:
        from replay_engine.simulator import SimExecutor

        return [SimExecutor(setup.profile.latency, asynchronous=config.async_scheduling) for _ in range(count)], None
    from replay_engine.torch_engine.engine_rows import EngineSink

    engines = [setup.torch.build(config, rules, setup.source) for _ in range(count)]

    def own(number: int, sink: EventSink) -> tuple[BlockPool | None, EventSink]:
        return engines[number].pool, EngineSink(sink, engines[number].executor.notes)

    return [engine.executor for engine in engines], own

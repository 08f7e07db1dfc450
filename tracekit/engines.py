"""Which engine runs a replay's iterations, and what follows from it for the policy: the simulator, or a real model in torch."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from replay_engine.policy import Policy, apply_set
from replay_engine.profile import DEFAULT_PROFILE, Profile, load_profile
from tracekit.errors import UsageError, shown
from tracekit.policy_source import policy_from

if TYPE_CHECKING:
    from replay_engine.config import SchedulerConfig
    from replay_engine.fleet.kv_connector import KvConnector
    from replay_engine.fleet.member import Own
    from replay_engine.kv_counted import BlockPool
    from replay_engine.rules import Rules
    from replay_engine.torch_engine.engine import Engine, EngineOptions
    from replay_engine.torch_engine.model import DecoderModel
    from replay_engine.types import EventSink, Executor
    from tracekit.replay import Setup
    from tracekit.traces.source import TraceSource

__all__ = [
    "CPU_MODEL", "CUDA_MODEL", "ENGINES", "EngineSetup", "Engines", "TorchEngine", "cuda_is_there", "device_blocks",
    "engines_for", "executor_for", "loaded_engine", "settle_engine",
]  # fmt: skip

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
        engine = "torch" if given["profile"] is None and cuda_is_there() else "sim"
    if engine == "torch":
        return _torch_setup(given, model)
    if model is not None:
        raise UsageError(f"--model {shown(model)}: the simulator computes no model; expected --engine torch, or --profile")
    profile = load_profile(given["profile"] or DEFAULT_PROFILE)
    line = f"engine: simulator, {profile.describe()}" + ("" if given["profile"] else "; choose another with --profile")
    return EngineSetup(profile=profile, policy=policy_from(profile, given["policy"], given["sets"]), torch=None, line=line)


def cuda_is_there() -> bool:
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
    torch, profile = loaded_engine(model, given["seed"])
    policy = policy_from(profile, given["policy"], given["sets"])
    if policy.estimated:
        policy = apply_set(policy, [f"num_gpu_blocks={device_blocks(torch, policy)}"], profile)
    if any(fault.factor for fault in (*policy.rules.fleet.faults(), *policy.rules.pd.faults())):
        raise UsageError(
            "--slow: a real engine is as fast as it is, and what was measured is not multiplied; expected --engine sim, whose"
            " times are predicted, or --fail alone"
        )
    assert profile.model is not None and profile.hardware is not None
    line = (
        f"engine: torch, {profile.model.name} ({profile.model.dtype}) on {profile.hardware.name}, {_kv_blocks(policy)}"
        + ("" if model else "; choose another with --model")
    )
    return EngineSetup(profile=profile, policy=policy, torch=torch, line=line)


def loaded_engine(model: str | None, seed: int) -> tuple[TorchEngine, Profile]:
    """A model (``None``: the one for this machine's device), and what it and the device are as a profile without costs. Errors:
    ``ConfigError``."""
    from replay_engine.torch_engine.engine import EngineOptions, engine_profile, load_model

    options = EngineOptions(model=model or (CUDA_MODEL if cuda_is_there() else CPU_MODEL), seed=seed)
    loaded = load_model(options)
    return TorchEngine(model=loaded, options=options), engine_profile(loaded)


def device_blocks(torch: TorchEngine, policy: Policy) -> int:
    """KV blocks that each of a policy's engines has on the device they share."""
    from replay_engine.torch_engine.engine import default_blocks

    share = policy.settings.get("gpu_memory_utilization", torch.options.memory_share)
    largest = max([policy.scheduler, *policy.engines.values()], key=lambda config: config.token_budget)
    return default_blocks(torch.model, largest, share, policy.rules.engine_count)


def _kv_blocks(policy: Policy) -> str:
    if not policy.engines:
        return f"{policy.scheduler.num_gpu_blocks:,} KV blocks"
    prefill, decode = policy.engines["prefill"].num_gpu_blocks, policy.engines["decode"].num_gpu_blocks
    each = f"{prefill:,} KV blocks" if prefill == decode else f"{prefill:,} KV blocks (prefill) and {decode:,} (decode)"
    count = policy.rules.engine_count
    return f"{each} each of {count} engines; KV between them is copied, and the copies' times stand for the link's"


def executor_for(setup: Setup, rules: Rules, sink: EventSink) -> tuple[Executor, BlockPool | None, EventSink]:
    """What runs the iterations, the KV pool it needs (``None``: the scheduler's choice), and where its rows go."""
    engines = engines_for(setup, rules, [setup.policy.scheduler])
    return (engines.executors[0], *engines.own(0, sink)) if engines.own is not None else (engines.executors[0], None, sink)


@dataclass(slots=True, kw_only=True)
class Engines:
    """Executors of one replay. What real ones need besides: each its KV pool and a sink through which its rows go (``own``), and
    where some hand over to others, who copies the KV and what a block of it weighs."""

    executors: list[Executor]
    own: Own | None = None
    connector: KvConnector | None = None
    kv_block_bytes: int | None = None


def engines_for(setup: Setup, rules: Rules, configs: Sequence[SchedulerConfig]) -> Engines:
    """One engine for each of ``configs``. Real ones share the model and the device, one iteration at a time."""
    if setup.torch is None:
        return Engines(executors=_simulated(setup, configs))
    from replay_engine.torch_engine.engine_rows import EngineSink

    built = [setup.torch.build(config, rules, setup.source) for config in configs]
    started: set[int] = set()

    def own(number: int, sink: EventSink) -> tuple[BlockPool | None, EventSink]:
        engine = built[number]
        if number in started:  # it has failed and comes back
            engine.renew()
        started.add(number)
        return engine.pool, EngineSink(sink, engine.executor.notes)

    found = Engines(executors=[engine.executor for engine in built], own=own)
    if rules.pd.prefill:
        from replay_engine.torch_engine.kv_connector import TorchConnector

        found.connector, found.kv_block_bytes = TorchConnector(built, rules.pd.prefill), built[0].kv.block_bytes
    return found


def _simulated(setup: Setup, configs: Sequence[SchedulerConfig]) -> list[Executor]:
    from replay_engine.simulator import SimExecutor

    latency, noise = setup.profile.latency, setup.noise
    if noise is None:
        return [SimExecutor(latency, asynchronous=each.async_scheduling) for each in configs]
    return [noise.executor(latency, asynchronous=each.async_scheduling, replica=at) for at, each in enumerate(configs)]

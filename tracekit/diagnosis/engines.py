"""What a recorded run's engines were told to do and what the profile expects of them, from its ``runs`` row alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from replay_engine.config import SchedulerConfig
from replay_engine.policy import Policy
from replay_engine.profile import Latency, parse_profile
from tracekit.diagnosis.iteration_cost import CostForm

__all__ = ["RunEngines", "engine_settings", "run_engines"]


def engine_settings(policy: Policy, replica: int) -> SchedulerConfig:
    """The scheduler's settings of a replica: with separate pools the prefill engines come first."""
    if not policy.engines:
        return policy.scheduler
    return policy.engines["prefill" if replica < policy.rules.pd.prefill else "decode"]


@dataclass(frozen=True, slots=True)
class RunEngines:
    """``latency``: the profile's coefficients (ns)."""

    policy: Policy
    latency: Latency

    def cost(self, replica: int) -> CostForm | None:
        """What an iteration of a replica is expected to take; ``None`` where the profile has no times."""
        if not self.latency.known:
            return None
        return CostForm(self.latency, engine_settings(self.policy, replica).async_scheduling)

    def reserved_blocks(self, replica: int) -> int:
        """KV blocks that admission leaves free (the watermark)."""
        config = engine_settings(self.policy, replica)
        return int(config.watermark * config.num_gpu_blocks)


def run_engines(row: Mapping[str, Any]) -> RunEngines | None:
    """From a ``runs`` row, its JSON columns as values; ``None`` where the run kept no policy or no profile."""
    if row.get("policy") is None or row.get("setup") is None:
        return None
    return RunEngines(Policy.from_dict(row["policy"]), parse_profile(row["setup"]["profile"]).latency)

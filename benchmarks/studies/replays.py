"""One replay of a study: the settings, and the figures that studies compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.studies.traffic import Traffic
from replay_engine.combinations import check
from replay_engine.config import SchedulerConfig
from replay_engine.loop import Replay
from replay_engine.profile import load_profile
from replay_engine.rules import Rules
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.totals import RunTotals

__all__ = ["PROFILE", "Run", "engine", "highest", "replayed"]

PROFILE = load_profile("h100")


def engine(**knobs: Any) -> SchedulerConfig:
    """The settings all studies start from: synchronous, no prefix cache, 8,192 tokens at most."""
    plain: dict[str, Any] = {
        "max_num_batched_tokens": 8192, "max_num_seqs": 256, "max_model_len": 8192, "num_gpu_blocks": 28_000,
        "enable_prefix_caching": False, "async_scheduling": False,
    }  # fmt: skip
    return SchedulerConfig(**(plain | knobs))


@dataclass(frozen=True, kw_only=True)
class Run:
    """Outcomes in the order of the requests, the event tables where kept, and the sums."""

    outcomes: npt.NDArray[np.void]
    sink: MemorySink
    totals: RunTotals

    @property
    def requests(self) -> int:
        return len(self.outcomes)

    def seconds(self, column: str, quantile: float) -> float:
        """A quantile of a time of the outcomes, s."""
        return float(np.quantile(self.outcomes[column], quantile)) / 1e9

    @property
    def normalised_s(self) -> float:
        """Median over requests of E2E per output token, s."""
        return float(np.median(self.outcomes["e2e_ns"] / self.outcomes["output_tokens"])) / 1e9

    @property
    def requests_per_s(self) -> float:
        """From the first arrival to the last token."""
        return self.requests / (float(self.outcomes["last_token_ns"].max() - self.outcomes["arrival_ns"].min()) / 1e9)

    @property
    def running_mean(self) -> float:
        """Sequences running, over time that anything ran."""
        return self.totals.running_ns / self.totals.busy_ns


def replayed(traffic: Traffic, config: SchedulerConfig, rules: Rules | None = None, *, events: bool = False) -> Run:
    """Replay to the end. ``events``: keep all tables, else only outcomes. A replay that does not finish is an error."""
    rules = Rules() if rules is None else rules
    check(config, rules)
    sink = MemorySink()
    executor = SimExecutor(PROFILE.latency, asynchronous=config.async_scheduling)
    run = Replay(traffic, config, executor, sink, mode="full" if events else "outcomes", rules=rules)
    how = run.run()
    outcomes = sink.table("outcomes")
    if how != "finished" or run.totals.finished != traffic.total:
        raise RuntimeError(f"the replay ended {how} with {run.totals.finished} of {traffic.total} requests: no study")
    return Run(outcomes=outcomes[np.argsort(outcomes["request"])], sink=sink, totals=run.totals)


def highest(rates: Sequence[float], good: Callable[[float], bool], rounds: int) -> float:
    """The highest rate at which ``good`` holds: the highest of ``rates`` (rising), then bisection towards the next. 0: none.

    It need not hold at low rates: static batching waits for its batch to fill.
    """
    for at in range(len(rates) - 1, -1, -1):
        if good(rates[at]):
            break
    else:
        return 0.0
    if at + 1 == len(rates):
        return rates[at]
    low, high = rates[at], rates[at + 1]
    for _ in range(rounds):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if good(middle) else (low, middle)
    return low

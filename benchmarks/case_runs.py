"""One replay of a case: built from its recipe as files, read back, replayed with every row kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from replay_engine.config import SchedulerConfig
from replay_engine.fleet.driver import FleetReplay
from replay_engine.fleet.pd_driver import PdReplay
from replay_engine.fleet.routers import make_router
from replay_engine.loop import Replay
from replay_engine.policy import Policy, load_policy
from replay_engine.profile import Latency, load_profile
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.totals import RunTotals
from replay_engine.types import Phase, RequestState
from tracekit.errors import UsageError
from tracekit.generators.recipe import build_case
from tracekit.generators.recipe_file import read_recipe
from tracekit.traces.load import read_trace
from tracekit.traces.source import TraceSource

__all__ = ["CASES", "DATA", "CaseRun", "buildable", "redrawn", "runs_of"]

DATA = Path(__file__).resolve().parents[1] / "tests" / "data"
CASES = DATA / "cases"
Rows = npt.NDArray[np.void]
Floats = npt.NDArray[np.float64]


@dataclass(kw_only=True)
class CaseRun:
    """Outcomes in the order of the requests, all event tables, the sums.

    With several engines rows have a ``replica``, prefill engines first. ``totals`` are those of all replicas of a fleet.
    """

    case: str
    variant: str
    policy: Policy
    source: TraceSource
    outcomes: Rows
    totals: RunTotals
    sink: MemorySink = field(repr=False)

    @cached_property
    def iterations(self) -> Rows:
        return self.sink.table("iterations")

    @cached_property
    def spans(self) -> Rows:
        """In the order of a request's life, request after request."""
        spans = self.sink.table("spans")
        return spans[np.lexsort((spans["start_ns"], spans["request"]))]

    def of_class(self, name: str | None) -> npt.NDArray[np.bool_]:
        """Which requests are of a class; all for ``None``."""
        if name is None:
            return np.ones(len(self.outcomes), bool)
        return np.asarray(self.source.class_) == list(self.source.class_names).index(name)

    def seconds_in(self, phase: Phase) -> Floats:
        """Time of each request in a phase, s."""
        spans = self.spans[self.spans["phase"] == int(phase)]
        lengths = (spans["end_ns"] - spans["start_ns"]).astype(np.float64)
        return np.bincount(spans["request"], weights=lengths, minlength=len(self.outcomes)) / 1e9

    @cached_property
    def token_gaps_s(self) -> Floats:
        """All gaps between two tokens of a request, of all requests: from spans and iterations alone.

        Errors: ``RuntimeError`` where they do not give each request its tokens and its longest gap.
        """
        ends = self.iterations["start_ns"] + self.iterations["duration_ns"]
        first = int(self.iterations["iteration"][0])
        edges = np.searchsorted(self.spans["request"], np.arange(len(self.outcomes) + 1))
        found = []
        for k, row in enumerate(self.outcomes):
            gaps = np.diff(_token_times(self.spans[edges[k] : edges[k + 1]], ends, first))
            if len(gaps) != row["output_tokens"] - 1 or gaps.max(initial=-1) != row["max_gap_ns"]:
                raise RuntimeError(f"{self.case}, {self.variant}: the spans of request {k} do not give its tokens")
            found.append(gaps)
        return np.concatenate(found) / 1e9


def _token_times(spans: Rows, ends: npt.NDArray[np.int64], first: int) -> npt.NDArray[np.int64]:
    """When a request's tokens came: at the end of each iteration it decodes in, and of a prefill that nothing holds up."""
    times: list[npt.NDArray[np.int64]] = []
    after = [*spans["phase"][1:].tolist(), int(Phase.decode)]
    for span, following in zip(spans, after, strict=True):
        if span["phase"] == Phase.decode:
            times.append(ends[span["start_iteration"] - first : span["end_iteration"] - first + 1])
        elif span["phase"] == Phase.prefill and following in (Phase.decode, Phase.stalled):
            times.append(span["end_ns"].reshape(1))
    return np.concatenate(times)


def buildable() -> list[str]:
    """Names of the recipes that build; some may need parts that are not there yet."""
    found = []
    for path in sorted(CASES.glob("*.yaml")):
        try:
            read_recipe(path)
        except UsageError:
            continue
        found.append(path.stem)
    return found


def redrawn(case: str, draw: int, folder: Path) -> Path:
    """The recipe with another seed; draw 0 is the recipe's own."""
    text = (CASES / f"{case}.yaml").read_text(encoding="utf-8")
    path = folder / f"{case}.yaml"
    path.write_text(re.sub(r"^seed: (\d+)", lambda found: f"seed: {int(found[1]) + 1000 * draw}", text, flags=re.M), "utf-8")
    return path


def runs_of(case: str, folder: Path, draw: int = 0) -> Iterator[CaseRun]:
    """The base and every variant, built in ``folder`` and replayed. A replay that does not finish is an error."""
    built = build_case(redrawn(case, draw, folder), folder / case)
    for name, own in {"base": {}, **built.variants}.items():
        profile = load_profile(own.get("profile", built.profile))
        policy = load_policy(own.get("policy", built.policy), profile)
        source = TraceSource.from_loaded(read_trace(own.get("trace", built.trace)))
        sink = MemorySink()
        how, totals = _replayed(source, policy, profile.latency, sink)
        outcomes = sink.table("outcomes")
        outcomes = outcomes[np.argsort(outcomes["request"])]
        finished = int((outcomes["state"] == RequestState.finished).sum())
        if how != "finished" or finished != source.total or len(outcomes) != source.total:
            raise RuntimeError(f"{case}, {name}: ended {how} with {finished} of {source.total} requests")
        yield CaseRun(case=case, variant=name, policy=policy, source=source, outcomes=outcomes, totals=totals, sink=sink)


def _replayed(source: TraceSource, policy: Policy, latency: Latency, sink: MemorySink) -> tuple[str, RunTotals]:
    """How it ended, and the sums."""

    def executor(config: SchedulerConfig) -> SimExecutor:
        return SimExecutor(latency, asynchronous=config.async_scheduling)

    config, rules = policy.scheduler, policy.rules
    replay: Replay | FleetReplay | PdReplay
    if rules.fleet.active:
        replicas = rules.fleet.replicas
        router = make_router(rules.fleet.router, replicas, blocks=config.usable_blocks)
        replay = FleetReplay(source, config, [executor(config) for _ in range(replicas)], router, sink, rules=rules)
    elif rules.pd.prefill:
        engines = [*["prefill"] * rules.pd.prefill, *["decode"] * rules.pd.decode]
        executors = [executor(policy.engines[pool]) for pool in engines]
        block = (rules.kv_link.kv_bytes_per_token or 0) * config.block_size
        replay = PdReplay(source, policy.engines, executors, sink, rules=rules, kv_block_bytes=block, seed=rules.pd.seed)
    else:
        replay = Replay(source, config, executor(config), sink, rules=rules)
    return replay.run(), replay.totals

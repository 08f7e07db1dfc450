"""Every configuration of the tuner's three knobs on windows of four production traces: what a search is held against.

Results are appended to files under ``--cache`` and found again there, so that a study of searches costs no replay. A file says
which engine made it; ``--fresh`` replays all of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.workloads import TRACES
from replay_engine.policy import Policy, build_policy
from replay_engine.profile import DEFAULT_PROFILE, Profile, load_profile
from tracekit.experiments.layout import lay_windows
from tracekit.experiments.plan import engine_digest
from tracekit.metrics import SloTable, parse_slo
from tracekit.store import Store
from tracekit.traces.load import load_trace
from tracekit.traces.slicing import Slice
from tracekit.traces.source import TraceSource
from tuner.alike import rest_of
from tuner.cells import Cell, CellFile, Replays, Result, replay_cell
from tuner.objective import parts_met
from tuner.proofs import PROOF, proof_of
from tuner.proposing import PARTS
from tuner.space import Point, Space
from tuner.space_choice import choose_space
from tuner.windows import StudyWindow, WindowSources, split_windows, windows_of

__all__ = ["PART", "SECOND", "WORKLOADS", "Grid", "Prepared", "Workload", "load_grid", "prepare"]

SECOND = 1_000_000_000
LEAD_IN = 20 * SECOND
SEARCH, HELD = 6, 6
"""Windows to search on, and hold-out windows, of which every configuration's value is replayed."""
PART = {"where": None, "thin": None, "by": None, "spread_ticks": False, "sessions": None, "seed": 0, "limit": None}
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A trace at a rate and an SLO at which configurations differ: the best of the grid attains 70 to 95 %, the median one less
    than 85 % of it, the current policy less than 98 %. ``requests``: about so many a window."""

    name: str
    file: str
    rate: float
    slo: str
    requests: int
    profile: str = DEFAULT_PROFILE


WORKLOADS = {
    each.name: each
    for each in (
        Workload(name="azure_code", file="AzureLLMInferenceTrace_code.csv", rate=2.0, slo="ttft=1s,tpot=25ms", requests=200),
        Workload(name="azure_conv", file="AzureLLMInferenceTrace_conv.head13k.csv", rate=3.5, slo="ttft=1s,tpot=22ms",
                 requests=400),
        Workload(name="mooncake", file="mooncake_conversation_trace.jsonl.gz", rate=0.3, slo="ttft=5s,tpot=20ms", requests=120),
        Workload(name="tenants", file="vtc_arena_27clients.derived.csv", rate=29.0, slo="ttft=1s,tpot=50ms", requests=200,
                 profile="l40s-llama-3.1-8b"),
    )
}  # fmt: skip


@dataclass(kw_only=True)
class Prepared:
    """A workload with everything that a replay of it needs."""

    workload: Workload
    store: Store
    profile: Profile
    policy: Policy
    slo: SloTable
    space: Space
    search: list[StudyWindow]
    held: list[StudyWindow]

    def cell(self, point: Point, window: StudyWindow) -> Cell:
        return Cell(window=window, policy=self.space.policy(self.policy, point, self.profile), profile=self.profile, slo=self.slo)


def prepare(workload: Workload, cache: Path) -> Prepared:
    """Load the trace, and lay the windows."""
    cache.mkdir(parents=True, exist_ok=True)
    store = Store(cache / f"{workload.name}.duckdb")
    if not store.exists():
        with store.write("load a trace") as con:
            load_trace(con, [str(TRACES / workload.file)])
    with store.read() as con:
        number, name, digest, span = con.execute("SELECT trace, name, digest, span_ns FROM traces").fetchall()[0]
        source = TraceSource.from_database(con, number, Slice())
    profile = load_profile(workload.profile)
    policy = build_policy(profile)
    layout = lay_windows(source.start_ns, SEARCH + HELD, length_ns=int(workload.requests / source.total * span),
                         lead_in_ns=LEAD_IN)  # fmt: skip
    windows = windows_of(layout, source, trace=number, name=name, digest=digest, lead_in_ns=LEAD_IN, part=PART,
                         rate_scale=workload.rate)  # fmt: skip
    search, held = split_windows(windows, HELD, "alternate")
    return Prepared(workload=workload, store=store, profile=profile, policy=policy, slo=SloTable(default=parse_slo(workload.slo)),
                    space=choose_space(None, policy, profile, source), search=search, held=held)  # fmt: skip


@dataclass(kw_only=True)
class Grid:
    """Goodput (requests/s) of every point on every window held out, ``[points, windows]``, and requests met as a share of all.
    ``found``: a point's results by window; ``rests``: ``alike.rest_of`` its policy."""

    points: list[Point]
    held: Floats
    attained: Floats
    engine: str
    found: list[list[Result]]
    rests: list[str | None]

    def learnt(self, at: int, windows: int) -> dict[str, Any]:
        """What a trial of a point tells a search after so many windows."""
        results = self.found[at][:windows]
        proof = proof_of(results, self.rests[at])
        return {PARTS: parts_met(results), **({} if proof is None else {PROOF: proof})}


def load_grid(prepared: Prepared, cache: Path, jobs: int) -> Grid:
    """The whole grid on the windows held out; what is missing of it is replayed by ``jobs`` processes."""
    points, windows = list(prepared.space.points()), prepared.held
    file = CellFile(cache / f"{prepared.workload.name}.jsonl")
    if any(file.get(_key(p, w)) is None for p in points for w in windows):
        command = [sys.executable, "-m", "benchmarks.tuner_grid", prepared.workload.name, str(cache)]
        children = [subprocess.Popen([*command, str(job), str(jobs)]) for job in range(jobs)]
        if sum(child.wait() != 0 for child in children):
            raise RuntimeError(f"{prepared.workload.name}: a process that replays the grid failed")
    found = [[_known(file, p, w) for w in windows] for p in points]
    goodput = np.array([[each["met"] / each["window_s"] for each in row] for row in found])
    attained = np.array([sum(e["met"] for e in row) / sum(e["n"] for e in row) for row in found])
    policies = [prepared.space.policy(prepared.policy, point, prepared.profile) for point in points]
    return Grid(points=points, held=goodput, attained=attained, engine=found[0][0]["engine"], found=found,
                rests=[rest_of(policy) for policy in policies])  # fmt: skip


def _known(file: CellFile, point: Point, window: StudyWindow) -> Result:
    result = file.get(_key(point, window))
    assert result is not None
    return result


def _key(point: Point, window: StudyWindow) -> str:
    return json.dumps([list(point.values()), window.begin_ns, window.end_ns, window.rate_scale])


def _fill(name: str, cache: Path, job: int, jobs: int) -> None:
    """This process's share of a grid."""
    prepared = prepare(WORKLOADS[name], cache)
    file = CellFile(cache / f"{name}.jsonl")
    replays = Replays(WindowSources(prepared.store), file)
    for at, point in enumerate(prepared.space.points()):
        for window in prepared.held if at % jobs == job else ():
            if file.get(_key(point, window)) is None:
                cell = prepared.cell(point, window)
                result = replays.proved(cell) or replay_cell(cell, replays.sources)
                file.put(_key(point, window), {**result, "engine": engine_digest()})


def main(argv: Sequence[str] | None = None) -> None:
    """``NAME CACHE JOB JOBS``: replay a share of one grid."""
    name, cache, job, jobs = sys.argv[1:] if argv is None else argv
    _fill(name, Path(cache), int(job), int(jobs))


if __name__ == "__main__":
    main()

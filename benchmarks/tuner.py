"""The tuner against the exhaustive grid, against random search, against the clock, and its intervals against new traffic.

``python -m benchmarks.tuner [--json] [--cache FOLDER] [--jobs N] [--only PART ...]``. Parts: ``grid`` (each of four production
traces: all configurations on the windows held out; best found in 60 trials, proved there), ``random`` (trials until 98 % of the
best, 20 seeds each, on the windows replayed exhaustively), ``speed``, ``workers``, ``intervals`` (40 studies of fresh traffic).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState, create_trial

from benchmarks.figures import Figure, Report, reference_figure, run_main
from benchmarks.process import run_python
from benchmarks.tuner_grid import PART, SECOND, WORKLOADS, Grid, Prepared, Workload, load_grid, prepare
from benchmarks.workloads import TRACES
from replay_engine.policy import build_policy
from replay_engine.profile import load_profile
from tracekit.cli.main import main as tracekit_main
from tracekit.experiments.layout import lay_windows
from tracekit.metrics import SloTable, parse_slo
from tracekit.store import Store
from tracekit.traces.load import load_trace
from tracekit.traces.slicing import Slice
from tracekit.traces.source import TraceSource
from tuner.cells import CellFile, Replays, Result
from tuner.gains import gain_of
from tuner.lookup import Lookup
from tuner.objective import goodput
from tuner.plan import TunedTrace, TunePlan
from tuner.plateau import choose
from tuner.proofs import Proofs
from tuner.proposing import FULL, PointSampler, distributions_of
from tuner.search import MARGINS, Budget, Searcher
from tuner.space import Point
from tuner.space_choice import choose_space
from tuner.study import open_study
from tuner.windows import StudyWindow, WindowSources, split_windows, windows_of

__all__ = ["main", "measure"]

SHARE, TRIALS, SEEDS, STUDIES, WORKED = 0.98, 60, 20, 40, 4
PEER = 16 / 39.6
"""Trials per CPU second of another simulator's own recommender, 16 trials of 1,000 requests, measured on a like machine."""
PARTS = ("grid", "random", "speed", "workers", "intervals")
SYNTH = ["--requests", "1400", "--arrival", "gamma:rate=8,cv=1.5", "--input", "lognormal:median=2500,sigma=0.8", "--output",
         "lognormal:median=60,sigma=0.5"]  # fmt: skip
SPEED = """
import json, sys, time
began = time.process_time()
from tuner import tune
db, trace, trials, workers = sys.argv[1:]
report = tune(trace, db=db, slo="ttft=1s,tpot=12ms", rate_scale=2.7, windows={windows}, holdout={holdout}, trials=int(trials),
              workers=int(workers), fresh=True{more})
import resource
own, theirs = (sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
document = report.document
print(json.dumps({{"own_s": own, "workers_s": theirs, "wall_s": document["wall_s"], "trials": document["trials"],
                  "replayed": report.replayed, "requests": sum(w["requests"] for w in document["windows"]["search"])}}))
"""


def _plan(prepared: Prepared, seed: int) -> TunePlan:
    windows = {"search": tuple(prepared.search), "held": tuple(prepared.held)}
    trace = TunedTrace(name=prepared.workload.name, digest="", lines=("",), **windows)
    return TunePlan(
        trace=trace, also=(), policy_document=prepared.policy.to_dict(), profile_text=prepared.profile.to_toml(),
        slo_document=prepared.slo.to_dict(), space_document=prepared.space.to_dict(), objective_names=("goodput",), target=0.9,
        price=None, cards=1, seed=seed, accept_degraded=False,
    )  # fmt: skip


def _searched(plan: TunePlan, replays: Replays, folder: Path, trials: int) -> tuple[Point, Point]:
    """A whole search; the best point it found, and the one that the tuner takes: of those that cannot be told apart from the
    best, the one nearest to the current policy."""
    study = open_study(plan, folder, None)
    study.first()
    Searcher(study, replays).run(Budget(trials=trials), lambda _: None, lambda: False)
    found = study.trials()
    best = max((trial for trial in found if trial.state == TrialState.COMPLETE), key=lambda trial: trial.values[0])
    return dict(best.params), choose(Lookup(plan, replays), found)[0].point


def _grid_figures(prepared: Prepared, grid: Grid, cache: Path) -> dict[str, Figure]:
    """What 60 trials on the search windows find, held against all configurations on the others."""
    name = prepared.workload.name
    held = grid.held.mean(axis=1)
    best = int(held.argmax())
    with tempfile.TemporaryDirectory() as folder:
        replays = Replays(WindowSources(prepared.store), CellFile(cache / f"{name}.searched.jsonl"))
        found, taken = _searched(_plan(prepared, 0), replays, Path(folder), TRIALS)
    share, kept = (float(held[grid.points.index(point)] / held[best]) for point in (found, taken))
    what = f"{len(grid.points):,} configurations, x{prepared.workload.rate:g}, {prepared.workload.slo}"
    median = float(np.median(held) / held[best])
    current = float(held[grid.points.index(prepared.space.point_of(prepared.policy))] / held[best])
    return {
        f"{name}_share_of_best": Figure(value=share, unit="", target=SHARE, note=f"{TRIALS} trials found {list(found.values())};"
                                        f" best of {what}: {list(grid.points[best].values())}"),
        f"{name}_recommended_share": Figure(value=kept, unit="", note=f"{list(taken.values())}: of what cannot be told from the"
                                            " best found, the nearest to the current policy"),
        f"{name}_best_attains": Figure(value=float(grid.attained[best]), unit="", target=0.70, note="0.70 to 0.95 asked"),
        f"{name}_best_attains_at_most": Figure(value=float(grid.attained[best]), unit="", target=0.95, at_most=True),
        f"{name}_median_of_best": Figure(value=median, unit="", target=0.85, at_most=True),
        f"{name}_current_of_best": Figure(value=current, unit="", target=SHARE, at_most=True, note="where a search begins"),
    }  # fmt: skip


def _random_figures(prepared: Prepared, grid: Grid) -> dict[str, Figure]:
    """Trials until 98 % of the best on windows of which every value is known: the tuner's search and a random one."""
    goal = SHARE * float(grid.held.mean(axis=1).max())
    index = {tuple(point.items()): at for at, point in enumerate(grid.points)}
    first = prepared.space.point_of(prepared.policy)

    def ours(seed: int) -> Callable[[list[Any], np.random.Generator], Point]:
        return PointSampler(prepared.space, seed, known=Proofs(_plan(prepared, seed)).known).propose

    def random(_: int) -> Callable[[list[Any], np.random.Generator], Point]:
        def propose(trials: list[Any], rng: np.random.Generator) -> Point:
            tried = {index[tuple(t.params.items())] for t in trials}
            return grid.points[int(rng.choice([at for at in range(len(grid.points)) if at not in tried]))]

        return propose

    found = {}
    for who, make in (("tuner", ours), ("random", random)):
        found[who] = [_trials_to(goal, grid, index, prepared, first, make(seed), seed) for seed in range(SEEDS)]
    medians = {who: statistics.median(counts) for who, counts in found.items()}
    quartiles = {who: [float(q) for q in np.percentile(counts, [25, 75])] for who, counts in found.items()}
    name = prepared.workload.name
    return {
        f"{name}_trials_to_98": Figure(value=medians["tuner"], unit="trials", note=f"median of {SEEDS} seeds, quartiles"
                                       f" {quartiles['tuner']}; random {medians['random']:g} {quartiles['random']}"),
        f"{name}_trials_over_random": Figure(value=medians["tuner"] / medians["random"], unit="", target=0.5, at_most=True),
    }  # fmt: skip


def _trials_to(goal: float, grid: Grid, index: dict[Any, int], prepared: Prepared, first: Point,
               propose: Callable[[list[Any], np.random.Generator], Point], seed: int) -> int:  # fmt: skip
    """Trials pruned as the tuner prunes; both searches begin with the current policy."""
    trials: list[Any] = []
    best: Any = None
    distributions = distributions_of(prepared.space)
    margins = [1 - MARGINS[min(at, len(MARGINS) - 1)] for at in range(grid.held.shape[1])]
    for number in range(len(grid.points)):
        point = first if number == 0 else propose(trials, np.random.default_rng([seed, number]))
        at = index[tuple(point.items())]
        row = grid.held[at]
        so_far = np.cumsum(row) / np.arange(1, len(row) + 1)
        cut = next((w for w in range(len(row) - 1) if best is not None and so_far[w] < margins[w] * best[w]), None)
        if cut is None:
            trial = create_trial(params=point, distributions=distributions, value=float(so_far[-1]),
                                 user_attrs=grid.learnt(at, len(row)))  # fmt: skip
            best = so_far if best is None or so_far[-1] > best[-1] else best
        else:
            full = {FULL: float(best[-1] * so_far[cut] / best[cut]), **grid.learnt(at, cut + 1)}
            trial = create_trial(state=TrialState.PRUNED, params=point, distributions=distributions, user_attrs=full)
        trial.number = number
        trials.append(trial)
        if so_far[-1] >= goal and cut is None:
            return number + 1
    return len(grid.points)


def _speed(scratch: Path) -> dict[str, Figure]:
    """A whole ``tune`` of 60 trials on one window of about a thousand requests, imports and plan included."""
    trace = TRACES / "AzureLLMInferenceTrace_conv.head13k.csv"
    code = SPEED.format(windows=1, holdout=0, more="")
    run_python(["-c", code, str(scratch / "s.duckdb"), str(trace), "2", "1"], scratch)  # the trace is loaded before the clock
    name = "AzureLLMInferenceTrace_conv.head13k"
    found = json.loads(run_python(["-c", code, str(scratch / "s.duckdb"), name, str(TRIALS), "1"], scratch).out)
    if sum(found["trials"][state] for state in ("complete", "pruned")) != TRIALS:
        raise RuntimeError(f"{found['trials']}: not {TRIALS} trials, no figure")
    rate = TRIALS / found["own_s"]
    note = f"{found['requests']:,} requests, {found['replayed']} replays, {found['own_s']:.1f} CPU s with imports and the answer"
    return {"trials_per_cpu_s": Figure(value=rate, unit="1/s", note=note),
            "trials_over_peer": Figure(value=rate / PEER, unit="x", target=20,
                                       reference="another simulator's recommender, 16 trials in 39.6 CPU s")}  # fmt: skip


def _workers(scratch: Path) -> dict[str, Figure]:
    """One process against two workers, the trace loaded before. Several seeds: what a study replays is a seed's luck too."""
    trace, db = TRACES / "AzureLLMInferenceTrace_conv.head13k.csv", str(scratch / "w.duckdb")
    found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    codes = [SPEED.format(windows=4, holdout=4, more=f", seed={seed}") for seed in range(WORKED)]
    run_python(["-c", codes[0], db, str(trace), "2", "1"], scratch)
    for at, code in enumerate(codes):  # in turns: a machine that gets slower does so for both
        for n in ((1, 2), (2, 1))[at % 2]:
            found[n].append(json.loads(run_python(["-c", code, db, trace.stem, str(TRIALS), str(n)], scratch).out))
    one, two = ({name: sum(each[name] for each in rows) for name in ("own_s", "workers_s", "wall_s")} for rows in found.values())
    bound = one["own_s"] / (two["own_s"] + two["workers_s"] / 2)
    return {
        "speedup_2_workers": Figure(value=one["wall_s"] / two["wall_s"], unit="x", target=1.8, reference="wall time, whole tune"),
        "speedup_2_workers_by_cpu": Figure(value=bound, unit="x", target=1.8, note=f"{WORKED} studies, CPU s: one process"
                                           f" {one['own_s']:.1f}; two: parent {two['own_s']:.1f}, workers {two['workers_s']:.1f}",
                                           reference="CPU of one process over the parent's and an even share of the workers'"),
    }  # fmt: skip


def _study(scratch: Path, seed: int) -> tuple[bool, float]:
    """A study of fresh traffic: whether new windows lie in its interval, and the interval's width over the gain."""
    path = scratch / f"{seed}.jsonl"
    if tracekit_main(["synth", str(path), *SYNTH, "--seed", str(1000 + seed)]) != 0:
        raise RuntimeError("no traffic")
    store = Store(scratch / f"{seed}.duckdb")
    with store.write("load a trace") as con:
        load_trace(con, [str(path)])
    with store.read() as con:
        source = TraceSource.from_database(con, 1, Slice())
    layout = lay_windows(source.start_ns, 14, length_ns=int(source.start_ns.max() / 14 * 0.8), lead_in_ns=2 * SECOND)
    windows = windows_of(layout, source, trace=1, name="t", digest=str(seed), lead_in_ns=2 * SECOND, part=PART)
    policy = build_policy(profile := load_profile("h100"))
    search, held = split_windows(windows[:9], 5, "alternate")
    base = Prepared(
        workload=Workload(name="fresh", file="", rate=1.0, slo="stall=60ms", requests=0), store=store, profile=profile,
        policy=policy, slo=SloTable(default=parse_slo("stall=60ms")), search=search, held=held,
        space=choose_space(None, policy, profile, source),
    )  # fmt: skip
    plan = _plan(base, seed)
    replays = Replays(WindowSources(store), CellFile(scratch / f"{seed}.cells"))
    _, taken = _searched(plan, replays, scratch / f"{seed}.study", 16)

    def results(point: Point, chosen: Sequence[StudyWindow]) -> list[Result]:
        return [replays.result(plan.cell(plan.policy_at(point), window)) for window in chosen]

    searched = results(plan.current, base.search), results(taken, base.search)
    gain = gain_of(results(plan.current, base.held), results(taken, base.held), searched)
    before, after = (goodput(results(point, windows[9:14])) for point in (plan.current, taken))
    assert gain.estimate is not None and gain.low is not None and gain.high is not None
    return gain.low <= after / before - 1 <= gain.high, (gain.high - gain.low) / max(abs(gain.estimate), 1e-9)


def _intervals(scratch: Path, jobs: int) -> dict[str, Figure]:
    """Studies of fresh traffic, shared out among ``jobs`` processes."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_quietly) as pool:
        found = list(pool.map(_study, [scratch] * STUDIES, range(STUDIES)))
    inside = sum(each for each, _ in found) / len(found)
    widths = statistics.median(width for _, width in found)
    return {
        "interval_covers": Figure(value=inside, unit="", target=0.80, note=f"{len(found)} studies, new windows each"),
        "interval_width": Figure(value=widths, unit="x the gain", target=1.5, at_most=True, note="median"),
    }


def _quietly() -> None:
    """In each process that carries out studies."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sys.stdout = sys.stderr  # what ``synth`` prints is no figure


def measure(options: argparse.Namespace) -> Report:
    """All figures of the parts asked for."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    parts: dict[str, Callable[[Path], dict[str, Figure]]] = {
        "speed": _speed, "workers": _workers, "intervals": lambda folder: _intervals(folder, options.jobs),
    }  # fmt: skip
    report = Report(benchmark="tuner", notes=["goodput of all windows together; hold-out windows are never searched"])
    cache = Path(options.cache)
    for name in options.traces if {"grid", "random"} & set(options.only) else ():
        workload = WORKLOADS[name]
        prepared = prepare(workload, cache)
        grid = load_grid(prepared, cache, options.jobs)
        report.notes.append(f"{workload.name}: {workload.file}, profile {workload.profile}, engine {grid.engine[:12]}")
        if "grid" in options.only:
            report.figures |= _grid_figures(prepared, grid, cache)
        if "random" in options.only:
            report.figures |= _random_figures(prepared, grid)
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as folder:
        for part, run in parts.items():
            if part in options.only:
                report.figures |= run(Path(folder))
    report.figures["python_reference"] = reference_figure()
    return report


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cache", default=str(Path(tempfile.gettempdir()) / "tracekit-tuner-grid"), help="where grids are kept")
    parser.add_argument("--jobs", type=int, default=2, help="processes that replay a grid, or carry out studies")
    parser.add_argument("--traces", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS), help="grids to measure on")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure")


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run_main("tuner", "The tuner against grid, random search, clock and new traffic.", measure, argv, _options)


if __name__ == "__main__":
    main()

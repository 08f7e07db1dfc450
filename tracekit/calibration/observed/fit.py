"""A latency profile from latencies observed in a trace: the coefficients, and where not given the limits, under which a replay of
the trace shows what was observed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from replay_engine.policy import apply_set
from replay_engine.profile import Profile
from tracekit.calibration.observed.first_guess import first_guess
from tracekit.calibration.observed.limits import Crowd, Limit, crowd_of
from tracekit.calibration.observed.observations import COUNTING, Observations
from tracekit.calibration.observed.replays import Replayer
from tracekit.calibration.observed.scan import ALONE, Scan, needed, scan_near, scan_plans, scan_values
from tracekit.calibration.observed.search import LONG, Problem, Trial, descend, refine
from tracekit.calibration.observed.settings import Known
from tracekit.calibration.observed.shared_prefix import begin_alike
from tracekit.calibration.observed.shared_scan import scan_shared
from tracekit.calibration.observed.skew import Skew, with_skew
from tracekit.calibration.observed.telling import Told, telling
from tracekit.calibration.observed.terms import CLIENTS, LEAST, NAMES, Expected, Vector, expected_from
from tracekit.errors import InputError
from tracekit.traces.load import LoadedTrace
from tracekit.traces.said_prefix import NOTHING, Beginning
from tracekit.traces.slicing import Slice
from tracekit.traces.source import TraceSource

__all__ = ["ObservedFit", "fit_observed", "source_of"]

FEWEST = 10
MANY, HEAD = 5000, 2500
"""A trace with more requests is first fitted by its beginning."""
STEPS, BEGUN, SOME = 40_000, 15_000, 50
"""So is one with about as many iterations more, by about as many of them, where they hold some requests to look at."""
LONGER = 300_000
"""Iterations beyond which a few dozen replays for one limit are."""
BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
Say = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class ObservedFit:
    """What was found. ``problem`` and ``best`` hold the settings it holds under, the last replay, and how far off that is."""

    problem: Problem
    best: Trial
    told: list[Told]
    limits: list[Limit]
    starts: list[tuple[str, float]]
    replays: int
    shared_prefix: Beginning = NOTHING
    """What the prompts of the trace begin alike with, as was said or found."""
    skew: Skew | None = None
    """What the latencies say of the longest contexts' cost beyond what the fit has of it; ``None``: too few requests."""
    notes: list[str] = field(default_factory=list)


def source_of(loaded: LoadedTrace, known: Known, limit: int | None = None) -> TraceSource:
    """The trace as it is replayed: its first ``limit`` requests, or all."""
    source = TraceSource.from_loaded(loaded, Slice(limit=limit))
    if known.shared_prefix:
        begin_alike(source, known.shared_prefix, known.policy.scheduler.block_size)
    return source


def fit_observed(
    loaded: LoadedTrace, known: Known, prior: Profile | None, *, used: npt.NDArray[np.bool_] | None = None, say: Say | None = None
) -> ObservedFit:
    """Fit to the requests that ``used`` marks (all when ``None``; the others are replayed, never looked at).

    ``InputError``: too few requests with latencies. ``ConfigError``: the settings do not let the trace through.
    """
    from tracekit.cycles import quiet_gc

    with quiet_gc():
        return _fit(loaded, known, prior, used, say)


def _fit(
    loaded: LoadedTrace, known: Known, prior: Profile | None, used: npt.NDArray[np.bool_] | None, say: Say | None
) -> ObservedFit:
    clock = known.clock or loaded.report.obs_clock
    source = source_of(loaded, known)
    seen = Observations.of(source, used, clock)
    if seen.known() < FEWEST:
        raise InputError(
            f"latencies of {seen.known()} requests cannot tell the coefficients", file=loaded.report.name,
            expected=f"{FEWEST} or more with TTFT, TPOT or E2E",
        )  # fmt: skip
    guess = _guess(source, seen)
    expected = expected_from(prior, guess, clock=clock)
    engine = known.policy.scheduler
    crowd = crowd_of(source, seen, engine.block_size, caching=engine.enable_prefix_caching)
    known, limits = _first_limits(known, crowd)
    head = _head(source, seen)
    start, starts, counting, spent = _started(loaded, known, seen, expected, guess, head, say)
    free = _free(seen, expected)
    problem = Problem(replayer=Replayer(source, known.policy), seen=seen, expected=expected, free=free, counting=counting)
    problem.replayer.count = spent
    best = descend(problem, start, rounds=20 if head is None else 4, near=8 if head is None else 0, told=say)
    scan = Scan(problem=problem, best=best, profile=known.profile, limits=limits)
    _scanned(scan, known, crowd, say)
    shared = scan_shared(scan, known, say)
    problem, best = scan.problem, scan.best
    if len(best.run.start) <= LONG:
        best = problem.rescaled(refine(problem, best, rounds=2, told=say))
    problem, best, skew = with_skew(problem, best, say)
    return ObservedFit(
        problem=problem, best=best, told=telling(problem, best), limits=scan.limits, starts=starts, skew=skew,
        replays=problem.replayer.count, shared_prefix=shared,
    )  # fmt: skip


def _head(source: TraceSource, seen: Observations) -> int | None:
    """How many requests from its beginning are enough for the first steps, where the whole trace takes long; ``None``: all."""
    if len(seen.used) > MANY and int(seen.used[:HEAD].sum()) >= FEWEST:
        return HEAD
    tpot = seen.tpot[seen.used & (seen.tpot > 0)]
    arrived = source.arrival_ns - source.arrival_ns[0]
    if not len(tpot) or min(float(arrived[-1]) / float(np.median(tpot)), float(source.output_tokens.sum())) < STEPS:
        return None  # an engine that idles in between makes no iterations then
    head = max(int(np.searchsorted(arrived, BEGUN * float(np.median(tpot)))), 1 + _place(seen.used, SOME))
    return head if head <= len(seen.used) // 2 else None


def _place(used: npt.NDArray[np.bool_], count: int) -> int:
    """Where the ``count``-th request to look at is; beyond the end where there are fewer."""
    return int(np.searchsorted(np.cumsum(used), count))


def _guess(source: TraceSource, seen: Observations) -> Vector:
    return first_guess(seen, source.arrival_ns, source.prompt_tokens.astype(np.float64), source.output_tokens.astype(np.float64))


def _free(seen: Observations, expected: Expected) -> npt.NDArray[np.bool_]:
    free = np.ones(len(NAMES), np.bool_)
    free[NAMES.index("ingress")] = not (np.isnan(seen.ttft) & np.isnan(seen.e2e)).all()
    both = bool((~np.isnan(seen.ttft) & ~np.isnan(seen.e2e)).any())
    free[NAMES.index("egress")] = both and seen.clock in CLIENTS
    free[NAMES.index("skew")] = expected.skew_ns > LEAST
    return free


def _started(
    loaded: LoadedTrace, known: Known, seen: Observations, expected: Expected, guess: Vector, head: int | None, say: Say | None
) -> tuple[Vector, list[tuple[str, float]], str | None, int]:  # fmt: skip
    """The best of several starts after a few steps each, on the first ``head`` requests; and how many replays that took."""
    source = source_of(loaded, known, head)
    part = replace(seen, **{name: getattr(seen, name)[: source.total] for name in ("queue", "ttft", "tpot", "e2e", "used")})
    replayer, found, free = Replayer(source, known.policy), [], _free(part, expected)
    for name, vector in _starts(expected, guess).items():
        problem = Problem(replayer=replayer, seen=part, expected=expected, free=free)
        trial = descend(problem, vector, rounds=5, near=5)
        problem.scales = dict.fromkeys(problem.scales, _SAME)
        found.append((name, problem.judged(trial.vector, trial.run)))
        if say is not None:
            say(f"start {name}: loss {found[-1][1].loss:.1f}")
    best = _counted(Problem(replayer=replayer, seen=part, expected=expected, free=free), min(found, key=_loss)[1])
    if head is not None:
        problem = Problem(replayer=replayer, seen=part, expected=expected, free=free, counting=best.misfit.counting)
        best = descend(problem, best.vector, rounds=20, near=8)
    return best.vector, [(name, trial.loss) for name, trial in found], best.misfit.counting, replayer.count


def _loss(start: tuple[str, Trial]) -> float:
    return start[1].loss


def _counted(problem: Problem, begun: Trial) -> Trial:
    """From ``begun``, by each way of counting; the first steps go by what is near then, which may be the wrong one."""
    found = []
    for way in COUNTING:
        own = replace(problem, counting=way, scales={})
        trial = descend(own, begun.vector, rounds=8, near=4)
        own.scales = dict.fromkeys(own.scales, _SAME)
        found.append(own.judged(trial.vector, trial.run))
    return min(found, key=lambda each: each.loss)


_SAME = 0.03
"""The scale of all groups when the ends of different starts are held against each other."""


def _starts(expected: Expected, guess: Vector) -> dict[str, Vector]:
    """Where the search begins: terms that are hard to tell apart are begun on either side."""
    guess = guess.copy()
    for name in ("egress", "skew"):  # no other request's time tells of the one, no sum of the other
        guess[NAMES.index(name)] = expected.centre[NAMES.index(name)]
    starts = {"from the observations": guess}
    if not np.allclose(expected.centre, guess):
        starts["from the profile"] = expected.centre.copy()
    for name, (d, e) in (("more by sequence", (3.0, 0.3)), ("more by KV token", (0.3, 3.0))):
        vector = guess.copy()
        vector[4], vector[5] = vector[4] * d, vector[5] * e
        starts[name] = vector
    return starts


def _first_limits(known: Known, crowd: Crowd | None) -> tuple[Known, list[Limit]]:
    """The settings to begin with: what was given, and room for everybody who was seen to be served."""
    said = [knob for knob in _LIMITS if knob in known.given]
    limits = [Limit(knob=knob, value=getattr(known.policy.scheduler, knob), known="given") for knob in said]
    sets: list[str] = []
    if "max_num_seqs" not in known.given and crowd is not None:
        sets.append(f"max_num_seqs={crowd.seats or max(known.policy.scheduler.max_num_seqs, crowd.peak)}")
    if "num_gpu_blocks" not in known.given and crowd is not None:
        # with the budget known, memory is what is left to wait for: begun with it, the coefficients do not have to explain it
        blocks = crowd.memory if "max_num_batched_tokens" in known.given else None
        sets.append(f"num_gpu_blocks={blocks or _roomy(known, crowd)}")
    if sets:
        known = replace(known, policy=apply_set(known.policy, sets, known.profile))
    return known, limits


_LIMITS = ("max_num_seqs", "num_gpu_blocks", "max_num_batched_tokens", "scheduler_reserve_full_isl", "async_scheduling")
ROOM = 1.5


def _scanned(scan: Scan, known: Known, crowd: Crowd | None, say: Say | None) -> None:
    """What was not given, by replay: how plans are made, seats, then the budget, which may be all that anybody waited for, then
    memory. What was decided before memory was known is looked at again with it."""
    memory = crowd.memory if crowd is not None and "num_gpu_blocks" not in known.given else None
    # with a budget that is not theirs everybody waits elsewhere: each is tried with memory that binds and with memory to spare
    beside = ALONE if memory is None else {"num_gpu_blocks": memory}
    if "async_scheduling" not in known.given:
        scan_plans(scan)
    if "max_num_seqs" not in known.given and crowd is not None:
        note = f"{crowd.waits} waited, and got in when about {crowd.seats} were served"
        if crowd.seats is None or not scan_near(scan, "max_num_seqs", crowd.seats, note, say):
            _at_least(scan, "max_num_seqs", f"{crowd.peak} were served at once; nobody is seen to have waited for a seat")
    if "max_num_batched_tokens" not in known.given:
        scan_values(scan, "max_num_batched_tokens", _budgets(scan), rounds=3, beside=beside)
    if "num_gpu_blocks" not in known.given and crowd is not None:
        note = f"{crowd.waits} waited while the number served varied"
        if memory is None:
            note = f"nobody waited for it; who lost their place when about {crowd.peak_blocks} were in use tells it"
        full = _full(scan, crowd)
        bound = full is not None and scan_near(scan, "num_gpu_blocks", full, note, say, peak=memory is None)
        if not (bound and needed(scan, "num_gpu_blocks", _roomy(known, crowd))):
            _at_least(scan, "num_gpu_blocks", f"{crowd.peak_blocks} were in use; nobody is seen to have waited for memory")
        elif len(scan.best.run.start) <= LONG:
            _again(scan, known, note, say)
    if "scheduler_reserve_full_isl" not in known.given and crowd is not None and crowd.waits:
        scan_values(scan, "scheduler_reserve_full_isl", (True, False))


def _full(scan: Scan, crowd: Crowd) -> int | None:
    """Blocks at which memory may have been full. Where the queue does not tell, it may have been full at its peak: one preempted
    request is slow beyond what else explains."""
    if crowd.memory is not None or crowd.seats is not None or len(scan.best.run.start) > LONGER:
        return crowd.memory
    return crowd.peak_blocks


def _budgets(scan: Scan) -> list[int]:
    seats = scan.problem.replayer.policy.scheduler.max_num_seqs
    return [each for each in BUDGETS if each >= seats]


def _again(scan: Scan, known: Known, note: str, say: Say | None) -> None:
    """The budget, then how plans are made, with the memory that was found; where one of them moves, the memory after it."""
    for knob in ("max_num_batched_tokens", "async_scheduling"):
        engine = scan.problem.replayer.policy.scheduler
        if knob in known.given:
            continue
        if knob == "async_scheduling":
            scan_plans(scan)
        else:
            scan_values(scan, knob, _budgets(scan), rounds=6)
        if getattr(scan.problem.replayer.policy.scheduler, knob) != getattr(engine, knob):
            scan.limits = [limit for limit in scan.limits if limit.knob != "num_gpu_blocks"]
            scan_near(scan, "num_gpu_blocks", engine.num_gpu_blocks, note, say)


def _roomy(known: Known, crowd: Crowd) -> int:
    """Blocks that nobody would have had to wait for."""
    return max(round(ROOM * crowd.peak_blocks), known.policy.scheduler.num_gpu_blocks)


def _at_least(scan: Scan, knob: str, note: str) -> None:
    scan.limits.append(Limit(knob=knob, value=getattr(scan.problem.replayer.policy.scheduler, knob), known="at least", note=note))

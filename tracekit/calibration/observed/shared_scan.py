"""Whether prompts begin alike although the trace does not say so: a template that is put before each of them is held once.

With the blocks of memory given, who lost their place tells it: of n requests that share a block, n - 1 leave room for others.
Where memory was never full, or had to be found by replay itself, nothing is tried: more memory would explain the same.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace

from replay_engine.config import ConfigError
from tracekit.calibration.observed.limits import Limit
from tracekit.calibration.observed.scan import ALIKE, Scan, follow
from tracekit.calibration.observed.search import LONG, Problem, Trial
from tracekit.calibration.observed.settings import SHARED_PREFIX, Known
from tracekit.calibration.observed.shared_prefix import begin_alike

__all__ = ["scan_shared"]

FULL = 0.97
"""A share of all blocks in use at which memory counts as having been full."""
ROUNDS, NEAR = 8, 4
STRIDE, PATIENCE = 4, 2
"""Lengths tried are so many times as long as the one before, until so many in turn explain less: the loss is rugged, and one
block of a long beginning may not show."""


def scan_shared(scan: Scan, known: Known, told: Callable[[str], None] | None = None) -> int:
    """Tokens that all prompts are found to begin with (whole blocks of them; 0: none), with ``scan`` under them from here on."""
    if known.shared_prefix is not None or not _tellable(scan, known):
        return known.shared_prefix or 0
    none = follow(scan.problem, scan.best, ROUNDS, NEAR)  # as many steps as the others get
    tried: dict[int, tuple[Problem, Trial]] = {0: (scan.problem, min(scan.best, none, key=lambda each: each.loss))}
    count, worse = 1, 0
    while worse < PATIENCE and _try(scan, tried, count):  # a longer one, as long as that explains more
        worse = 0 if _best(tried) == count else worse + 1
        count *= STRIDE
    while (between := _between(tried)) is not None and _try(scan, tried, between):
        pass
    size = scan.problem.replayer.policy.scheduler.block_size
    best = _best(tried)
    if tried[best][1].loss > tried[0][1].loss * (1 - ALIKE):
        best = 0
    scan.problem, scan.best = tried[best]
    if best:
        scan.best = scan.problem.rescaled(scan.best)
        if told is not None:
            told(f"{SHARED_PREFIX} = {best * size}")
    scan.limits.append(_limit({blocks * size: trial.loss for blocks, (_, trial) in tried.items()}, best * size))
    return best * size


def _tellable(scan: Scan, known: Known) -> bool:
    engine, run = scan.problem.replayer.policy.scheduler, scan.best.run
    said = scan.problem.replayer.source.run_offsets is not None
    full = len(run.kv_used) > 0 and int(run.kv_used.max()) >= FULL * engine.num_gpu_blocks
    return engine.enable_prefix_caching and "num_gpu_blocks" in known.given and not said and full and len(run.start) <= LONG


def _try(scan: Scan, tried: dict[int, tuple[Problem, Trial]], blocks: int) -> bool:
    """Replays with prompts that share ``blocks``; the coefficients may follow. Whether that goes."""
    before = scan.problem.replayer
    size = before.policy.scheduler.block_size
    if blocks * size > int(before.source.prompt_tokens.max()):
        return False
    source = copy(before.source)
    begin_alike(source, blocks * size, size)
    own = replace(scan.problem, replayer=before.over(source), scales=dict(scan.problem.scales))
    try:
        trial = own.trial(scan.best.vector)
        tried[blocks] = own, min(trial, follow(own, trial, ROUNDS, NEAR), key=lambda each: each.loss)
    except ConfigError:
        return False
    for problem, _ in tried.values():
        problem.replayer.count = own.replayer.count
    return True


def _best(tried: dict[int, tuple[Problem, Trial]]) -> int:
    return min(tried, key=lambda blocks: tried[blocks][1].loss)


def _between(tried: dict[int, tuple[Problem, Trial]]) -> int | None:
    """A count not yet tried beside the best one: in the middle of the wider gap to its neighbours."""
    best = _best(tried)
    lower = max((each for each in tried if each < best), default=best)
    upper = min((each for each in tried if each > best), default=best)
    low, high = (best - lower, lower), (upper - best, best)
    gap, begin = max(low, high)
    return begin + gap // 2 if gap > 1 else None


def _limit(losses: dict[int, float], chosen: int) -> Limit:
    alike = sorted(each for each, loss in losses.items() if each != chosen and loss <= losses[chosen] * (1 + ALIKE))
    others = ", ".join(str(each) for each in alike)
    rest = f"{others} would fit as well" if alike else "other lengths leave more error"
    words = f"tokens that all prompts begin with, by who lost their place; {rest}" if chosen else \
        f"who lost their place shows no beginning that all prompts share; {rest}"
    return Limit(knob=SHARED_PREFIX, value=chosen, known="alike" if alike else "by replay", note=words)

"""Whether prompts begin alike although the trace does not say so: what several of them begin with is held once.

With the blocks of memory given, who lost their place tells it: of n requests that share a block, n - 1 leave room for others.
Two kinds are told apart. A template is put before all prompts, and shows from the first requests on. Where only some prompts
share something with some others, there is nothing to share with at first: those who fill an empty memory show none of it, and
those who come after share so many tokens on average; who does is not told, and a replay gives each its mean.
Where memory was never full, or had to be found by replay itself, nothing is tried: more memory would explain the same.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace

from replay_engine.config import ConfigError
from tracekit.calibration.observed.limits import Limit
from tracekit.calibration.observed.scan import ALIKE, Scan, follow
from tracekit.calibration.observed.search import LONG, Problem, Trial
from tracekit.calibration.observed.settings import SHARED_PREFIX, Known
from tracekit.calibration.observed.shared_prefix import begin_alike
from tracekit.traces.said_prefix import NOTHING, Beginning

__all__ = ["scan_shared"]

FULL = 0.97
"""A share of all blocks in use at which memory counts as having been full."""
ROUNDS, NEAR = 8, 4
STRIDE, PATIENCE = 4, 2
"""Lengths tried are so many times as long as the one before, until so many in turn explain less: the loss is rugged, and one
block of a long beginning may not show."""
FINER = 2
"""A mean is looked for in so many parts of a block."""
ENOUGH = 30
"""Requests to look at on either side of when memory was first full: fewer are no witnesses of what changed then."""
LATER = 0.05
"""How much less error, as a share, a beginning has to leave that the first requests do not have."""


@dataclass(slots=True)
class _Lengths:
    """Lengths of one kind that were tried, with how that went; ``unit`` tokens is the finest difference."""

    scan: Scan
    after: int
    unit: int
    tried: dict[int, tuple[Problem, Trial]]

    def climbed(self) -> _Lengths:
        """Longer ones as long as they explain more, then those between."""
        count, worse = 1, 0
        while worse < PATIENCE and self._try(count):
            worse = 0 if self.best == count else worse + 1
            count *= STRIDE
        while (between := self._between()) is not None and self._try(between):
            pass
        return self

    @property
    def best(self) -> int:
        return min(self.tried, key=lambda count: self.tried[count][1].loss)

    @property
    def loss(self) -> float:
        return self.tried[self.best][1].loss

    @property
    def losses(self) -> dict[str, float]:
        return {str(self.said(count)): trial.loss for count, (_, trial) in self.tried.items()}

    def said(self, count: int) -> Beginning:
        return Beginning(count * self.unit, self.after) if count else NOTHING

    def _try(self, count: int) -> bool:
        """Replays with prompts that share so much; the coefficients may follow. Whether that goes."""
        scan, said = self.scan, self.said(count)
        before = scan.problem.replayer
        if said.tokens > int(before.source.prompt_tokens.max()):
            return False
        source = copy(before.source)
        begin_alike(source, said, before.policy.scheduler.block_size)
        own = replace(scan.problem, replayer=before.over(source), scales=dict(scan.problem.scales))
        try:
            trial = own.trial(scan.best.vector)
            self.tried[count] = own, min(trial, follow(own, trial, ROUNDS, NEAR), key=lambda each: each.loss)
        except ConfigError:
            return False
        for problem, _ in self.tried.values():
            problem.replayer.count = own.replayer.count
        return True

    def _between(self) -> int | None:
        """A count not yet tried beside the best one: in the middle of the wider gap to its neighbours."""
        best = self.best
        lower = max((each for each in self.tried if each < best), default=best)
        upper = min((each for each in self.tried if each > best), default=best)
        low, high = (best - lower, lower), (upper - best, best)
        gap, begin = max(low, high)
        return begin + gap // 2 if gap > 1 else None


def scan_shared(scan: Scan, known: Known, told: Callable[[str], None] | None = None) -> Beginning:
    """What prompts are found to begin alike with, with ``scan`` under it from here on."""
    if known.shared_prefix is not None or not _tellable(scan, known):
        return known.shared_prefix or NOTHING
    size = scan.problem.replayer.policy.scheduler.block_size
    none = follow(scan.problem, scan.best, ROUNDS, NEAR)  # as many steps as the others get
    nothing = {0: (scan.problem, min(scan.best, none, key=lambda each: each.loss))}
    found = _Lengths(scan, 0, size, dict(nothing)).climbed()
    best = found.best if found.loss <= nothing[0][1].loss * (1 - ALIKE) else 0
    after = _filled(scan)
    if after is not None:
        later = _Lengths(scan, after, max(size // FINER, 1), dict(nothing)).climbed()
        if later.loss <= found.tried[best][1].loss * (1 - LATER):
            found, best = later, later.best
    scan.problem, scan.best = found.tried[best]
    said = found.said(best)
    if said:
        scan.best = scan.problem.rescaled(scan.best)
        if told is not None:
            told(f"{SHARED_PREFIX} = {said}")
    scan.limits.append(_limit(found.losses, said))
    return said


def _tellable(scan: Scan, known: Known) -> bool:
    engine, run = scan.problem.replayer.policy.scheduler, scan.best.run
    said = scan.problem.replayer.source.run_offsets is not None
    full = len(run.kv_used) > 0 and int(run.kv_used.max()) >= FULL * engine.num_gpu_blocks
    return engine.enable_prefix_caching and "num_gpu_blocks" in known.given and not said and full and len(run.start) <= LONG


def _filled(scan: Scan) -> int | None:
    """How many requests had begun when memory was first full; ``None``: too few before or after that can be looked at."""
    run, used = scan.best.run, scan.problem.seen.used
    full = run.start[run.kv_used >= FULL * scan.problem.replayer.policy.scheduler.num_gpu_blocks]
    begun = int(((run.scheduled >= 0) & (run.scheduled <= full[0])).sum())
    return begun if min(int(used[:begun].sum()), int(used[begun:].sum())) >= ENOUGH else None


def _limit(losses: dict[str, float], chosen: Beginning) -> Limit:
    least = losses[str(chosen)]
    alike = sorted((each for each, loss in losses.items() if each != str(chosen) and loss <= least * (1 + ALIKE)), key=len)
    others = ", ".join(alike)
    rest = f"{others} would fit as well" if alike else "other lengths leave more error"
    if not chosen:
        words = f"who lost their place shows no beginning that prompts share; {rest}"
    else:
        words = f"{chosen.words}, by who lost their place; {rest}"
    value = str(chosen) if chosen.after else chosen.tokens
    return Limit(knob=SHARED_PREFIX, value=value, known="alike" if alike else "by replay", note=words)

"""Intervals for figures of two whole runs, from blocks of consecutive arrivals.

Requests of one run are not independent: a queue makes all of a busy minute slow. So not requests are drawn again but blocks
of consecutive arrivals, the same blocks from both runs, and the figure of both runs is taken anew from each draw. The interval is
the change itself plus and minus Student's t, with as many degrees of freedom as blocks less one, times the standard
deviation over the draws. (Percentiles of the draws, the usual choice, covered 0.88 to 0.92 with 6 or 8 blocks where this
covered 0.93 to 0.98.) There are at most twelve blocks, each at least four times as long as a request stays in the engine:
on loads whose swings last a fifth of a block 0.92 to 0.96 of the intervals cover, on loads whose swings are as long as a
block only 0.83 to 0.87 (``tests/comparison/test_blocks.py`` measures it). ``tracekit experiment`` on windows is the surer way.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tracekit.experiments.intervals import Interval, Scale, t_quantile

__all__ = ["LEAST", "Draws", "block_maxima", "blocks_for", "resampled"]

Floats = npt.NDArray[np.float64]
LEAST, MOST = 6, 12
"""Blocks: below, no interval is trusted; above, nothing is won."""
REQUESTS = 20
RESIDENCES = 4
DRAWS = 1000
BINS = 3000
TAIL = 0.9


def blocks_for(arrival_ns: npt.NDArray[np.int64], residence_ns: float) -> npt.NDArray[np.int64]:
    """The block of each request; ``arrival_ns`` ascending. Equal numbers of requests, 20 at least, each block four
    times ``residence_ns`` long on average; fewer than ``LEAST`` blocks are too few to conclude from."""
    n = len(arrival_ns)
    span = float(arrival_ns[-1] - arrival_ns[0]) if n else 0.0
    count = min(MOST, n // REQUESTS, int(span // max(RESIDENCES * residence_ns, 1.0)))
    return np.arange(n) * max(count, 1) // max(n, 1)


class Draws:
    """The draws of blocks, the same for every figure: how often each block was taken, ``[draw, block]``."""

    def __init__(self, block: npt.NDArray[np.int64], draws: int = DRAWS, seed: int = 0) -> None:
        self.block = block
        self.blocks = int(block[-1]) + 1 if len(block) else 0
        rng = np.random.Generator(np.random.PCG64(seed))
        self.taken: Floats = rng.multinomial(self.blocks, np.full(self.blocks, 1 / self.blocks), draws).astype(np.float64)

    def sums(self, values: Floats) -> Floats:
        """The sum of ``values`` in every draw."""
        return self.taken @ np.bincount(self.block, weights=values, minlength=self.blocks)

    def percentiles(self, values: Floats, percents: tuple[float, ...]) -> list[Floats]:
        """Percentiles over the known ``values`` in every draw, to a bin's width (the upper tenth has a third of the bins)."""
        known = ~np.isnan(values)
        edges = _edges(values[known])
        at = np.searchsorted(edges, values[known], "right") - 1
        table = np.zeros((self.blocks, len(edges)))
        np.add.at(table, (self.block[known], at), 1.0)
        upto = np.cumsum(self.taken @ table, axis=1)
        last = np.maximum(upto[:, -1:] - 1, 0)
        return [edges[np.minimum((upto <= last * percent / 100).sum(1), len(edges) - 1)] for percent in percents]


def _edges(values: Floats) -> Floats:
    found = np.unique(values)
    if len(found) <= BINS:
        return found
    ranks = np.concatenate([np.linspace(0, TAIL, BINS * 2 // 3), np.linspace(TAIL, 1, BINS // 3)[1:]])
    picked: Floats = np.unique(np.quantile(found, ranks, method="lower"))
    return picked


def resampled(base: float, level: float, draws: tuple[Floats, Floats], blocks: int, scale: Scale) -> Interval:
    """The change from ``base`` to ``level``, figures of two whole runs, given the same figures in every draw.

    ``ratio`` falls back to ``difference`` where a figure is not above 0, in a draw or in a run.
    """
    above = base > 0 and level > 0 and all(bool((side > 0).all()) for side in draws)
    scale = scale if above else "difference"
    sides = [np.concatenate([[value], drawn]) for value, drawn in zip((base, level), draws, strict=True)]
    changes = np.log(sides[1] / sides[0]) if scale == "ratio" else sides[1] - sides[0]
    back: Callable[[float], float] = math.expm1 if scale == "ratio" else float
    change = float(changes[0])
    spread = float(changes[1:].std()) * math.sqrt(blocks / max(blocks - 1, 1))
    low: float | None = None
    high: float | None = None
    why = None
    if blocks < LEAST:
        why = f"{blocks} blocks: too few for an interval"
    elif spread <= 1e-12 * max(abs(change), 1e-300):
        why = "the same in every block" if change else "no difference in any block"
    else:
        half = t_quantile(blocks - 1) * spread
        low, high = back(change - half), back(change + half)
    return Interval(n=blocks, scale=scale, base=base, level=level, estimate=back(change), low=low, high=high, why=why)


def block_maxima(values: Floats, block: npt.NDArray[np.int64]) -> Floats:
    """The largest known value of each block; NaN where it has none."""
    found = np.full(int(block[-1]) + 1 if len(block) else 0, -np.inf)
    known = ~np.isnan(values)
    np.maximum.at(found, block[known], values[known])
    return np.where(np.isinf(found), np.nan, found)

"""What arrivals and lengths look like, counted in one pass over batches: bounded memory for traces of any length.

Definitions: bins of 1 s and 10 s begin at the first arrival; CV is std / mean of the gaps between arrivals, the index of
dispersion variance / mean of the counts per 1 s (1.0: Poisson); both with the population's variance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Gap", "Lengths", "Seconds", "Tally"]

Ints = npt.NDArray[np.int64]
SECOND = 1_000_000_000
DENSE = 1 << 22
"""Token counts below this are counted in an array, the few above by value."""
GAPS_KEPT = 8
OCTAVE = 32
"""Buckets per doubling in the histogram of gaps: 2 % wide."""


class Gap(NamedTuple):
    """A time without arrivals: where it begins (ns from the first moment counted) and how long it is (ns)."""

    at_ns: int
    length_ns: int


@dataclass(slots=True)
class Seconds:
    """Seconds with arrivals, ascending: number from the first arrival, requests, input and output tokens."""

    second: Ints
    requests: Ints
    input_tokens: Ints
    output_tokens: Ints


class Lengths:
    """Exact distribution of token counts."""

    def __init__(self) -> None:
        self._dense = np.zeros(0, np.int64)
        self._sparse: list[Ints] = []

    def add(self, values: Ints) -> None:
        """Count a batch."""
        large = values >= DENSE
        if large.any():
            self._sparse.append(values[large])
            values = values[~large]
        counts = np.bincount(values, minlength=len(self._dense))
        counts[: len(self._dense)] += self._dense
        self._dense = counts

    def table(self) -> tuple[Ints, Ints]:
        """Values that occur, ascending, and how often."""
        values = np.flatnonzero(self._dense)
        counts = self._dense[values]
        if self._sparse:
            more, how_often = np.unique(np.concatenate(self._sparse), return_counts=True)
            values, counts = np.concatenate([values, more]), np.concatenate([counts, how_often])
        return values, counts

    def summary(self) -> dict[str, float | int]:
        """mean, min, percentiles (linear between ranks), max, zeros and n; an empty one has n = 0 only."""
        values, counts = self.table()
        n = int(counts.sum())
        if not n:
            return {"n": 0}
        ends = np.cumsum(counts)
        found: dict[str, float | int] = {"n": n, "mean": float((values * counts).sum() / n), "min": int(values[0])}
        for percent in (50, 90, 95, 99):
            rank = (n - 1) * percent / 100
            low = int(rank)
            below, above = (values[np.searchsorted(ends, k, side="right")] for k in (low, min(low + 1, n - 1)))
            found[f"p{percent}"] = float(below + (above - below) * (rank - low))
        return found | {"max": int(values[-1]), "zeros": int(counts[0]) if values[0] == 0 else 0}


@dataclass(slots=True)
class Tally:
    """Feed it batches in arrival order; the properties are of everything fed so far."""

    input_tokens: Lengths = field(default_factory=Lengths)
    output_tokens: Lengths = field(default_factory=Lengths)
    n: int = 0
    first_ns: int = 0
    last_ns: int = 0
    equal: int = 0
    """Arrivals at the same instant as the one before."""
    _squares: float = 0.0
    _largest: list[Gap] = field(default_factory=list)
    _gaps: Ints = field(default_factory=lambda: np.zeros(64 * OCTAVE, np.int64))
    _bins: list[Seconds] = field(default_factory=list)

    def add(self, arrival_ns: Ints, input_tokens: Ints, output_tokens: Ints) -> None:
        """Count a batch that begins where the last one ended."""
        if not len(arrival_ns):
            return
        if self.n == 0:
            self.first_ns = self.last_ns = int(arrival_ns[0])
            gaps = np.diff(arrival_ns)
        else:
            gaps = np.diff(arrival_ns, prepend=self.last_ns)
        self._count_gaps(gaps, arrival_ns)
        self._count_seconds(arrival_ns, input_tokens, output_tokens)
        self.input_tokens.add(input_tokens)
        self.output_tokens.add(output_tokens)
        self.n += len(arrival_ns)
        self.last_ns = int(arrival_ns[-1])

    def _count_gaps(self, gaps: Ints, arrival_ns: Ints) -> None:
        if not len(gaps):
            return
        self.equal += int(np.count_nonzero(gaps == 0))
        self._squares += float(np.square(gaps / SECOND).sum())
        bucket = np.log2(np.maximum(gaps, 1)) * OCTAVE
        self._gaps += np.bincount(bucket.astype(np.int64), minlength=64 * OCTAVE)
        top = np.argpartition(gaps, -GAPS_KEPT)[-GAPS_KEPT:] if len(gaps) > GAPS_KEPT else np.arange(len(gaps))
        ends = arrival_ns[len(arrival_ns) - len(gaps) :]
        here = [Gap(int(ends[k] - gaps[k]) - self.first_ns, int(gaps[k])) for k in top.tolist()]
        self._largest = sorted([*self._largest, *here], key=lambda gap: (-gap.length_ns, gap.at_ns))[:GAPS_KEPT]

    def _count_seconds(self, arrival_ns: Ints, input_tokens: Ints, output_tokens: Ints) -> None:
        second = (arrival_ns - self.first_ns) // SECOND
        begins = np.flatnonzero(np.diff(second, prepend=-1))
        sums = (np.add.reduceat(values, begins) for values in (input_tokens, output_tokens))
        self._bins.append(Seconds(second[begins], np.diff(begins, append=len(second)), *sums))

    @property
    def span_ns(self) -> int:
        return self.last_ns - self.first_ns

    @property
    def largest_gaps(self) -> list[Gap]:
        """The longest first."""
        return self._largest

    def gap_percentile_ns(self, percent: float) -> int:
        """Upper edge of the histogram bucket in which that percentile of the gaps lies: at most 2 % above it."""
        total = int(self._gaps.sum())
        at = int(np.searchsorted(np.cumsum(self._gaps), total * percent / 100))
        return int(2 ** ((at + 1) / OCTAVE))

    def gap_cv(self) -> float:
        """Coefficient of variation of the gaps; needs two arrivals at different instants."""
        mean = self.span_ns / SECOND / (self.n - 1)
        return float(np.sqrt(max(self._squares / (self.n - 1) - mean * mean, 0.0)) / mean)

    def seconds(self) -> Seconds:
        """All seconds with arrivals."""
        columns = [np.concatenate([getattr(bins, name) for bins in self._bins] or [np.zeros(0, np.int64)])
                   for name in ("second", "requests", "input_tokens", "output_tokens")]  # fmt: skip
        begins = np.flatnonzero(np.diff(columns[0], prepend=-1))
        if len(begins) == len(columns[0]):
            return Seconds(*columns)
        return Seconds(columns[0][begins], *(np.add.reduceat(values, begins) for values in columns[1:]))

    def dispersion_1s(self) -> float:
        """Variance / mean of the counts per second, empty seconds included."""
        counts = self.seconds().requests
        bins = self.span_ns // SECOND + 1
        mean = self.n / bins
        return float((np.square(counts).sum() / bins - mean * mean) / mean)

    def peak(self, width_s: int) -> int:
        """The most arrivals in one bin of ``width_s`` seconds."""
        seconds = self.seconds()
        begins = np.flatnonzero(np.diff(seconds.second // width_s, prepend=-1))
        return int(np.add.reduceat(seconds.requests, begins).max()) if len(begins) else 0

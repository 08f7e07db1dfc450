"""The same traffic with more of some classes or tenants and less of others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracekit.errors import UsageError, shown
from tracekit.traces.rows_again import rows_again
from tracekit.traces.session_tree import roots_of
from tracekit.traces.source import TraceSource

__all__ = ["MOST_FACTOR", "check_mix", "mix_line", "mixed", "parse_mix", "shares_of"]

Ints = npt.NDArray[np.int64]
MOST_FACTOR = 100.0
"""How many times as many requests of a name there may be."""
_EXPECTED = "expected NAME:FACTOR,..., as chat:2,batch:0.5"


def parse_mix(text: str) -> dict[str, float]:
    """``chat:2,batch:0.5``: twice as many requests of the class or tenant *chat*, half of *batch*. Errors: ``UsageError``."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, colon, number = part.rpartition(":")
        try:
            factor = float(number)
        except ValueError:
            factor = math.nan
        if not (colon and name and 0 <= factor <= MOST_FACTOR):
            raise UsageError(f"mix={shown(text)}: {shown(part)} cannot be read; {_EXPECTED}, each from 0 to {MOST_FACTOR:g}")
        if name in found:
            raise UsageError(f"mix={shown(text)}: {shown(name)} is named twice; {_EXPECTED}")
        found[name] = factor
    return found


def mixed(source: TraceSource, text: str, seed: int = 0) -> TraceSource:
    """``source`` with so many times as many requests of each class or tenant as ``text`` says (``parse_mix``); a session goes
    by its first request and comes whole. Which of them come once more than others is drawn by ``seed``. Copies stand evenly
    between a session's start and the next one's of the same names, so that the rate over time and its bursts stay. A name that
    none of these requests has changes nothing (``check_mix``). ``UsageError``: nobody is left."""
    root = np.arange(source.total) if source.parent is None else roots_of(source.parent)[0]
    roots = np.flatnonzero(root == np.arange(source.total))
    factor, kinds = _factors(source, parse_mix(text), roots)
    sizes = np.bincount(root, minlength=source.total)[roots]
    begin = source.start_ns[roots]
    copies, gap = np.zeros(len(roots), np.int64), np.zeros(len(roots), np.int64)
    for kind in np.unique(kinds).tolist():
        at = np.flatnonzero(kinds == kind)
        copies[at] = _counts(len(at), float(factor[at[0]]), np.random.default_rng([seed, 2, kind]))
        gap[at] = np.diff(begin[at], append=begin[-1])
    if not copies.any():
        raise UsageError(f"mix={shown(text)}: leaves no request of this part of the trace; expected a factor above 0")
    unit = np.repeat(np.arange(len(roots)), copies)
    number = np.arange(len(unit)) - np.repeat(np.cumsum(copies) - copies, copies)
    shift = gap[unit] * number // copies[unit]
    order = np.argsort(begin[unit] + shift, kind="stable")
    unit, number, shift = unit[order], number[order], shift[order]
    rows = np.repeat(roots[unit] - (np.cumsum(sizes[unit]) - sizes[unit]), sizes[unit]) + np.arange(int(sizes[unit].sum()))
    each = np.repeat(np.arange(len(unit)), sizes[unit])
    found = rows_again(source, rows, shift[each], number[each], root)
    found.recorded_ns = source.recorded_ns[rows] + np.rint(shift[each] * source.rate_scale).astype(np.int64)
    return found


def _factors(source: TraceSource, wanted: dict[str, float], roots: Ints) -> tuple[npt.NDArray[np.float64], Ints]:
    """What each start is multiplied by, and a number that those with the same names among the wanted ones share."""
    factor, kinds = np.ones(len(roots)), np.zeros(len(roots), np.int64)
    for codes, names in ((source.class_, source.class_names), (source.tenant, source.tenant_names)):
        if codes is None:
            continue
        here = {names.index(name): (at, value) for at, (name, value) in enumerate(wanted.items()) if name in names}
        for code, (at, value) in here.items():
            mine = codes[roots] == code
            factor[mine] *= value
            kinds[mine] += 1 << at
    return factor, kinds


def check_mix(text: str, sources: Sequence[TraceSource]) -> None:
    """``UsageError`` for a name that no request of any of the sources has."""
    known = {name for source in sources for name in (*source.class_names, *source.tenant_names)}
    unknown = [name for name in parse_mix(text) if name not in known]
    if unknown:
        there = ", ".join(shown(name) for name in sorted(known)[:20])
        expected = f"expected one of {there}" if there else "the trace has neither"
        raise UsageError(f"mix={shown(text)}: {shown(unknown[0])} is no class and no tenant of these requests; {expected}")


def _counts(n: int, factor: float, rng: np.random.Generator) -> Ints:
    """How often each of ``n`` comes, ``factor`` on average."""
    whole = math.floor(factor)
    counts = np.full(n, whole, np.int64)
    counts[rng.permutation(n)[: round((factor - whole) * n)]] += 1
    return counts


def shares_of(source: TraceSource, names: dict[str, float]) -> list[float]:
    """The share of the counted requests that each name has, 0 to 1."""
    total = max(int(source.counted.sum()), 1)
    found = []
    for name in names:
        mine = np.zeros(source.total, np.bool_)
        for codes, known in ((source.class_, source.class_names), (source.tenant, source.tenant_names)):
            if codes is not None and name in known:
                mine |= codes == known.index(name)
        found.append(float((mine & source.counted).sum()) / total)
    return found


def mix_line(before: TraceSource, after: TraceSource, text: str) -> str:
    """What it made of the shares, in a line."""
    names = parse_mix(text)
    moved = [f"{shown(name)} {100 * a:.1f} % -> {100 * b:.1f} %"
             for name, a, b in zip(names, shares_of(before, names), shares_of(after, names), strict=True)]  # fmt: skip
    times = int(after.counted.sum()) / max(int(before.counted.sum()), 1)
    return f"mix: {', '.join(moved)} of the requests, {times:.3g} times as many in all"

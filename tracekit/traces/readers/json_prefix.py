"""Prefix identity of JSON rows, from block ids or written-out runs, checked against the prompts' lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.traces.columns import Mapped
from tracekit.traces.prefix_runs import cut_runs
from tracekit.traces.stage import Facts

__all__ = ["Prefix", "check_prefix"]

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Prefix:
    """Runs of some rows as arrays (row from 0, position, first id, length), and the rows whose identity cannot be used."""

    runs: tuple[Ints, Ints, npt.NDArray[Any], Ints]
    source: str
    bad: dict[int, str]


def check_prefix(mapped: Mapped, ids: tuple[npt.NDArray[np.uint64], Ints, dict[int, str]] | None, written: list[Any],
                 tokens: Ints, facts: Facts) -> Prefix:  # fmt: skip
    """Runs from flat block ``ids`` (with counts per row and bad rows), or from runs as ``written`` per row.

    ``tokens`` are the prompts' lengths; more blocks than a prompt has make its row bad.
    """
    size = int(mapped.unit or 0)
    if ids is not None:
        flat, counts, bad = ids
        runs = cut_runs(flat, counts, 0)
    else:
        runs, counts, bad = _given_runs(written)
    full, ceiling = tokens // size, -(-tokens // size)
    for i in np.flatnonzero(counts > ceiling).tolist():
        bad.setdefault(i, f"more blocks of {size} tokens than the prompt has")
    partial = (full != ceiling) & (counts >= full) & (counts > 0)
    if partial.any() and facts.hash_rounding != "ceil":
        facts.hash_rounding = "ceil" if (counts[partial] == ceiling[partial]).any() else "floor"
    facts.block_tokens, facts.hash_scope = size, "global"
    return Prefix(runs, mapped.source, bad)


def _given_runs(values: list[Any]) -> tuple[tuple[Ints, Ints, npt.NDArray[Any], Ints], Ints, dict[int, str]]:
    """Runs written out as [[position, first id, length], ...], in order of position and without gaps."""
    bad: dict[int, str] = {}
    flat: list[tuple[int, int, int, int]] = []
    counts = np.zeros(len(values), np.int64)
    for i, value in enumerate(values):
        at = 0
        try:
            for pos, first, length in value or []:
                if not (type(pos) is type(first) is type(length) is int) or pos != at or first < 0 or length < 1:
                    raise ValueError
                flat.append((i, pos, first, length))
                at += length
        except (TypeError, ValueError):
            bad[i] = "not a list of runs [position, first id, length] from 0 on"
        counts[i] = at
    table = np.array(flat, np.int64).reshape(-1, 4)
    return (table[:, 0], table[:, 1], table[:, 2].astype(np.uint64), table[:, 3]), counts, bad

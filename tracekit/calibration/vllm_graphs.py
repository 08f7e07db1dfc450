"""Rows that vLLM's CUDA graphs pad decodes by, from the capture sizes that its log prints.

An iteration line counts sequences, not rows; with the sizes it was padded to, the rows follow. Two halves of a log have to agree
on what such a row costs, else nothing is said of it: where sequences and padding go up and down together, neither is told.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from replay_engine.buckets import BUCKETS, padding_of
from replay_engine.calibration.fit import FEWEST, fit_device
from replay_engine.calibration.many import thinned
from replay_engine.calibration.samples import Samples
from tracekit.calibration.vllm_header import LogFacts

__all__ = ["with_padding"]

_ROWS = 8_000
_AGREE = 0.5
"""The lower of what both halves say, of the higher: below, padding is not told."""


def with_padding(samples: Samples, facts: LogFacts) -> tuple[Samples, str | None]:
    """``samples`` (in the log's order) with the rows that each was padded by, where that is known and can be told; and a line
    that says which it is, ``None`` where the log says nothing of graphs."""
    sizes = facts.captured
    if sizes is None:
        return samples, None
    if not sizes:
        return samples, "graphs: none, so that nothing is padded"
    if sizes != tuple(each for each in BUCKETS if each <= sizes[-1]):
        return samples, "graphs: captured for other sizes than are padded to here; padding is left out"
    rows = np.where(samples.seqs <= sizes[-1], padding_of(samples.tokens, samples.seqs), 0.0)
    padded = replace(samples, padded=rows)
    said = f"graphs: captured for vLLM's sizes to {sizes[-1]}"
    costs = [_cost(half) for half in _halves(padded)]
    if min(costs) <= _AGREE * max(costs):
        return samples, f"{said}; what a row of padding costs is not told apart from noise, and left out"
    return padded, f"{said}: {np.mean(rows[samples.tokens <= 0]):.1f} rows are added to an iteration that decodes, on average"


def _halves(samples: Samples) -> list[Samples]:
    """Each a sample of the whole log, so that load which drifts is in both: blocks of it in turns."""
    turn = np.arange(len(samples)) * 16 // max(len(samples), 1) % 2 == 0
    return [thinned(samples.part(turn), _ROWS), thinned(samples.part(~turn), _ROWS)]


def _cost(samples: Samples) -> float:
    return fit_device(samples).p_ns if len(samples) >= FEWEST else 0.0

"""The figures that cases of several engines state: between prefill and decode pools, and in the caches of a fleet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.case_runs import CaseRun
from replay_engine.types import Phase

__all__ = ["busy", "hit", "hit_ideal", "phase_mean", "phase_share", "queued_beside_idle", "replicas_per_prefix"]

Of = Callable[[CaseRun, str | None], float]
Ints = npt.NDArray[np.int64]


def phase_mean(phase: Phase) -> Of:
    """Mean time of a request in a phase, s."""
    return lambda run, _: float(run.seconds_in(phase).mean())


def phase_share(phase: Phase) -> Of:
    """A phase's part of the mean TTFT."""
    return lambda run, _: float(run.seconds_in(phase).sum() / (run.outcomes["ttft_ns"].sum() / 1e9))


def _pool(run: CaseRun, name: str) -> list[npt.NDArray[np.void]]:
    """The iterations of each engine of a pool."""
    pd, rows = run.policy.rules.pd, run.iterations
    numbers = range(pd.prefill) if name == "prefill" else range(pd.prefill, pd.prefill + pd.decode)
    return [rows[rows["replica"] == number] for number in numbers]


def busy(name: str, of: Callable[[list[float]], float]) -> Of:
    """Share of the run in which the engines of a pool compute: ``of`` their shares."""

    def figure(run: CaseRun, _: str | None) -> float:
        length = int(run.outcomes["last_token_ns"].max()) - int(run.outcomes["arrival_ns"].min())
        return float(of([int(rows["duration_ns"].sum()) / length for rows in _pool(run, name)]))

    return figure


def queued_beside_idle(run: CaseRun, _: str | None) -> float:
    """Of the time in which a prompt waits for its prefill engine, the share in which another prefill engine computes nothing."""
    queued = run.spans[run.spans["phase"] == int(Phase.queued)]
    spells = [(rows["start_ns"], rows["start_ns"] + rows["duration_ns"]) for rows in _pool(run, "prefill")]
    moments = np.unique(np.concatenate([queued["start_ns"], queued["end_ns"], *(at for spell in spells for at in spell)]))
    lengths = np.diff(moments)
    somebody = _level(moments, queued["start_ns"], queued["end_ns"])[:-1] > 0
    computing = np.array([_level(moments, *spell)[:-1] > 0 for spell in spells])
    idle = somebody & ~computing.all(axis=0)
    return float(lengths[idle].sum() / lengths[somebody].sum())


def _level(moments: Ints, begin: Ints, end: Ints) -> Ints:
    """How many of the stretches cover the time after each moment."""
    return np.searchsorted(np.sort(begin), moments, "right") - np.searchsorted(np.sort(end), moments, "right")


def hit(run: CaseRun, cls: str | None) -> float:
    """Prompt tokens of a class that were taken from a cache."""
    rows = run.outcomes[run.of_class(cls)]
    return float(rows["cached_tokens"].sum() / rows["prompt_tokens"].sum())


def _groups(run: CaseRun) -> tuple[Ints, Ints]:
    """The prefix group of each request (the id of its first block), and the tokens of the run that begins with it."""
    source = run.source
    assert source.run_offsets is not None
    first = source.run_offsets[:-1]
    return source.run_first[first], source.run_len[first] * source.block_tokens


def hit_ideal(run: CaseRun, cls: str | None) -> float:
    """The same with one cache that forgets nothing: all of a prefix that came before."""
    groups, tokens = _groups(run)
    order = np.argsort(run.outcomes["arrival_ns"], kind="stable")
    seen = np.ones(len(groups), bool)
    seen[order[np.unique(groups[order], return_index=True)[1]]] = False
    of = run.of_class(cls)
    return float(tokens[of & seen].sum() / run.outcomes["prompt_tokens"][of].sum())


def replicas_per_prefix(run: CaseRun, cls: str | None) -> float:
    """On how many replicas a prefix had to be computed: the median over prefixes."""
    groups, tokens = _groups(run)
    computed = run.of_class(cls) & (run.outcomes["cached_tokens"] < tokens)
    pairs = np.unique(np.stack([groups[computed], run.outcomes["replica"][computed]]), axis=1)
    return float(np.median(np.unique(pairs[0], return_counts=True)[1]))

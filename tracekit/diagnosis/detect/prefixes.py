"""Reuse that existed and was not obtained."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.capacity import capacity_of
from tracekit.diagnosis.claim import BESIDE, CROWD, EVICTED, QUEUE, Claim, change, percent, scaled
from tracekit.diagnosis.finding import Change, Evidence
from tracekit.diagnosis.signals import evidence, fact, q_share95
from tracekit.diagnosis.view import View

__all__ = ["prefix_miss", "prefixes"]

Ints = npt.NDArray[np.int64]
_SAVED = 0.25
"""Prefill work that full reuse would save, of all, below which misses are not what is waited for."""


def prefix_miss(view: View) -> Claim | None:
    """Prompts begin alike, and what was computed once is computed again: elsewhere, or after it was evicted."""
    found = prefixes(view)
    if found is None:
        return None
    group, ideal = found
    rows, rules = view.data.outcomes, view.data.policy.rules
    taken = np.maximum(rows["cached_tokens"], 0)
    prompt = float(rows["prompt_tokens"].sum())
    hit, best = float(taken.sum()) / prompt, float(np.maximum(ideal, taken).sum()) / prompt
    missed = np.maximum(ideal - taken, 0)
    saved = float(missed.sum()) / max(float((rows["prompt_tokens"] - taken).sum()), 1.0)
    then = capacity_of(view.data, cached=np.maximum(ideal, taken).astype(np.float64))
    if best - hit < 0.1 or saved < _SAVED or then is None:
        return None
    spread = _replicas_per_prefix(view, group, ideal)
    changes = _changes(view, spread)
    if not changes:
        return None
    weight = min(1.0, saved / 0.5)
    routed = rules.fleet.replicas > 1 and spread > 1.5
    why = _why(view, routed, spread)
    return Claim(
        id="PREFIX_MISS",
        what=f"{percent(hit)} of the prompt tokens come from a cache, {percent(best)} could: {why}; full reuse saves"
        f" {percent(saved)} of the prefill",
        first=dict.fromkeys((*QUEUE, *BESIDE, *EVICTED), weight),
        later=dict.fromkeys((*CROWD, *BESIDE, *EVICTED), weight),
        evidence=_evidence(view, hit, best, spread),
        is_not=(
            "OVERLOAD: with the reuse that is there, the load is"
            f" {percent(then.rate / then.most) if then.rate else 'not known'} of what the engines serve",
        ),
        changes=changes,
        tempting=(
            scaled(view, "max_num_batched_tokens", 2, "the budget is full"),
            scaled(view, "max_num_seqs", 4, "requests wait"),
        ),
        because="the trace says which prompts begin alike",
    )


def prefixes(view: View) -> tuple[Ints, Ints] | None:
    """Per outcome row: the block its prompt begins with, and the leading tokens that some request before it had too. ``None``:
    the trace does not say."""
    source = view.data.source
    if source.run_offsets is None or not len(source.run_offsets) or not source.block_tokens:
        return None
    request = view.data.outcomes["request"]
    order = np.argsort(view.data.outcomes["arrival_ns"], kind="stable")
    group = np.full(len(request), -1, np.int64)
    shared = np.zeros(len(request), np.int64)
    seen = _Seen()
    offsets, first, length = source.run_offsets, source.run_first, source.run_len
    assert first is not None and length is not None
    for row in order.tolist():
        k = int(request[row])
        low, high = int(offsets[k]), int(offsets[k + 1])
        if high > low:
            group[row] = first[low]
            shared[row] = seen.known(first[low:high].tolist(), length[low:high].tolist())
    tokens = np.minimum(shared * source.block_tokens, np.maximum(view.data.outcomes["prompt_tokens"] - 1, 0))
    return group, tokens


class _Seen:
    """Blocks that came before. Ids are chained, so the leading known blocks of a prompt end where a run is not known whole."""

    def __init__(self) -> None:
        self._longest: dict[int, int] = {}

    def known(self, first: list[int], length: list[int]) -> int:
        """How many leading blocks of a prompt were seen; then it is seen itself."""
        total, open_ = 0, True
        for begin, many in zip(first, length, strict=True):
            before = self._longest.get(begin, 0)
            if open_:
                total += min(before, many)
                open_ = before >= many
            if many > before:
                self._longest[begin] = many
        return total


def _replicas_per_prefix(view: View, group: Ints, ideal: Ints) -> float:
    """On how many replicas a prefix that occurs again was computed: the median over prefixes."""
    rows = view.data.outcomes
    again = np.unique(group[ideal > 0])
    of = np.isin(group, again) & (np.maximum(rows["cached_tokens"], 0) < 0.5 * np.maximum(ideal, 1))
    pairs = np.unique(np.stack([group[of], rows["replica"][of].astype(np.int64)]), axis=1)
    return float(np.median(np.unique(pairs[0], return_counts=True)[1])) if pairs.size else 1.0


def _changes(view: View, spread: float) -> tuple[Change, ...]:
    rules, scheduler = view.data.policy.rules, view.data.policy.scheduler
    off = not scheduler.enable_prefix_caching
    if off and rules.batching.kv_allocation == "contiguous":
        return ()
    on = change(
        "enable_prefix_caching", False, True, "prompts begin alike, and nothing is kept", price="hashing of prompts, cheap"
    )
    skew = _skew(view)
    route = change(
        "fleet.router",
        rules.fleet.router,
        "prefix_affinity",
        "each prefix is then kept where it is sent",
        price=f"load follows prefixes: at most {skew:.2f} of the mean number of requests on one replica",
        tolerated=0.3,
    )
    more = change(
        "num_gpu_blocks",
        scheduler.num_gpu_blocks,
        4 * scheduler.num_gpu_blocks,
        "prefixes are evicted before they come again",
        price="more memory for KV",
        outside=True,
        tolerated=0.3,
    )
    routed = rules.fleet.replicas > 1 and spread > 1.5 and not rules.fleet.router.startswith("prefix_affinity")
    return tuple(each for each, of in ((on, off), (route, routed), (more, not off)) if of)


def _skew(view: View) -> float:
    """Requests of the fullest replica over the mean, if every prefix had one home: prefixes dealt by size, largest first."""
    found = prefixes(view)
    many = view.data.policy.rules.fleet.replicas
    if found is None or many < 2:
        return 1.0
    load = np.zeros(many)
    for count in np.sort(np.unique(found[0], return_counts=True)[1])[::-1].tolist():
        load[load.argmin()] += count
    return float(load.max() / load.mean())


def _evidence(view: View, hit: float, best: float, spread: float) -> tuple[Evidence, ...]:
    return (
        fact(
            "hit",
            hit,
            "of prompt tokens",
            best,
            sql="SELECT sum(cached_tokens) / sum(prompt_tokens) FROM outcomes WHERE run = {run}",
        ),
        fact("hit_ideal", best, "of prompt tokens", note="one cache that forgets nothing"),
        fact("replicas per prefix", spread, "replicas", 1.5, note="median over prefixes"),
        evidence(view, "prefill rate"),
        q_share95(view, view.finished),
        evidence(view, "block[budget]", note="a consequence"),
        evidence(view, "block[kv]", note="a consequence"),
        evidence(view, "prefill rate"),
        q_share95(view, view.finished),
    )


def _why(view: View, routed: bool, spread: float) -> str:
    rules = view.data.policy.rules
    return (
        f"each prefix is computed on {spread:.0f} of {rules.fleet.replicas} replicas"
        if routed
        else "what was computed is evicted"
    )

"""How far a profile is to be believed, in words, from its errors against what was observed.

One rule for the trust report and for the matrix of every run. Errors are signed shares of the observed figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FEW", "MILLISECONDS", "UNFIT", "Errors", "Ranked", "Verdict", "judge_errors"]

NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
MILLISECONDS = {"ttft": 0.10, "tpot": 0.05, "e2e": 0.05}
"""Within these errors of the mean (twice that at P50 and P90) a figure in ms may be read as it stands."""
UNFIT = 0.25
"""Beyond this error of the mean TPOT (of E2E where there is none) the profile is of another model, card or engine."""
FEW = 30
"""Requests below which nothing is said."""
TAU, REGRET = 0.8, 0.03
"""Rank agreement from which on configurations may be chosen by prediction."""
TAU_UNFIT, REGRET_UNFIT = 0.5, 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Of one latency: signed relative errors of the mean, P50 and P90, over ``n`` requests."""

    n: int
    mean: float
    p50: float
    p90: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """Agreement over configurations: Kendall's tau, and what the predicted best costs over the true best (a share)."""

    configs: int
    tau: float
    regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``serves``: ``None`` where it cannot be told. ``words``: one line."""

    serves: bool | None
    milliseconds: bool | None
    ranking: bool | None
    words: str


def judge_errors(errors: Mapping[str, Errors], ranked: Ranked | None = None) -> Verdict:
    """From errors by ``ttft``, ``tpot``, ``e2e`` (those that are known) and the agreement of configurations, if tested."""
    ranking = None if ranked is None else _ranks(ranked)
    known = {name: each for name, each in errors.items() if name in MILLISECONDS and each.n >= FEW}
    if not known:
        few = any(each.n for each in errors.values())
        why = f"fewer than {FEW} requests with observed latencies" if few else "the trace has no observed latencies"
        if ranked is None:
            return Verdict(serves=None, milliseconds=None, ranking=None, words=f"unknown: {why}")
        return Verdict(
            serves=ranking, milliseconds=None, ranking=ranking, words=f"{_rank_words(ranked)}; for milliseconds: {why}"
        )
    # Where requests queue, TTFT and E2E multiply an error of the step time, which TPOT shows as it is.
    direct = next((name for name in ("tpot", "e2e") if name in known), "")
    unfit = {name: each.mean for name, each in known.items() if name == direct and abs(each.mean) > UNFIT}
    if unfit:
        what = " and ".join(f"{NAMES[name]} off by {error:+.0%}" for name, error in unfit.items())
        return Verdict(serves=False, milliseconds=False, ranking=ranking, words=f"does not serve: {what}")
    wrong = {name: _worst(each) for name, each in known.items() if not _exact(name, each)}
    tested = "" if ranked is None else f", {_rank_words(ranked)}"
    if not wrong:
        return Verdict(serves=True, milliseconds=True, ranking=ranking, words="good for milliseconds" + tested + _span(known))
    what = ", ".join(f"{NAMES[name]} {where} {error:+.0%}" for name, (where, error) in wrong.items())
    if ranked is None:
        words = f"not for milliseconds ({what}); whether it ranks configurations is not tested (--configs)"
    elif ranking:
        words = f"good for ranking, not for milliseconds ({what}; {_rank_words(ranked)})"
    else:
        words = f"neither for ranking nor for milliseconds ({what}; {_rank_words(ranked)})"
    return Verdict(serves=ranking, milliseconds=False, ranking=ranking, words=words)


def _ranks(ranked: Ranked) -> bool | None:
    if ranked.tau >= TAU and ranked.regret <= REGRET:
        return True
    return False if ranked.tau < TAU_UNFIT or ranked.regret > REGRET_UNFIT else None


def _rank_words(ranked: Ranked) -> str:
    return f"rank agreement over {ranked.configs} configurations: tau {ranked.tau:.2f}, regret {ranked.regret:.1%}"


def _exact(name: str, each: Errors) -> bool:
    limit = MILLISECONDS[name]
    return abs(each.mean) <= limit and abs(each.p50) <= 2 * limit and abs(each.p90) <= 2 * limit


def _worst(each: Errors) -> tuple[str, float]:
    figures = {"mean": each.mean, "P50": each.p50, "P90": each.p90}
    where = max(figures, key=lambda name: abs(figures[name]))
    return where, figures[where]


def _span(known: Mapping[str, Errors]) -> str:
    return " (" + ", ".join(f"{NAMES[name]} mean {each.mean:+.1%}" for name, each in known.items()) + ")"

"""An observed trace beside its replay: does scheduling account for what was observed, and if not, for how much, when and whose.

The replay has the calibrated profile and the settings the engine ran with. Where its times per token do not hold, nothing follows
from it; where they do, time beyond it was spent outside what a scheduler decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.claim import percent, seconds
from tracekit.diagnosis.finding import Expected, Kind, Unnamed, Where
from tracekit.diagnosis.unnamed import stretches

if TYPE_CHECKING:
    from tracekit.diagnosis.run_data import RunData
    from tracekit.trust.accuracy import Latencies

__all__ = ["Beside", "beside_replay"]

Floats = npt.NDArray[np.float64]

PACE = 0.15
"""By how much the median time per token may be off: beyond, the profile is not that of this engine."""
APART = 0.2
"""Of all the time that requests took: a replay that is off by more, either way, does not show what was observed."""
APART_RANKED = 0.05
LEAST_FIRST, LEAST_LATER, GRAIN_NS = 0.25, 0.15, 30e6
"""From where on a time is longer than the replay's: a share of that, and what the grid of iterations loses."""
SHARE = 0.02
"""Of all observed time: below, a difference is not told."""
_WORDS = {"first": "to the first token", "later": "after the first token"}


@dataclass(frozen=True, kw_only=True)
class Beside:
    """``pace``: median of observed over replayed time per token; ``over`` and ``under``: time beyond the replay and short of it,
    request by request, shares of all that was observed; ``ranked``: the larger of the two where times are compared in order of
    size. ``errors``: of the means, by latency. ``expected``: the two beside each other, with what the replay does not account
    for."""

    pace: float
    over: float
    under: float
    ranked: float
    errors: dict[str, float]
    expected: Expected

    @property
    def holds(self) -> bool:
        """Whether the profile is that of the engine that was observed."""
        return abs(self.pace - 1) <= PACE

    @property
    def shows(self) -> bool:
        """Whether the replay shows what was observed, so that what is wrong with it is wrong with the engine: request by request,
        or where who comes first is open (equal arrivals, priorities) as a whole."""
        return self.holds and (max(self.over, self.under) <= APART or self.ranked <= APART_RANKED)

    @property
    def words(self) -> str:
        """One line."""
        means = ", ".join(f"{name.upper()} {100 * error:+.1f} %" for name, error in self.errors.items())
        apart = f"{percent(self.over)} of the observed time is beyond the replay, {percent(self.under)} short of it"
        return f"replayed beside what was observed: mean {means}; {apart}"

    @property
    def why_not(self) -> str:
        """Why nothing follows from the replay; empty where something does."""
        if not self.holds:
            return f"tokens took {self.pace:.2f} times as long as in the replay: this is not the profile of that engine"
        if self.under > APART and not self.shows:
            return f"the replay is slower than what was observed by {percent(self.under)}: these are not its settings"
        return ""


def beside_replay(data: RunData, predicted: Latencies, observed: Latencies) -> Beside:
    """``predicted`` as the observer would have seen the replay ``data``. Requests without a TTFT and an end on both sides do not
    count. ``ValueError``: none has them."""
    whole = ~np.isnan(observed.ttft + observed.e2e + predicted.ttft + predicted.e2e)
    if not whole.any():
        raise ValueError("no request with a TTFT and an end, observed and replayed")
    over = {"first": observed.ttft - predicted.ttft, "later": (observed.e2e - observed.ttft) - (predicted.e2e - predicted.ttft)}
    should = {"first": predicted.ttft, "later": predicted.e2e - predicted.ttft}
    total = max(float(observed.e2e[whole].sum()), 1.0)
    several = whole & (observed.output > 1) & (predicted.tpot > 0)
    pace = float(np.median((observed.tpot / predicted.tpot)[several])) if several.any() else 1.0
    beyond = sum(float(np.maximum(each[whole], 0).sum()) for each in over.values()) / total
    short = sum(float(np.maximum(-each[whole], 0).sum()) for each in over.values()) / total
    ranked = [np.sort(should[side][whole] + over[side][whole]) - np.sort(should[side][whole]) for side in over]
    apart = max(sum(float(np.maximum(sign * each, 0).sum()) for each in ranked) / total for sign in (1, -1))
    errors = {name: float(np.nanmean(getattr(predicted, name)[whole]) / max(np.nanmean(getattr(observed, name)[whole]), 1.0) - 1)
              for name in ("ttft", "tpot", "e2e") if not np.isnan(getattr(observed, name)[whole]).all()}  # fmt: skip
    kinds = tuple(Kind(name=_WORDS[side], expected_ns=round(float(should[side][whole].sum())),
                       actual_ns=round(float((should[side] + over[side])[whole].sum()))) for side in over)  # fmt: skip
    effects = sorted(_effects(observed.arrival, over, should, np.flatnonzero(whole), total), key=lambda each: -each.over_ns)
    told = tuple(effects) if abs(pace - 1) <= PACE and apart > APART_RANKED else ()
    expected = Expected(load=float("nan"), kinds=kinds, unnamed=told, by="the replay of the same requests")
    return Beside(pace=pace, over=beyond, under=short, ranked=apart, errors=errors, expected=expected)


def _effects(arrival: Floats, over: dict[str, Floats], should: dict[str, Floats], rows: npt.NDArray[np.int64],
             total: float) -> Iterator[Unnamed]:  # fmt: skip
    """Stretches of arrivals whose requests took longer than in the replay, on either side of the first token."""
    order = rows[np.argsort(arrival[rows], kind="stable")]
    for side, least in (("first", LEAST_FIRST), ("later", LEAST_LATER)):
        amount, of = over[side], should[side] + GRAIN_NS
        for span in stretches(amount[order], of[order], least):
            inside = order[span.low : span.high]
            lost = float(amount[inside].sum())
            if lost < SHARE * total:
                continue
            t0, t1 = int(arrival[inside].min()), int(arrival[inside].max())
            took = should[side][inside] + amount[inside]
            worst = inside[np.argsort(-amount[inside], kind="stable")][:20]
            yield Unnamed(
                kind=_WORDS[side],
                what=f"requests that came from {t0 / 1e9:,.1f} s to {t1 / 1e9:,.1f} s took {seconds(float(np.median(took)))}"
                f" {_WORDS[side]} where the replay takes {seconds(float(np.median(should[side][inside])))} (medians),"
                f" {seconds(lost)} more together",
                over_ns=round(lost), share=lost / total,
                where=Where(t0_ns=t0, t1_ns=t1, requests=tuple(worst[amount[worst] > 0].tolist())),
            )  # fmt: skip

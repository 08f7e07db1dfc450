"""What a changed replay says about a finding: is half of its time in excess gone, for whom is it worse, and how sure is that.

Requests are paired: the same request before and after. The interval is over blocks of consecutive arrivals, the same blocks
drawn from both replays (``tracekit.comparison.blocks``), since requests of one run are not independent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from replay_engine.types import RequestState
from tracekit.comparison.blocks import LEAST, Draws, blocks_for, resampled
from tracekit.diagnosis.finding import Change, Finding, Outcome, Proof
from tracekit.diagnosis.run_data import RunData
from tracekit.diagnosis.trial import Trial
from tracekit.diagnosis.trial_figures import trial_figures
from tracekit.diagnosis.yardstick import MEASURES, Yardstick, times_ns
from tracekit.errors import shown
from tracekit.experiments.intervals import Interval
from tracekit.metrics.wording import span_text

__all__ = ["CURED", "Judge"]

CURED = 0.5
"""The share of a finding's excess that must be gone."""
ELSEWHERE = 1.0
"""Time that a change puts in excess elsewhere, as a share of what it saves: beyond, it only moves the trouble."""
ATTAINMENT = 0.02
"""The share of a class's requests that may miss their SLO anew."""
LEAST_RISE = 0.01
FEWEST = 10
"""Pairs below which nothing is concluded."""
GROUPS = 50
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Judge:
    """Judges trials of one run. Arrays are per request index."""

    data: RunData
    base: Trial
    yardstick: Yardstick

    def proof(self, finding: Finding, change: Change, trial: Trial) -> Proof:
        """What ``trial``, a replay of ``change``, says about ``finding``."""
        if trial.outcomes is None:
            why = _not_replayed(trial, self.base)
            return Proof(change=change, outcome="not replayed", reason=why, iterations=trial.iterations)
        if trial.state != "finished" and self.base.state == "finished":
            reason = f"the replay did not finish: {trial.state.replace('_', ' ')}"
            return Proof(change=change, outcome="refuted", reason=reason, iterations=trial.iterations)
        scope = self._scope(finding)
        figures = trial_figures(self.base, trial, scope)
        cured, n = self._cured(finding, trial, scope)
        worse = tuple(self._worse(finding, change, trial))
        outcome, reason = _verdict(cured, n, worse, self._overlap(finding))
        besides = ", ".join(f"{knob} {before} -> {after}" for knob, before, after in trial.besides)
        return Proof(
            change=change, outcome=outcome, reason=reason + (f"; it also moves {besides}" if besides else ""),
            cured=cured.estimate, low=cured.low, high=cured.high, n=n, worse=worse, figures=figures, iterations=trial.iterations,
        )  # fmt: skip

    @cached_property
    def _groups(self) -> list[tuple[str, Bools]]:
        """The classes, or the tenants where there are none, or everybody: counted requests."""
        counted = self.data.counted
        for what in ("class", "tenant"):
            labels = self.data.labels(what)
            if labels is not None and len(labels.names):
                found = [(f"{what} {shown(name)}", counted & (labels.codes == code)) for code, name in enumerate(labels.names)]
                return sorted(found, key=lambda each: -int(each[1].sum()))[:GROUPS]
        return [("all requests", counted)]

    def _scope(self, finding: Finding) -> Bools:
        """The counted requests that a finding is about."""
        if not finding.classes:
            return self.data.counted
        chosen = np.zeros(self.data.source.total, np.bool_)
        for what in ("class", "tenant"):
            labels = self.data.labels(what)
            if labels is not None:
                chosen |= np.isin(labels.codes, [code for code, name in enumerate(labels.names) if name in finding.classes])
        return self.data.counted & (chosen if chosen.any() else True)

    def _cured(self, finding: Finding, trial: Trial, scope: Bools) -> tuple[Interval, int]:
        """The share of the finding's excess that is gone, with its interval, and the number of pairs."""
        before, after = self._excess(self.base, finding), self._excess(trial, finding)
        pairs = np.flatnonzero(scope & ~np.isnan(before) & ~np.isnan(after))
        total = float(before[pairs].sum())
        if len(pairs) < FEWEST or total <= 0:
            why = f"{len(pairs)} pairs: too few to tell" if total > 0 else "nothing is in excess by this measure"
            return Interval(n=0, scale="difference", why=why), len(pairs)
        part = min(max(finding.excess_ns, 1) / total, 1.0)
        order, block = self._blocks(pairs)
        draws = Draws(block)
        sums = draws.sums(before[order])
        gone = draws.sums((before - after)[order]) / np.where(sums > 0, part * sums, np.inf)
        estimate = float((before - after)[pairs].sum()) / (part * total)
        found = resampled(0.0, estimate, (np.zeros_like(gone), gone), draws.blocks, "difference")
        if found.low is None:  # the same in every block
            found = replace(found, low=estimate, high=estimate)
        return found, len(pairs)

    def _excess(self, trial: Trial, finding: Finding) -> Floats:
        assert trial.outcomes is not None
        return self.yardstick.excess(trial.outcomes, finding.measure)

    @cached_property
    def _arrival(self) -> npt.NDArray[np.int64]:
        """When each request came in the run that is diagnosed; those that never did come last."""
        found = np.full(self.data.source.total, np.iinfo(np.int64).max)
        found[self.data.outcomes["request"]] = self.data.outcomes["arrival_ns"]
        return found

    def _blocks(self, pairs: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
        """``pairs`` in order of arrival, and the block of each. Where requests overlap too much for blocks that are independent,
        blocks of equal numbers of them all the same: ``_overlap`` says so."""
        order = pairs[np.argsort(self._arrival[pairs], kind="stable")]
        block = blocks_for(self._arrival[order], self._residence)
        if int(block[-1]) + 1 < LEAST:
            block = np.arange(len(order)) * LEAST // len(order)
        return order, block

    @cached_property
    def _residence(self) -> float:
        times = times_ns(self.data.outcomes, "e2e")
        return float(np.nanmean(times)) if not np.isnan(times).all() else 0.0

    def _overlap(self, finding: Finding) -> bool:
        pairs = np.flatnonzero(self._scope(finding))
        order = pairs[np.argsort(self._arrival[pairs], kind="stable")]
        return bool(len(order)) and int(blocks_for(self._arrival[order], self._residence)[-1]) + 1 < LEAST

    def _worse(self, finding: Finding, change: Change, trial: Trial) -> Iterator[str]:
        """Who or what lost more than the price speaks of."""
        yield from self._lost(change, trial)
        yield from self._elsewhere(finding, trial)
        asked = self.yardstick.asked
        before, after = (self._whole(each) for each in (self.base, trial))
        if asked:
            kept, keeps = (self._met(each, asked) for each in (self.base, trial))
        for name, group in self._groups:
            pairs = np.flatnonzero(group & ~np.isnan(before) & ~np.isnan(after))
            if len(pairs) < FEWEST:
                continue
            one, other = float(before[pairs].mean()), float(after[pairs].mean())
            if other > one * (1 + max(change.tolerated, LEAST_RISE)) and self._surely(before, after, pairs):
                rise = f"+{other / one - 1:.0%}".replace("%", " %")
                yield f"{name}: mean time to the last token {span_text(one)} -> {span_text(other)} ({rise})"
            if asked and (kept[group].mean() - keeps[group].mean()) > ATTAINMENT:
                yield f"{name}: {kept[group].mean():.1%} met the SLO, {keeps[group].mean():.1%} do".replace("%", " %")

    def _lost(self, change: Change, trial: Trial) -> Iterator[str]:
        done, does = self._finished(self.base), self._finished(trial)
        gone = int((done & ~does & self.data.counted).sum())
        if gone > max(change.tolerated, 0.0) * max(int((done & self.data.counted).sum()), 1):
            yield f"{gone:,} of {int((done & self.data.counted).sum()):,} requests do not finish any more"

    def _elsewhere(self, finding: Finding, trial: Trial) -> Iterator[str]:
        """Time put in excess by another measure, held against what is saved. What the SLO does not ask for is nobody's excess."""
        assert trial.outcomes is not None and self.base.outcomes is not None
        changes, asked = {}, self.yardstick.asked
        for measure in MEASURES[:3]:
            if asked and "e2e" not in asked and measure not in (*asked, finding.measure):
                continue
            before, after = (self.yardstick.excess(each, measure) for each in (self.base.outcomes, trial.outcomes))
            changes[measure] = float(np.nansum(np.where(self.data.counted, after - before, 0.0)))
        own = "ttft" if finding.measure == "e2e" else finding.measure
        saved = -changes.get(own, 0.0)
        names = {"ttft": "to the first token", "gap": "in the longest gaps", "tpot": "between tokens"}
        for measure, rise in changes.items():
            if measure != own and saved > 0 and rise > ELSEWHERE * saved:
                yield f"{span_text(rise)} more in excess {names[measure]}, {span_text(saved)} less {names[own]}"

    def _whole(self, trial: Trial) -> Floats:
        found = np.full(self.data.source.total, np.nan)
        rows = trial.outcomes
        assert rows is not None
        ended = rows["state"] == int(RequestState.finished)
        found[rows["request"][ended]] = times_ns(rows, "e2e")[ended]
        return found

    def _finished(self, trial: Trial) -> Bools:
        return ~np.isnan(self._whole(trial))

    def _met(self, trial: Trial, asked: tuple[str, ...]) -> Bools:
        assert trial.outcomes is not None
        met = self._finished(trial)
        for measure in MEASURES:
            if measure in asked:
                met &= ~(self.yardstick.excess(trial.outcomes, measure) > 0)
        return met

    def _surely(self, before: Floats, after: Floats, pairs: npt.NDArray[np.intp]) -> bool:
        order, block = self._blocks(pairs)
        draws = Draws(block)
        rise = draws.sums((after - before)[order])
        found = resampled(0.0, float((after - before)[pairs].sum()), (np.zeros_like(rise), rise), draws.blocks, "difference")
        return found.low is None or found.low > 0


def _not_replayed(trial: Trial, base: Trial) -> str:
    if trial.state == "stopped":
        return f"stopped at its share of {trial.iterations:,} iterations; the run itself took {base.iterations:,}"
    return trial.why or trial.state


def _verdict(cured: Interval, n: int, worse: tuple[str, ...], overlap: bool) -> tuple[Outcome, str]:
    """The outcome and its reason in words."""
    if cured.estimate is None or cured.low is None or cured.high is None:
        return "within noise", cured.why or ""
    low, high = cured.low, cured.high
    said = f"{min(cured.estimate, 1):.0%} of its excess is gone".replace("%", " %")
    if cured.estimate < 0:
        said = f"its excess grows by {-cured.estimate:.0%}".replace("%", " %")
    ends = [f"{100 * min(end, 1):.0f}" for end in (low, high)]
    if ends[0] != ends[1]:
        said += f" (95 %: {' to '.join(ends)} %)"
    said += f", {n:,} pairs"
    if overlap:
        said += "; all requests overlap, so the interval is narrower than it should be"
    if high < CURED:
        return "refuted", said + (": less than half" if low > 0 else "")
    if low <= 0 or cured.estimate < CURED:
        return "within noise", said
    if worse:
        return "refuted", f"{said}, but worse beyond the price: {'; '.join(worse)}"
    return "confirmed", said

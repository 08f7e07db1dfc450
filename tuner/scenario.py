"""One scenario of a capacity question: a policy, a profile, traffic, an SLO; what it attains at which rate, and what it costs.

Everything is a replay of the same windows, kept as cells, so that a rate is never replayed twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from replay_engine.config import ConfigError
from replay_engine.policy import Policy, apply_set
from replay_engine.profile import Profile
from tracekit.metrics import SloTable
from tracekit.traces.mix import check_mix, mix_line, parse_mix
from tuner.cells import Cell, Replays, Result
from tuner.objective import PER_MILLION, attainment, bisect_rate, fewest
from tuner.plan import TunePlan
from tuner.planning import cards_of
from tuner.ranges import fitted_ranges, outside_words
from tuner.what_if import WhatIf
from tuner.windows import StudyWindow

__all__ = ["PAST", "Scenario", "of_plan", "of_what_if"]

PAST = (0.5, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5)
"""Factors on the knee at which attainment is shown."""
SLOTS = 24
MOST_REPLICAS = 64


@dataclass(slots=True, kw_only=True)
class Scenario:
    """``rate``: how many times the arrival rate of the question its traffic has; ``tried`` by factor on the question's rate."""

    what: str
    policy: Policy
    profile: Profile
    slo: SloTable
    windows: tuple[StudyWindow, ...]
    rate: float
    price: float | None
    reasons: list[str]
    notes: list[str]
    plan: TunePlan
    replays: Replays
    step: Callable[[str], None]
    tried: dict[float, list[Result]] = field(default_factory=dict)

    def cells(self, policy: Policy, rate: float, windows: Sequence[StudyWindow] | None = None) -> list[Cell]:
        cells = [self.plan.cell(policy, window, rate=rate, profile=self.profile)
                 for window in (self.windows if windows is None else windows)]  # fmt: skip
        return [replace(cell, slo=self.slo) for cell in cells]

    def results(self, policy: Policy, rate: float, windows: Sequence[StudyWindow] | None = None) -> list[Result]:
        """One per window; ``rate``: a factor on the question's arrival rate."""
        found = []
        for cell in self.cells(policy, rate, windows):
            self.step(f"{self.what}: x{rate:.3g}")
            found.append(self.replays.result(cell))
        return found

    def attained(self, rate: float) -> float:
        """Share of the requests that attain their SLO at a rate, under the scenario's own policy."""
        if rate not in self.tried:
            self.tried[rate] = self.results(self.policy, rate)
        return attainment(self.tried[rate])

    @property
    def rate_per_s(self) -> float:
        """Requests per second of the question's traffic."""
        seconds = sum(window.end_ns - window.begin_ns for window in self.windows) / 1e9 / self.windows[0].rate_scale
        return sum(window.requests for window in self.windows) / seconds if seconds else 0.0

    def knee(self) -> dict[str, Any]:
        """``factor``: the highest that holds; ``above``: the lowest tried that does not; the curve around it and its slope;
        ``points``: every rate that was tried."""
        target = self.plan.target
        low, high = bisect_rate(lambda rate: self.attained(rate) >= target, low=self.rate)
        found: dict[str, Any] = {
            "what": self.what, "factor": low, "above": None if math.isinf(high) else high,
            "requests_per_s": low * self.rate_per_s, "rate_scale": self.rate, "attainment_now": self.attained(self.rate),
            "curve": [], "slope": None, "slo": self.slo.to_dict(), "notes": self.notes,
            "cards": cards_of(self.policy, self.profile), "profile": self.profile.name,
        }  # fmt: skip
        if low > 0 and not math.isinf(high):
            found["curve"] = [{"factor": low * f, "attainment": self.attained(low * f)} for f in PAST]
            at = {row["factor"]: row["attainment"] for row in found["curve"]}
            found["slope"] = (at[low * 1.2] - at[low]) / 2  # attainment lost per 10 % more traffic past the knee
        found["requests_per_s_per_card"] = found["requests_per_s"] / found["cards"]
        found["points"] = [self._point(rate) for rate in sorted(self.tried)]
        found["extrapolation"] = self.reasons
        found["range_known"] = bool(fitted_ranges(self.profile))
        return found

    def _point(self, rate: float) -> dict[str, Any]:
        """``extrapolation``: why it is one, in words; empty where every iteration lies within what the profile was fitted for."""
        results = self.tried[rate]
        outside = outside_words(self.profile, [result["ranges"] for result in results])
        return {"factor": rate, "requests_per_s": rate * self.rate_per_s, "attainment": attainment(results),
                "n": sum(result["n"] for result in results), "extrapolation": [*self.reasons, *outside]}  # fmt: skip

    def replicas(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Replicas for its traffic: by the ideal bound, slot by slot, and as replayed, at once and window by window."""
        engines = max(self.policy.rules.fleet.replicas, 1)
        if self.policy.rules.pd.prefill:
            return {"reason": "separate pools are sized by their split, not by replicas"}
        each = found["requests_per_s"] / engines
        if not each:
            return {"reason": "one replica serves nothing within the SLO at any rate tried"}
        slots = self._slots()
        bound = [max(math.ceil(rate / each), 1) for _, _, rate in slots]
        start = max(max(bound, default=1) // 2, 1)
        replayed = fewest(lambda n: self._holds(n, self.windows), start=start, most=MOST_REPLICAS)
        apart = [fewest(partial(self._holds, windows=(window,)), start=start, most=MOST_REPLICAS) for window in self.windows]
        ratio = None if replayed is None else replayed / max(bound)
        return {
            "per_replica_per_s": each, "slots": [round(rate, 4) for _, _, rate in slots], "bound": bound,
            "slot_s": [[begin, end] for begin, end, _ in slots], "bound_peak": max(bound),
            "bound_mean": sum(bound) / len(bound), "replayed": replayed, "ratio": ratio, "reason": None,
            "window_s": [[window.begin_ns / 1e9, window.end_ns / 1e9] for window in self.windows], "replayed_by_window": apart,
        }  # fmt: skip

    def of_replicas(self, count: int) -> Policy:
        """The policy on so many replicas, with a router where it has none yet. ``ConfigError`` where that is none."""
        router = ["fleet.router=least_tokens"] if self.policy.rules.fleet.replicas <= 1 and count > 1 else []
        return apply_set(self.policy, [f"fleet.replicas={count}", *router], self.profile)

    def _holds(self, count: int, windows: Sequence[StudyWindow]) -> bool:
        return attainment(self.results(self.of_replicas(count), self.rate, windows)) >= self.plan.target

    def _slots(self) -> list[tuple[float, float, float]]:
        """Begin and end (s of the trace) and arrivals per second of every slot of the windows, in time order."""
        found: list[tuple[float, float, float]] = []
        for window in self.windows:
            source = self.replays.sources.get(window, self.rate)
            starts = source.start_ns[source.counted]
            length = max(source.window_ns, 1)
            count = max(SLOTS // len(self.windows), 1)
            inside = np.bincount(np.clip((starts - starts.min()) * count // length, 0, count - 1), minlength=count)
            edges = np.linspace(window.begin_ns / 1e9, window.end_ns / 1e9, count + 1)
            found += [(float(edges[k]), float(edges[k + 1]), float(n) / (length / count / 1e9)) for k, n in enumerate(inside)]
        return found

    def cost(self, found: Mapping[str, Any]) -> dict[str, Any] | None:
        """Of the cards' hours, per million tokens of requests that met their SLO: for the traffic as it is and at the knee, and
        with as many replicas as the traffic needs. ``None`` without a price."""
        if self.price is None:
            return None
        needed = found["replicas"].get("replayed")
        rows = [{"at": "now", **self._cost(self.policy, self.rate)}]
        if found["factor"]:
            rows.append({"at": "knee", **self._cost(self.policy, found["factor"])})
        if needed is not None:
            try:
                rows.append({"at": "needed", **self._cost(self.of_replicas(needed), self.rate)})
            except ConfigError:  # a fleet that cannot be of so many has not been replayed either
                pass
        return {"price_per_hour": self.price, "rows": rows}

    def _cost(self, policy: Policy, rate: float) -> dict[str, Any]:
        results = self.tried.get(rate) if policy is self.policy else None
        results = results or self.results(policy, rate)
        assert self.price is not None
        cards, hours = cards_of(policy, self.profile), sum(result["window_s"] for result in results) / 3600
        output, inputs, cached = (sum(result[name] for result in results)
                                  for name in ("met_tokens", "met_input_tokens", "met_cached_tokens"))  # fmt: skip
        busy = [result["busy"] for result in results if result["busy"] is not None]
        spent = self.price * cards * hours

        def each(tokens: int) -> float | None:
            return spent / tokens * PER_MILLION if tokens else None

        return {"rate": rate, "cards": cards, "per_hour": self.price * cards, "per_million_output": each(output),
                "per_million_input_and_output": each(inputs + output), "output_tokens": output, "input_tokens": inputs - cached,
                "cached_input_tokens": cached, "idle": 1 - sum(busy) / len(busy) if busy else None}  # fmt: skip


def of_plan(plan: TunePlan, replays: Replays, step: Callable[[str], None]) -> Scenario:
    """The policy and the traffic as they are."""
    windows = plan.trace.search
    part = windows[0].part
    own: dict[str, float] = {name: float(part.get(name, 1.0)) for name in ("isl_scale", "osl_scale")}
    return Scenario(what="as it is", policy=plan.policy, profile=plan.profile, slo=plan.slo, windows=windows, rate=1.0,
                    price=plan.price, reasons=_reasons(windows[0], replays, own, None), notes=[], plan=plan,
                    replays=replays, step=step)  # fmt: skip


def of_what_if(base: Scenario, text: str, changed: WhatIf) -> Scenario:
    """What ``text`` makes of the question."""
    lengths = {name: factor for name, factor in changed.traffic.items() if name != "rate_scale"}
    windows = tuple(replace(window, part=_scaled(window.part, lengths)) for window in base.windows)
    notes, more = list(changed.notes), list[str]()
    if changed.mix is not None:
        windows, line, more = _mixed(windows, base.replays, changed.mix)
        notes.append(line)
    own: dict[str, float] = {name: float(windows[0].part.get(name, 1.0)) for name in ("isl_scale", "osl_scale")}
    reasons = _reasons(windows[0], base.replays, own, changed.guessed)
    return replace(
        base, what=text, policy=changed.policy, profile=changed.profile, slo=changed.slo or base.slo, windows=windows,
        rate=changed.traffic.get("rate_scale", 1.0), price=base.price if changed.price is None else changed.price,
        reasons=[*reasons, *more], notes=notes, tried={},
    )  # fmt: skip


def _mixed(windows: tuple[StudyWindow, ...], replays: Replays, mix: str) -> tuple[tuple[StudyWindow, ...], str, list[str]]:
    """The windows with another mix of classes and tenants, what became of the shares in the first, and why prefix hits are
    not those of such traffic, where they are not."""
    found = tuple(replace(window, part={**window.part, "mix": mix}) for window in windows)
    check_mix(mix, [replays.sources.get(window) for window in windows])
    sources = [replays.sources.get(window) for window in found]
    before = replays.sources.get(windows[0])
    line = mix_line(before, sources[0], mix)
    reasons = []
    if before.run_offsets is not None and any(factor > 1 for factor in parse_mix(mix).values()):
        reasons.append("copies of requests share with their originals what several requests of the trace have in common, so that"
                       " there may be more prefix hits than in such traffic")  # fmt: skip
    counted = (int(source.counted.sum()) for source in sources)
    return tuple(replace(window, requests=many) for window, many in zip(found, counted, strict=True)), line, reasons


def _scaled(part: Mapping[str, Any], factors: Mapping[str, float]) -> dict[str, Any]:
    """Lengths come on top of the question's own; so does a power of gaps, as a power of a power."""
    found = dict(part)
    for name, factor in factors.items():
        found[name] = float(part.get(name, 1.0)) * factor
    return found


def _reasons(window: StudyWindow, replays: Replays, scaled: Mapping[str, float], guessed: str | None) -> list[str]:
    """Why nothing of a scenario is more than an extrapolation."""
    found = [] if guessed is None else [guessed]
    source = replays.sources.get(window)
    isl, osl = scaled.get("isl_scale", 1.0), scaled.get("osl_scale", 1.0)
    if isl != 1.0 and source.run_offsets is not None:
        longer, shorter = "what is added to a prompt is shared with nobody", "what was shared behind the cut is shared no more"
        where = longer if isl > 1 else shorter
        found.append(f"prompts are {isl:g} times as long as in the trace, and its prefix hashes break there: {where}, so that"
                     " prefix hits are not those of such traffic")  # fmt: skip
    if osl != 1.0 and source.parent is not None:
        found.append(f"outputs are {osl:g} times as long as in the trace, and the next turn's prompt does not grow with them")
    return found

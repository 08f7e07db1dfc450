"""``capacity``: how much more traffic a policy takes before the SLO no longer holds, and what it would take to serve it.

A one-dimensional question is bisected, not optimised: the arrival rate is scaled until attainment falls below the target, on the
same windows each time. Beside the knee stands what follows it: the slope, and attainment past it. Replicas over time are given
twice, as the bound of an ideal autoscaler (arrivals of a slot over what one replica serves) and as replayed, with queueing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from replay_engine.policy import Policy, apply_set
from tracekit.experiments.run import _READING
from tracekit.manifest import MANIFEST
from tracekit.store import Store
from tracekit.work_manifest import write_work_manifest
from tuner.cells import CELLS, CellFile, Replays
from tuner.objective import attainment, bisect_rate, fewest
from tuner.plan import TunePlan
from tuner.planning import cards_of, make_plan
from tuner.what_if import resolve_what_if
from tuner.windows import WindowSources

__all__ = ["CapacityReport", "capacity"]

PAST = (0.8, 0.9, 1.0, 1.1, 1.2, 1.5)
"""Factors on the knee at which attainment is shown."""
SLOTS = 24
_DEFAULTS: dict[str, Any] = {
    "goodput": None, "policy": None, "sets": (), "profile": None, "space": None, "objective": "goodput", "target": 0.9,
    "price_per_hour": None, "windows": 4, "holdout": 0, "split": "alternate", "length": None, "window": None, "rate_scale": 1.0,
    "where": None, "thin": None, "by": None, "spread_ticks": False, "sessions": None, "also": (), "seed": 0,
    "accept_degraded": False, "isl_scale": 1.0, "osl_scale": 1.0,
}  # fmt: skip
Say = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class CapacityReport:
    """The document (``tracekit.capacity/1``), its text, the lines that were said."""

    document: dict[str, Any]
    text: str
    lines: list[str] = field(default_factory=list)


def capacity(trace: str, *, slo: str | None = None, what_if: Sequence[str] = (), db: str | Path = "tracekit.duckdb",
             say: Say | None = None, **options: Any) -> CapacityReport:  # fmt: skip
    """The knee of ``trace`` under the current policy, and under each of ``what_if``: ``knob=value`` settings separated by
    spaces, and what ``tuner.what_if`` knows besides: hardware, tensor parallel, KV precision, lost replicas. Options are those of
    ``tune``, and ``isl_scale`` and ``osl_scale``. Errors: ``UsageError``, ``InputError``, ``ConfigError``."""
    if unknown := set(options) - set(_DEFAULTS) - set(_READING):
        raise TypeError(f"capacity() got an unexpected keyword argument '{min(unknown)}'")
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if say is not None:
            say(line)

    store = Store(db)
    plan = make_plan(store, {**_DEFAULTS, **_READING, **options, "slo": slo, "trace": trace}, tell)
    folder = store.folder / "tune" / f"capacity-{plan.key()}"
    folder.mkdir(parents=True, exist_ok=True)
    measured = _Measured(plan, Replays(WindowSources(store), CellFile(folder / CELLS)))
    document: dict[str, Any] = {"schema": "tracekit.capacity/1", "trace": plan.trace.name, "traffic": list(plan.trace.lines),
                                "slo": plan.slo.to_dict(), "target": plan.target}  # fmt: skip
    document |= measured.knee(plan.policy)
    document["replicas"] = measured.replicas(document)
    document["what_if"] = [measured.what_if(text, document) for text in what_if]
    write_work_manifest(folder / MANIFEST, "capacity", given={**options, "trace": trace, "slo": slo, "what_if": list(what_if)},
                        rests_on={"key": plan.key(), "plan": plan.to_dict()}, result=document)  # fmt: skip
    return CapacityReport(document=document, text=_text(document), lines=lines)


class _Measured:
    """Replays of one plan at other rates, policies and profiles."""

    def __init__(self, plan: TunePlan, replays: Replays) -> None:
        self._plan, self._replays = plan, replays
        windows = plan.trace.search
        seconds = sum(window.end_ns - window.begin_ns for window in windows) / 1e9 / windows[0].rate_scale
        self._rate = sum(window.requests for window in windows) / seconds if seconds else 0.0

    def attained(self, policy: Policy, rate: float, profile: Any = None) -> float:
        plan = self._plan
        cells = [plan.cell(policy, window, rate=rate, profile=profile) for window in plan.trace.search]
        return attainment([self._replays.result(cell) for cell in cells])

    def knee(self, policy: Policy, profile: Any = None) -> dict[str, Any]:
        """``factor``: the highest that holds; ``above``: the lowest tried that does not; the curve around it and its slope."""
        target = self._plan.target
        low, high = bisect_rate(lambda rate: self.attained(policy, rate, profile) >= target)
        found: dict[str, Any] = {"factor": low, "above": None if math.isinf(high) else high, "requests_per_s": low * self._rate,
                                 "attainment_now": self.attained(policy, 1.0, profile), "curve": [], "slope": None}  # fmt: skip
        if low > 0 and not math.isinf(high):
            found["curve"] = [{"factor": low * f, "attainment": self.attained(policy, low * f, profile)} for f in PAST]
            at = {row["factor"]: row["attainment"] for row in found["curve"]}
            found["slope"] = (at[low * 1.2] - at[low]) / 2  # attainment lost per 10 % more traffic past the knee
        return found

    def replicas(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """Replicas for the traffic as it is: by the ideal bound, slot by slot, and as replayed."""
        plan, engines = self._plan, max(self._plan.policy.rules.fleet.replicas, 1)
        if plan.policy.rules.pd.prefill:
            return {"reason": "separate pools are sized by their split, not by replicas"}
        each = base["requests_per_s"] / engines
        if not each:
            return {"reason": "one replica serves nothing within the SLO at any rate tried"}
        slots = self._slots()
        bound = [max(math.ceil(rate / each), 1) for rate in slots]
        found = fewest(self._holds, start=max(max(bound, default=1) // 2, 1), most=64)
        ratio = None if found is None else found / max(bound)
        return {"per_replica_per_s": each, "slots": [round(rate, 4) for rate in slots], "bound": bound, "bound_peak": max(bound),
                "bound_mean": sum(bound) / len(bound), "replayed": found, "ratio": ratio, "reason": None}  # fmt: skip

    def _holds(self, replicas: int) -> bool:
        plan = self._plan
        router = ["fleet.router=least_tokens"] if plan.policy.rules.fleet.replicas == 1 and replicas > 1 else []
        policy = apply_set(plan.policy, [f"fleet.replicas={replicas}", *router], plan.profile)
        return self.attained(policy, 1.0) >= plan.target

    def _slots(self) -> list[float]:
        """Arrivals per second of every slot of the windows, in time order."""
        rates: list[float] = []
        windows = self._plan.trace.search
        for window in windows:
            source = self._replays.sources.get(window)
            starts = source.start_ns[source.counted]
            length = max(source.window_ns, 1)
            count = max(SLOTS // len(windows), 1)
            inside = np.bincount(np.clip((starts - starts.min()) * count // length, 0, count - 1), minlength=count)
            rates += [float(n) / (length / count / 1e9) for n in inside]
        return rates

    def what_if(self, text: str, base: Mapping[str, Any]) -> dict[str, Any]:
        """Another policy, other hardware, other precision or fewer replicas, at the same SLO."""
        changed = resolve_what_if(self._plan, text)
        found = self.knee(changed.policy, changed.profile)
        cards = cards_of(changed.policy, changed.profile)
        over = found["factor"] / base["factor"] if base["factor"] else None
        return {"what": text, **found, "notes": changed.notes, "cards": cards, "over_current": over,
                "requests_per_s_per_card": found["requests_per_s"] / cards}  # fmt: skip


def _text(document: Mapping[str, Any]) -> str:
    lines = [f"{document['trace']}: {document['traffic'][0]}", ""]
    lines += _knee_lines(document, document["target"], "The current policy")
    replicas = document["replicas"]
    if replicas["reason"] is not None:
        lines.append(f"Replicas: {replicas['reason']}")
    else:
        replayed = replicas["replayed"]
        ratio = "" if replayed is None else f", {replicas['ratio']:.2f} times the bound's peak"
        lines.append(f"Replicas: an ideal autoscaler at {replicas['per_replica_per_s']:.3g} requests/s each needs"
                     f" {replicas['bound_mean']:.2f} on average, {replicas['bound_peak']} at the peak (a lower bound);"
                     f" replayed, with queueing: {'more than 64' if replayed is None else replayed}{ratio}")  # fmt: skip
    for row in document["what_if"]:
        lines.append("")
        lines += _knee_lines(row, document["target"], f"What if {row['what']}")
        if row["over_current"] is not None:
            cards = f"{row['cards']} card{'s' * (row['cards'] > 1)}: {row['requests_per_s_per_card']:.3g} requests/s each"
            lines.append(f"  {row['over_current']:.2f} times the current capacity; on {cards}")
        lines += [f"  {note}" for note in row["notes"]]
    return "\n".join(lines) + "\n"


def _knee_lines(found: Mapping[str, Any], target: float, who: str) -> list[str]:
    goal = f"{100 * target:.0f} %"
    now = f"{100 * found['attainment_now']:.1f} % attain their SLO at the rate as it is"
    if not found["factor"]:
        return [f"{who}: {goal} is not reached at any rate down to 1/64; {now}"]
    if found["above"] is None:
        return [f"{who}: {goal} is still reached at x{found['factor']:g}, the highest rate tried; {now}"]
    lines = [f"{who}: the knee is at x{found['factor']:.3g} ({found['requests_per_s']:.3g} requests/s): {goal} attain their SLO"
             f" there and no longer at x{found['above']:.3g}; {now}",
             f"  past the knee every 10 % more traffic costs {-100 * found['slope']:.1f} points of attainment"]  # fmt: skip
    lines.append("  " + ", ".join(f"x{row['factor']:.3g}: {100 * row['attainment']:.1f} %" for row in found["curve"]))
    return lines

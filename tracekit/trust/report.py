"""A trust report: the figures as plain values, the verdict, and the profile that carries it on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from replay_engine.profile import Profile
from tracekit.calibration.sources import write_profile
from tracekit.metrics.verdict import Ranked, Verdict
from tracekit.trust.drift import Drift

__all__ = ["TrustReport"]


@dataclass(slots=True, kw_only=True)
class TrustReport:
    """``parts``: by name (``all``, and with a split ``held out`` and the rest: ``first half``, or ``other half`` of a random
    one) the comparison of each latency; ``over_time``: running, waiting and KV; ``ranked``: agreement of configurations by
    objective, the first of which the verdict is made from; ``drift``: whether the trace's service changes over its time;
    ``load``, ``sensitivity`` (by how many % the mean TTFT grows with a step time 1 % longer), ``extrapolated``."""

    profile: Profile
    trace: str
    requests: int
    verdict: Verdict
    parts: dict[str, dict[str, dict[str, Any] | None]]
    makespan_s: tuple[float | None, float | None]
    over_time: dict[str, Any] | None
    load: dict[str, Any]
    regime: str
    sensitivity: float | None
    drift: Drift | None
    extrapolated: list[dict[str, Any]]
    ranked: dict[str, Ranked] = field(default_factory=dict)
    configs: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        """What every run with this profile repeats."""
        return f"{self.verdict.words}; checked on {self.trace} ({self.requests:,} requests)"

    def checked(self) -> Profile:
        """The profile with the verdict in its ``[fit]``, from where the matrix of a run takes it."""
        return replace(self.profile, fit=self.profile.fit | {"trust": self.line})

    def write(self, file: str | Path) -> None:
        """The checked profile as TOML. ``UsageError``: the file cannot be written."""
        write_profile(self.checked(), file)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        verdict = self.verdict
        return {
            "profile": self.profile.name, "trace": self.trace, "requests": self.requests,
            "verdict": asdict(verdict),
            "notes": list(self.notes), "parts": self.parts,
            "makespan_s": {"predicted": self.makespan_s[0], "observed": self.makespan_s[1]}, "over_time": self.over_time,
            "drift": None if self.drift is None else asdict(self.drift) | {"words": self.drift.words},
            "load": self.load, "regime": self.regime, "ttft_sensitivity": self.sensitivity, "extrapolation": self.extrapolated,
            "ranking": {
                name: {"configs": each.configs, "tau": each.tau, "regret": each.regret} for name, each in self.ranked.items()
            },
            "configs": self.configs,
        }  # fmt: skip

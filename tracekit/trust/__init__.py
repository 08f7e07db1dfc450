"""How far a profile can be believed on a trace: predicted against observed, configurations, load, extrapolation, a verdict."""

from __future__ import annotations

from tracekit.trust.check import check_profile
from tracekit.trust.ranking import kendall_tau, regret_of
from tracekit.trust.report import TrustReport

__all__ = ["TrustReport", "check_profile", "kendall_tau", "regret_of"]

"""Policy search over a trace: what to set for the best SLO-goodput, and the proof on traffic that was not searched."""

from __future__ import annotations

from tuner.capacity import CapacityReport, capacity
from tuner.trial_replay import replay_trial
from tuner.tune import TuneReport, tune

__all__ = ["CapacityReport", "TuneReport", "capacity", "replay_trial", "tune"]

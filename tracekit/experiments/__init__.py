"""Controlled experiments: one factor, the same windows at every level, and what may be concluded from the differences."""

from __future__ import annotations

from tracekit.experiments.run import ExperimentReport, experiment, recorded_experiment

__all__ = ["ExperimentReport", "experiment", "recorded_experiment"]

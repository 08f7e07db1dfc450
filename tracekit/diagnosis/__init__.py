"""Why the tail is bad: where every request's time went, which limit took it, what to change, and the proof by replay."""

from __future__ import annotations

from tracekit.diagnosis.attribution import Attribution, Blame, attribute
from tracekit.diagnosis.run_data import RunData
from tracekit.diagnosis.stored import load_run_data

__all__ = ["Attribution", "Blame", "RunData", "attribute", "load_run_data"]

"""From measured iterations to a latency profile: batches to measure, fits of the simulator's form, what the fit implies."""

from __future__ import annotations

__all__: list[str] = []

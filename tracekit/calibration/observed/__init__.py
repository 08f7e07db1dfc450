"""Profiles from latencies observed in a trace: no accelerator, no iteration log, only what a service's log says of its requests.

``fit.py`` is the whole: a first guess from the observations (``first_guess.py``), steps of least squares with slopes of one
replay (``sensitivity.py``, ``search.py``), limits read from who waited for what (``limits.py``) and tried (``scan.py``), and what
the observations could tell at all (``telling.py``).
"""

from __future__ import annotations

__all__: list[str] = []

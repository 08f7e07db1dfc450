"""tracekit: why is the tail of an LLM service's traffic bad, and which scheduler settings fix it?

``from tracekit.replay import replay`` is the main job, ``tracekit.experiment(...)`` a controlled experiment,
``tracekit.compare(...)`` two runs side by side, ``tracekit.diagnose(...)`` why a run is slow and what helps; the command line
is ``tracekit``. Importing the package loads nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracekit.comparison import compare
    from tracekit.diagnosis.observed_run import diagnose_trace
    from tracekit.diagnosis.run import diagnose
    from tracekit.experiments import experiment

__all__ = ["__version__", "compare", "diagnose", "diagnose_trace", "experiment"]

__version__ = "0.1.0"

_LAZY = {
    "compare": "tracekit.comparison",
    "diagnose": "tracekit.diagnosis.run",
    "diagnose_trace": "tracekit.diagnosis.observed_run",
    "experiment": "tracekit.experiments",
}


def __getattr__(name: str) -> Any:
    """Functions of the package's face are imported when they are first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)

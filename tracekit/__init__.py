"""tracekit: why is the tail of an LLM service's traffic bad, and which scheduler settings fix it?

Every verb of the command line is a function here, with the same names and defaults: ``tracekit.load``, ``replay``, ``describe``,
``diagnose``, ``compare``, ``experiment``, ``calibrate``, ``tune``, ``gate``. They return typed objects whose tables are polars
frames. Importing the package loads nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracekit.api import diagnose, load
    from tracekit.calibration.verb import calibrate
    from tracekit.comparison import compare
    from tracekit.describe.report import describe
    from tracekit.experiments import experiment
    from tracekit.gate.run import gate
    from tracekit.replay import replay

__all__ = ["__version__", "calibrate", "compare", "describe", "diagnose", "experiment", "gate", "load", "replay", "tune"]

__version__ = "0.1.0"

_LAZY = {
    "calibrate": "tracekit.calibration.verb", "compare": "tracekit.comparison", "describe": "tracekit.describe",
    "diagnose": "tracekit.api", "experiment": "tracekit.experiments", "gate": "tracekit.gate.run", "load": "tracekit.api",
    "replay": "tracekit.replay", "tune": "tuner",
}  # fmt: skip
"""Where each verb is. The tuner stands on this package and not the other way round: it is looked up when it is asked for."""


def __getattr__(name: str) -> Any:
    """Functions of the package's face are imported when they are first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

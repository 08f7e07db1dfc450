"""tracekit: why is the tail of an LLM service's traffic bad, and which scheduler settings fix it?

``from tracekit.replay import replay`` is the main job; the command line is ``tracekit``. Importing the package loads
nothing heavy.
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"

"""One answer per commit: property tests draw the same examples every time, unless ``TRACEKIT_EXPLORE`` asks for new ones.

A landing must not depend on the draw. Looking for what no draw has met yet is its own command: ``make explore``.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine, not about the code.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _UNTIMED, derandomize=True, database=None)
settings.register_profile("explore", _UNTIMED, derandomize=False, print_blob=True)
settings.load_profile("explore" if os.environ.get("TRACEKIT_EXPLORE") else "same")

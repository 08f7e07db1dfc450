"""The instrumented engine: a real model over paged KV, driven by the same scheduler and loop as the simulator.

The only part of ``replay_engine`` that imports torch and ``replay_kernels``. Nothing is imported here, so that asking for one
module does not load the rest.
"""

from __future__ import annotations

__all__: list[str] = []

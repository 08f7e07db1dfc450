"""Detectors, one family a module: each looks at a ``View`` and claims the waits that it can name a cause for, or says nothing."""

from __future__ import annotations

from collections.abc import Callable

from tracekit.diagnosis.claim import Claim
from tracekit.diagnosis.detect.admission import admission_strict, preemption_storm
from tracekit.diagnosis.detect.chunks import aligned_away, fixed_cost, too_large, underused
from tracekit.diagnosis.detect.crowding import crowded
from tracekit.diagnosis.detect.limits import queue_budget, queue_kv, queue_seats
from tracekit.diagnosis.detect.load import burst, overload
from tracekit.diagnosis.detect.long_prompts import hol_long_prompt
from tracekit.diagnosis.detect.order import starvation
from tracekit.diagnosis.detect.passed_over import order_ignored, passed_over
from tracekit.diagnosis.detect.pools import imbalance, pool_sizes
from tracekit.diagnosis.detect.prefixes import prefix_miss
from tracekit.diagnosis.detect.stalls import prefill_stalls_decode
from tracekit.diagnosis.detect.waits_elsewhere import client_limit, kv_transfer
from tracekit.diagnosis.view import View

__all__ = ["DETECTORS", "Detector"]

Detector = Callable[[View], "Claim | tuple[Claim, ...] | None"]

DETECTORS: tuple[Detector, ...] = (
    client_limit,
    kv_transfer,
    starvation,
    order_ignored,
    admission_strict,
    preemption_storm,
    prefix_miss,
    imbalance,
    pool_sizes,
    aligned_away,
    underused,
    prefill_stalls_decode,
    overload,
    hol_long_prompt,
    queue_seats,
    passed_over,
    fixed_cost,
    burst,
    too_large,
    crowded,
    queue_kv,
    queue_budget,
)
"""In the order in which claims are settled: from causes that are seen directly to those that are left when nothing else is."""

"""What the iterations' time went into by the profile's form: whether a stretch of time is bound by compute, memory or the host.

``split = time_split(data)``; ``split.between(t0, t1)`` sums its parts; ``split.bound(t0, t1)`` names the largest kind. The view
``iterations_split`` of the database has the same columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.diagnosis.iteration_cost import CostForm

if TYPE_CHECKING:
    from tracekit.diagnosis.run_data import RunData

__all__ = ["KINDS", "PARTS", "TimeSplit", "split_rows", "time_split"]

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]

PARTS: dict[str, str] = {
    "weights": "one read of the weights, whatever is computed",
    "prefill": "prompt tokens, beyond what fits under that read",
    "attention": "prompt tokens looking back at their context",
    "kv": "reading the KV of those that decode, and waiting for the longest of them",
    "seqs": "each sequence that decodes, and rows that pad them to a captured graph",
    "host": "the host's time that the device does not cover",
    "rest": "what the profile does not account for: copies, a slow device, its error; negative where it promised more",
}
"""Parts of an iteration's duration, in order of the columns."""
KINDS: dict[str, tuple[str, ...]] = {
    "compute": ("prefill", "attention"),
    "memory": ("weights", "kv", "seqs"),
    "host": ("host",),
    "rest": ("rest",),
}


def split_rows(rows: Rows, form: CostForm) -> Ints:
    """Rows of ``iterations`` of one engine as ns by part, shape (n, 7); each row sums exactly to its duration.

    Under asynchronous scheduling host time counts only as far as it outlasts the device. Where copies come on top as well, some
    of theirs may stand as the host's.
    """
    latency = form.latency
    tokens, device, host = (rows[name].astype(np.float64) for name in ("prefill_tokens", "device_ns", "host_ns"))
    busy = (tokens > 0) | (rows["decode_seqs"] > 0)
    exposed = np.where(rows["duration_ns"] >= device + host, host, np.maximum(host - device, 0.0))
    exposed = np.minimum(exposed, rows["duration_ns"])
    terms = (
        np.where(busy, form.weights_ns, 0.0), form.prefill_ns(tokens), latency.c_ns * rows["prefill_qk"],
        form.kv_ns(rows), form.seqs_ns(rows), exposed,
    )  # fmt: skip
    found = np.zeros((len(rows), len(PARTS)), np.int64)
    for k, term in enumerate(terms):
        found[:, k] = np.floor(np.asarray(term, np.float64) + 0.5)
    found[:, -1] = rows["duration_ns"] - found.sum(axis=1)
    return found


@dataclass(frozen=True)
class TimeSplit:
    """``parts[i, k]``: ns of row ``i`` of ``iterations`` in part ``k`` of ``PARTS``; ``start_ns`` of the same rows."""

    start_ns: Ints
    parts: Ints

    @cached_property
    def _by_time(self) -> tuple[Ints, Ints]:
        """Starts in order, over all replicas, and the running sums of the parts."""
        order = np.argsort(self.start_ns, kind="stable")
        sums = np.zeros((len(order) + 1, len(PARTS)), np.int64)
        np.cumsum(self.parts[order], axis=0, out=sums[1:])
        return self.start_ns[order], sums

    def between(self, t0_ns: int | None = None, t1_ns: int | None = None) -> dict[str, int]:
        """Ns by part, over the iterations of all replicas that begin from ``t0_ns`` on and before ``t1_ns``."""
        starts, sums = self._by_time
        low = 0 if t0_ns is None else int(np.searchsorted(starts, t0_ns, side="left"))
        high = len(starts) if t1_ns is None else int(np.searchsorted(starts, t1_ns, side="left"))
        return dict(zip(PARTS, (sums[max(high, low)] - sums[low]).tolist(), strict=True))

    def bound(self, t0_ns: int | None = None, t1_ns: int | None = None) -> tuple[str, float]:
        """What that time was bound by (a key of ``KINDS``) and its share of the time; ``("idle", 0.0)`` without an iteration."""
        return bound_by(self.between(t0_ns, t1_ns))


def bound_by(parts: Mapping[str, int]) -> tuple[str, float]:
    """The kind that most of the time went into, and its share."""
    total = sum(parts.values())
    if total <= 0:
        return "idle", 0.0
    kinds = {kind: sum(parts[name] for name in names) for kind, names in KINDS.items()}
    most = max(kinds, key=lambda kind: kinds[kind])
    return most, kinds[most] / total


def time_split(data: RunData) -> TimeSplit:
    """Every iteration of a run, on its profile. For a run on a real engine ``rest`` shows what that profile misses."""
    rows, latency = data.iterations, data.profile.latency
    parts = np.zeros((len(rows), len(PARTS)), np.int64)
    for replica in data.replicas:
        own = rows["replica"] == replica
        parts[own] = split_rows(rows[own], CostForm(latency, data.engine_of(replica).async_scheduling))
    return TimeSplit(rows["start_ns"].astype(np.int64), parts)

"""What the profile's form says of many iterations at once: the simulator's formula on arrays, term by term.

``device = max(floor, a + b*tokens) + c*qk + d*seqs + e*kv``, what pads decodes, and how far the longest context is above
the mean; host time is the recorded one. Weights are read whether or not there is a prompt, so an iteration without prefill pays
``max(floor, a)``, and prefill costs what it adds: nothing below the knee.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay_engine.buckets import padding_of
from replay_engine.tables import LONGEST

if TYPE_CHECKING:
    from replay_engine.profile import Latency

__all__ = ["CostForm", "own_qk"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class CostForm:
    """How long iterations of one engine take. ``asynchronous``: host and device time overlap and the longer one counts."""

    latency: Latency
    asynchronous: bool

    @property
    def weights_ns(self) -> float:
        """Device time of an iteration before it has computed anything."""
        return max(self.latency.floor_ns, self.latency.a_ns)

    def prefill_ns(self, tokens: Floats) -> Floats:
        """What ``tokens`` prefill tokens add to the reading of weights."""
        latency = self.latency
        found: Floats = np.maximum(latency.a_ns + latency.b_ns * tokens, self.weights_ns) - self.weights_ns
        return np.where(tokens > 0, found, 0.0)

    def seqs_ns(self, rows: Rows | Mapping[str, npt.NDArray[Any]]) -> Floats:
        """What the decoding sequences of rows of ``iterations`` take, with the rows that pad them."""
        found: Floats = self.latency.d_ns * rows["decode_seqs"]
        if self.latency.p_ns:
            found = found + self.latency.p_ns * padding_of(rows["prefill_tokens"], rows["decode_seqs"])
        return found

    def skew_ns(self, rows: Rows | Mapping[str, npt.NDArray[Any]]) -> Floats:
        """What the longest context of the decodes takes beyond the mean one: nothing where it costs nothing, or is not told."""
        seqs = rows["decode_seqs"]
        if not self.latency.s_ns or LONGEST[0] not in _names(rows):
            return np.zeros(len(seqs))
        above = rows[LONGEST[0]].astype(np.int64) * seqs - rows["decode_kv_tokens"]
        found: Floats = self.latency.s_ns * above / np.maximum(seqs, 1)
        return np.where(above > 0, found, 0.0)

    def kv_ns(self, rows: Rows | Mapping[str, npt.NDArray[Any]]) -> Floats:
        """What reading the KV of those that decode takes, and waiting for the longest of them."""
        found: Floats = self.latency.e_ns * rows["decode_kv_tokens"]
        return found + self.skew_ns(rows) if self.latency.s_ns else found

    def prompts_ns(self, rows: Rows | Mapping[str, npt.NDArray[Any]]) -> Floats:
        """What the prompts of rows of ``iterations`` add to the device's time, less what would pad the decodes without them."""
        tokens = rows["prefill_tokens"].astype(np.float64)
        found: Floats = self.prefill_ns(tokens) + self.latency.c_ns * rows["prefill_qk"]
        if self.latency.p_ns:
            found -= np.where(tokens > 0, self.latency.p_ns * padding_of(np.zeros(len(tokens)), rows["decode_seqs"]), 0.0)
        return found

    def device_ns(self, rows: Rows | Mapping[str, npt.NDArray[Any]]) -> Floats:
        """Predicted device time of rows of ``iterations`` (or of its columns); 0 where nothing was computed."""
        tokens = rows["prefill_tokens"].astype(np.float64)
        latency = self.latency
        found: Floats = self.weights_ns + self.prefill_ns(tokens) + latency.c_ns * rows["prefill_qk"] + self.seqs_ns(rows)
        found += self.kv_ns(rows)
        return np.where((tokens > 0) | (rows["decode_seqs"] > 0), found, 0.0)

    def expected_ns(self, rows: Rows | Mapping[str, npt.NDArray[Any]]) -> Floats:
        """Predicted duration of rows of ``iterations`` (or of its columns), the recorded host time included. One that computes
        nothing takes as long as the engine waited."""
        device, host = self.device_ns(rows), rows["host_ns"].astype(np.float64)
        found: Floats = np.maximum(device, host) if self.asynchronous else device + host
        return np.where(device > 0, found, rows["duration_ns"])

    def saved_ns(self, rows: Rows, less: Floats) -> Ints:
        """By how much rows of ``iterations`` had been shorter, had the device been busy ``less`` ns (predicted) less.

        Measured device time is held to the prediction by its ratio, so that a slow device is slow in all its parts.
        """
        predicted = self.device_ns(rows)
        device, host = rows["device_ns"].astype(np.float64), rows["host_ns"].astype(np.float64)
        scale = np.divide(device, predicted, out=np.zeros_like(device), where=predicted > 0)
        shorter = np.maximum(device - scale * less, 0.0)
        gone = np.maximum(device, host) - np.maximum(shorter, host) if self.asynchronous else device - shorter
        return np.clip(np.rint(gone).astype(np.int64), 0, rows["duration_ns"])


def _names(rows: Rows | Mapping[str, npt.NDArray[Any]]) -> Collection[str]:
    return rows.keys() if isinstance(rows, Mapping) else rows.dtype.names or ()


def own_qk(entries: Rows) -> Floats:
    """Attention work of prefill entries, query x context, as ``iterations.prefill_qk`` counts it."""
    query = entries["query_len"].astype(np.float64)
    return query * (entries["kv_len"] - query) + np.floor(query * query / 2)

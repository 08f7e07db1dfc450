"""The simulated executor: an iteration's duration predicted from its shape. It shares scheduler, loop and events with every
other executor."""

from __future__ import annotations

from replay_engine.buckets import padding
from replay_engine.profile import Latency
from replay_engine.types import BatchPlan, IterationResult

__all__ = ["SimExecutor"]


class _Done(IterationResult):
    """A result that is there at once."""

    __slots__ = ()

    def wait(self) -> IterationResult:
        return self


class SimExecutor:
    """``device = max(floor, a + b*tokens) + c*qk + d*seqs + e*kv``; ``host = h0 + h1*running + h2*(joined + left)``. With a cost
    of padding, an iteration without prefill pays it for each row that its decodes are padded by.

    Synchronous: host and device add up. Asynchronous: they overlap, the longer one counts. A plan without tokens runs nothing on
    the device. Copies that the iteration has to wait for (``link_ns``) come on top. At most two results are alive at a time
    (iterations n and n+1), so two objects take turns.
    """

    __slots__ = (
        "_a", "_asynchronous", "_b", "_c", "_d", "_e", "_floor", "_h0", "_h1", "_h2", "_latency", "_next", "_other",
        "_padding",
    )  # fmt: skip

    def __init__(self, latency: Latency, *, asynchronous: bool) -> None:
        self._latency = latency
        self.slow_down(1.0)
        self._asynchronous = asynchronous
        self._next = _Done(0, 0, 0)
        self._other = _Done(0, 0, 0)

    def slow_down(self, factor: float) -> None:
        """What is submitted from now on takes ``factor`` times as long as the model says, on the device and on the host."""
        latency = self._latency
        self._floor, self._a, self._b = latency.floor_ns * factor, latency.a_ns * factor, latency.b_ns * factor
        self._c, self._d, self._e = latency.c_ns * factor, latency.d_ns * factor, latency.e_ns * factor
        self._h0, self._h1, self._h2 = latency.h0_ns * factor, latency.h1_ns * factor, latency.h2_ns * factor
        self._padding = [latency.p_ns * factor * rows for rows in padding()] if latency.p_ns else []

    def decode_terms(self) -> tuple[bool, float, float, float, int]:
        """What ``decode_cost`` is made of: whether host time is one for all and nothing pads, device ns of an iteration, per
        sequence and per KV token, and host ns where nobody runs."""
        fixed = not self._h1 and not self._h2 and not self._padding
        return fixed, max(self._floor, self._a), self._d, self._e, round(self._h0)

    def decode_cost(self, seqs: int, running: int, changes: int) -> tuple[float, float, int]:
        """For iterations that only decode ``seqs`` of ``running`` sequences, ``changes`` of which joined or left since the
        last plan: device
        ns apart from KV reads, ns per KV token, and host ns."""
        base = (self._floor if self._floor > self._a else self._a) + self._d * seqs
        if seqs < len(self._padding):
            base += self._padding[seqs]
        return base, self._e, round(self._h0 + self._h1 * running + self._h2 * changes)

    def chunk_terms(self, tokens: int, seqs: int, running: int) -> tuple[float, float, float, float, int]:
        """For iterations that prefill ``tokens`` beside ``seqs`` decodes, with ``running`` sequences in all, none of which joined
        or left since the last plan (or host time is one for all): device ns of the tokens, per unit of attention work, of the
        decodes, and per KV token, and host ns. Device time is their sum in this order."""
        base = self._a + self._b * tokens
        base = self._floor if base < self._floor else base
        return base, self._c, self._d * seqs, self._e, round(self._h0 + self._h1 * running)

    def predict(self, tokens: int, qk: int, seqs: int, kv: int, running: int, changes: int) -> tuple[int, int, int]:
        """Duration, device and host time (ns) of an iteration that prefills ``tokens`` (attention work ``qk``) beside ``seqs``
        decodes."""
        host = round(self._h0 + self._h1 * running + self._h2 * changes)
        if tokens:
            base = self._a + self._b * tokens
            if base < self._floor:
                base = self._floor
            device = round(base + self._c * qk + self._d * seqs + self._e * kv)
        elif seqs:
            base = self._floor if self._floor > self._a else self._a
            base += self._d * seqs
            if seqs < len(self._padding):
                base += self._padding[seqs]
            device = round(base + self._e * kv)
        else:
            device = 0
        if not self._asynchronous:
            return device + host, device, host
        return (0 if not device else device if device > host else host), device, host

    def submit(self, plan: BatchPlan) -> _Done:
        result, self._next, self._other = self._next, self._other, self._next
        changes = len(plan.joined) + len(plan.left)
        duration, device, host = self.predict(
            plan.prefill_tokens, plan.prefill_qk, plan.decode_seqs, plan.decode_kv, plan.running, changes
        )
        if not plan.scheduling:
            duration, host = device, 0
        result.device_ns = device
        result.host_ns = host
        result.duration_ns = duration
        if plan.link_ns:
            result.duration_ns += plan.link_ns
        return result

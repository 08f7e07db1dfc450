"""The simulated executor: an iteration's duration predicted from its shape. It shares scheduler, loop and events with every
other executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, cast

from replay_engine.buckets import padding
from replay_engine.followed_set import FollowedSet, LongestLog
from replay_engine.profile import Latency
from replay_engine.types import BatchPlan, IterationResult

if TYPE_CHECKING:
    from replay_engine.state import State

__all__ = ["SimExecutor", "SkewedExecutor"]


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
    (iterations n and n+1), so two objects take turns. Where the longest context costs extra, what is made is a
    ``SkewedExecutor``: nobody else pays for it.
    """

    __slots__ = (
        "_a", "_asynchronous", "_b", "_c", "_d", "_e", "_floor", "_h0", "_h1", "_h2", "_latency", "_next", "_other",
        "_padding",
    )  # fmt: skip

    def __new__(cls, latency: Latency, *given: object, **named: object) -> Self:
        return cast(Self, object.__new__(SkewedExecutor if cls is SimExecutor and latency.s_ns else cls))

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


class SkewedExecutor(SimExecutor):
    """``s * (longest - mean)`` on top, of the contexts that decode: an attention kernel has a block of threads for each sequence
    and head, so that its last wave is as long as the longest context. The tail is one sequence's, however many ended before it:
    it is not multiplied by their number, and what all of them read is in ``e`` already.

    It has to be told whose decodes these are (``follow``) before anything is asked of it that has decodes.
    """

    __slots__ = ("_decodes", "_log", "_s", "_state")

    _state: State
    _decodes: FollowedSet
    _log: LongestLog

    @property
    def follows(self) -> bool:
        """Whether the longest context costs anything."""
        return self._latency.s_ns > 0

    def follow(self, state: State, log: LongestLog) -> None:
        """From now on iterations are those of ``state``; ``log`` is told of the longest context of each."""
        assert isinstance(state.decodes, FollowedSet)
        self._state, self._decodes, self._log = state, state.decodes, log

    def slow_down(self, factor: float) -> None:
        super().slow_down(factor)
        self._s = self._latency.s_ns * factor

    def decode_terms(self) -> tuple[bool, float, float, float, int]:
        _, floor, per_seq, per_kv, host = super().decode_terms()
        return False, floor, per_seq, per_kv, host

    def decode_cost(self, seqs: int, running: int, changes: int) -> tuple[float, float, int]:
        """Of the iteration after the last one that was decided, and of those after it while the same members decode."""
        base, per_kv, host = super().decode_cost(seqs, running, changes)
        return base + self._standing(seqs), per_kv, host

    def chunk_terms(self, tokens: int, seqs: int, running: int) -> tuple[float, float, float, float, int]:
        base, per_qk, decoding, per_kv, host = super().chunk_terms(tokens, seqs, running)
        return base, per_qk, decoding + self._standing(seqs), per_kv, host

    def predict(
        self, tokens: int, qk: int, seqs: int, kv: int, running: int, changes: int, longest: int | None = None
    ) -> tuple[int, int, int]:
        """Of the last iteration that was decided; or of any, with its ``longest`` context."""
        host = round(self._h0 + self._h1 * running + self._h2 * changes)
        device = self._device(tokens, qk, seqs, kv, longest) if tokens or seqs else 0
        if not self._asynchronous:
            return device + host, device, host
        return (0 if not device else device if device > host else host), device, host

    def _device(self, tokens: int, qk: int, seqs: int, kv: int, longest: int | None) -> int:
        """Terms in the order in which ``decode_cost`` and ``chunk_terms`` have them summed up: the same to the last bit."""
        more = 0.0
        if self._s and seqs:
            if longest is None:
                longest = self._decodes.longest(self._state.it)
                self._log.note(self._state.it, longest)
            more = self._s * (longest * seqs - kv) / seqs
        if tokens:
            base = self._a + self._b * tokens
            base = self._floor if base < self._floor else base
            return round(base + self._c * qk + (self._d * seqs + more) + self._e * kv)
        base = (self._floor if self._floor > self._a else self._a) + self._d * seqs
        if seqs < len(self._padding):
            base += self._padding[seqs]
        return round(base + more + self._e * kv)

    def _standing(self, seqs: int) -> float:
        """Of the decode set as it stands, ns."""
        if not seqs:
            return 0.0
        self._log.note(self._state.it + 1, self._decodes.longest(self._state.it + 1))
        return self._s * self._decodes.spread() / seqs

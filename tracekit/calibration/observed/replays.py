"""A replay as a fit needs it: when each iteration began and what it was made of, and through which of them each request lived."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.policy import Policy
from replay_engine.profile import Latency, Profile
from replay_engine.sinks import MemorySink
from replay_engine.tables import LONGEST
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.traces.source import TraceSource

__all__ = ["Replayed", "Replayer"]

Ints = npt.NDArray[np.int64]
Column = npt.NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class Replayed:
    """Columns by iteration (times in ns on the engine clock) and by request of the source.

    ``arrived``, ``queued``, ``scheduled``, ``first``, ``last`` are moments of a request, ns; -1: never. ``queued`` is when an
    engine that is busy takes it in: the end of the iteration under way when it arrives. ``scheduled`` is when the iteration
    starts in which it is first computed, ``planned`` when that iteration's plan was made. ``above``: tokens that the longest
    decoding context is above the mean, 0 where that costs nothing.
    """

    start: Ints
    end: Ints
    device: Column
    host: Column
    tokens: Column
    qk: Column
    seqs: Column
    kv: Column
    above: Column
    running: Ints
    waiting: Ints
    kv_used: Ints
    preemptions: int
    arrived: Ints
    queued: Ints
    scheduled: Ints
    planned: Ints
    first: Ints
    last: Ints
    output: Ints

    @property
    def done(self) -> npt.NDArray[np.bool_]:
        return self.last >= 0

    def began(self, counting: str) -> Ints:
        """When the wait in the queue ends, by who counts (``observations.COUNTING``): an engine calls a request scheduled when it
        is planned."""
        return self.scheduled if counting == "arrival" else self.planned


REMEMBERED = 1_000_000
"""Iterations of replays that are kept, about 100 MB: a search comes back to where it was."""


class Replayer:
    """Replays one source under one policy with whatever coefficients; ``count`` says how often it did. The last replays are
    remembered, under other settings too: the same again costs nothing, and does not count."""

    def __init__(self, source: TraceSource, policy: Policy) -> None:
        if policy.rules.several:
            raise UsageError("the latencies of several engines: expected the trace and the settings of one (no [fleet], no [pd])")
        self.source, self.policy = source, policy
        self.count = 0
        self._known: OrderedDict[tuple[TraceSource, SchedulerConfig, Latency], Replayed] = OrderedDict()

    def under(self, policy: Policy) -> Replayer:
        """The same source under other settings, counting on."""
        other = Replayer(self.source, policy)
        other.count = self.count
        if policy.rules == self.policy.rules:  # only then do the settings of [scheduler] tell replays apart
            other._known = self._known
        return other

    def over(self, source: TraceSource) -> Replayer:
        """Another source, the same requests at the same times, under the same settings, counting on."""
        other = Replayer(source, self.policy)
        other.count, other._known = self.count, self._known
        return other

    def run(self, latency: Latency) -> Replayed:
        """Replay, or remember. ``ConfigError``: the settings do not let this trace through."""
        key = (self.source, self.policy.scheduler, latency)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        found = self._known[key] = self._replayed(latency)
        held = sum(len(each.start) for each in self._known.values())
        while held > REMEMBERED and len(self._known) > 1:
            held -= len(self._known.popitem(last=False)[1].start)
        return found

    def _replayed(self, latency: Latency) -> Replayed:
        from tracekit.door_facts import door_facts
        from tracekit.replay import Setup
        from tracekit.simulate import simulate_into

        self.count += 1
        profile = Profile(name="fit", latency=latency, synthetic=True)
        sink = MemorySink()
        setup = Setup(
            profile=profile, policy=self.policy, slo=None, source=self.source, trace=0, trace_name="fit", lead_in_ns=0, seed=0,
            events="full", accept_degraded=False, warmup_ns=0, facts=door_facts(self.policy, profile, None, self.source),
        )  # fmt: skip
        state, totals, _ = simulate_into(setup, sink)
        if not state.startswith("finished") and state != "no_progress":
            raise ConfigError(f"the replay under a trial profile ended early: {state}")
        found = _columns(sink, self.source.total, totals.preemptions)
        if self.policy.scheduler.async_scheduling:
            found.planned = _planned_ahead(found)
        return found


def _columns(sink: MemorySink, total: int, preemptions: int) -> Replayed:
    rows, ended = sink.table("iterations"), sink.table("outcomes")
    start = rows["start_ns"].astype(np.int64)
    end = start + rows["duration_ns"]
    asked = ended["request"]
    moments: dict[str, Any] = {}
    arrived = np.full(total, -1, np.int64)
    arrived[asked] = ended["arrival_ns"]
    for name, column in (("scheduled", "queue_ns"), ("first", "ttft_ns"), ("last", "e2e_ns")):
        values = np.full(total, -1, np.int64)
        values[asked] = np.where(ended[column] >= 0, ended["arrival_ns"] + ended[column], -1)
        moments[name] = values
    output = np.zeros(total, np.int64)
    output[asked] = ended["output_tokens"]
    numbers: dict[str, Any] = {
        name: rows[column].astype(np.float64)
        for name, column in (
            ("device", "device_ns"), ("host", "host_ns"), ("tokens", "prefill_tokens"), ("qk", "prefill_qk"),
            ("seqs", "decode_seqs"), ("kv", "decode_kv_tokens"),
        )
    }  # fmt: skip
    numbers |= {name: rows[name].astype(np.int64) for name in ("running", "waiting", "kv_used")}
    longest = rows[LONGEST[0]] if LONGEST[0] in (rows.dtype.names or ()) else np.zeros(len(rows))
    above = np.where(longest > 0, longest - numbers["kv"] / np.maximum(numbers["seqs"], 1), 0.0)
    found = Replayed(
        start=start, end=end, arrived=arrived, queued=arrived, output=output, preemptions=preemptions, above=above, **numbers,
        planned=moments["scheduled"], **moments,
    )  # fmt: skip
    return replace(found, queued=_taken_in(found))


def _planned_ahead(found: Replayed) -> Ints:
    """Under asynchronous scheduling a plan is made at the start of the iteration before; without one before it starts at once."""
    at = np.searchsorted(found.start, found.scheduled, side="left")
    before = np.maximum(at - 1, 0)
    busy = (found.scheduled >= 0) & (at > 0) & (found.end[before] == found.scheduled)
    return np.where(busy, np.maximum(found.start[before], found.arrived), found.scheduled)


def _taken_in(found: Replayed) -> Ints:
    at = np.searchsorted(found.start, found.arrived, side="left") - 1
    inside = (at >= 0) & (found.arrived < found.end[np.maximum(at, 0)])
    return np.where(inside, found.end[np.maximum(at, 0)], found.arrived)

"""What the longest context of a batch costs: who it is against a look at everybody, and by value."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.config import SchedulerConfig
from replay_engine.decode_set import DecodeSet
from replay_engine.followed_set import FollowedSet, LongestLog
from replay_engine.loop import Replay
from replay_engine.noise import IterationNoise, NoisyExecutor
from replay_engine.profile import Latency
from replay_engine.rules import Rules
from replay_engine.simulator import SimExecutor, SkewedExecutor
from replay_engine.sinks import MemorySink
from replay_engine.tables import ITERATIONS, LONG_ITERATIONS, TABLES
from replay_engine.types import BatchPlan, Request, SeqState, Sequence
from tests.engine.test_coasting import cases
from tests.engine.test_front_door import AskedSource
from tests.engine.traffic import Row, RowSource, latencies, replay, schedulers, traffic

__all__: list[str] = []
COSTS = Latency(floor_ns=1000.0, b_ns=10.0, d_ns=7.0, e_ns=0.5, s_ns=20.0)
ROOMY = SchedulerConfig(
    max_num_batched_tokens=4096, max_num_seqs=8, max_model_len=2048, num_gpu_blocks=4096, block_size=16, async_scheduling=False,
    enable_prefix_caching=False,
)  # fmt: skip


class Looking(SkewedExecutor):
    """Looks at everybody that decodes in each plan (it is no type that is coasted)."""

    __slots__ = ("seen", "what")

    def __init__(self, latency: Latency, *, asynchronous: bool) -> None:
        super().__init__(latency, asynchronous=asynchronous)
        self.seen: dict[int, tuple[int, int, int]] = {}
        self.what: Counter[str] = Counter()

    def submit(self, plan: BatchPlan) -> Any:
        state = self._state
        fresh = {seq.ticket for seq in state.joined}
        explicit = [entry for entry in plan.prefill if entry.decode]
        members = [seq for seq in state.running.values() if seq.state == SeqState.DECODE and seq.ticket not in fresh]
        # whoever made its last token is explicit, or was a member until this iteration
        made = {entry.seq.index for entry in plan.prefill}
        members += [seq for seq in plan.finishing if seq.index not in made]
        contexts = [state.computed(seq) for seq in members] + [entry.kv_len for entry in explicit]
        longest = max(contexts, default=0)
        self.seen[plan.iteration] = longest, sum(contexts), len(contexts)
        self.what["explicit"] += bool(explicit)
        self.what["explicit is longest"] += bool(explicit) and max(entry.kv_len for entry in explicit) == longest
        self.what["ends while longest"] += any(seq.index not in made and seq.comp == longest for seq in plan.finishing)
        self.what["preempted"] += bool(plan.preempted)
        return super().submit(plan)


def looked_at(rows: Any, config: SchedulerConfig, latency: Latency, rules: Rules | None = None) -> tuple[Looking, MemorySink]:
    executor, sink = Looking(latency, asynchronous=config.async_scheduling), MemorySink()
    Replay(rows, config, executor, sink, rules=rules or Rules(), kv_block_bytes=4096).run()
    return executor, sink


def held_against(executor: Looking, sink: MemorySink) -> None:
    """Every row has the longest context of all that decode, and its share of the device's time."""
    table = sink.table("iterations")
    assert table.dtype == LONG_ITERATIONS or not len(table)
    for row in table:
        longest, kv, seqs = executor.seen[int(row["iteration"])]
        assert (row["decode_longest_tokens"], row["decode_kv_tokens"], row["decode_seqs"]) == (longest, kv, seqs)
        latency = executor._latency
        if not row["prefill_tokens"] and seqs and not latency.p_ns:
            plain = max(latency.floor_ns, latency.a_ns) + latency.d_ns * seqs + latency.e_ns * kv
            assert row["device_ns"] == pytest.approx(plain + latency.s_ns * (longest - kv / seqs), abs=1)


@settings(max_examples=300, deadline=None)
@given(rows=traffic(cancels=True), config=schedulers(), latency=latencies)
def test_the_longest_is_who_a_look_at_everybody_finds(rows: list[Row], config: SchedulerConfig, latency: Latency) -> None:
    held_against(*looked_at(RowSource(rows), config, replace(latency, s_ns=13.3)))


def test_under_pressure_too_in_every_way_of_preempting() -> None:
    what: Counter[str] = Counter()
    for rows, config, rules, latency in cases(7_000_000, 120):
        executor, sink = looked_at(AskedSource(list(rows)), config, replace(latency, s_ns=2.9), rules)
        held_against(executor, sink)
        what += executor.what
    assert min(what[name] for name in ("explicit", "explicit is longest", "ends while longest", "preempted")) > 20, what


def test_by_value_a_long_one_beside_a_short_one() -> None:
    """Contexts of 1000 and 10: each decode takes 20 ns for each of the 495 tokens that the longest is above the mean, and when
    the long one has gone nothing; the mean moves with them, so that the cost stays."""
    rows = [Row(gap=0, prompt=1000, output=4), Row(gap=0, prompt=10, output=6)]
    for coast in (True, False):
        _, sink, _ = replay(rows, ROOMY, COSTS, coast=coast)
        table = sink.table("iterations")
        device = table["device_ns"].tolist()
        kv = [1001 + 11, 1002 + 12, 1003 + 13]
        assert device[1:4] == [round(1000 + 7 * 2 + 20 * 495 + 0.5 * each) for each in kv]
        assert device[4:] == [round(1000 + 7 + 0.5 * each) for each in (14, 15)]
        assert table["decode_longest_tokens"].tolist() == [0, 1001, 1002, 1003, 14, 15]


def test_a_slow_engine_has_a_slow_tail_too() -> None:
    executor = SimExecutor(COSTS, asynchronous=False)
    assert isinstance(executor, SkewedExecutor)
    assert executor.predict(0, 0, 4, 400, 4, 0, longest=250)[1] == 1000 + 28 + 20 * 150 + 200
    assert executor.predict(8, 0, 4, 400, 4, 0, longest=250)[1] == 1000 + 28 + 20 * 150 + 200
    executor.slow_down(2.0)
    assert executor.predict(0, 0, 4, 400, 4, 0, longest=250)[1] == 2 * (1000 + 28 + 20 * 150 + 200)
    assert executor.predict(8, 0, 0, 0, 1, 0, longest=0)[1] == 2000


@settings(max_examples=60, deadline=None)
@given(rows=traffic(), config=schedulers(), latency=latencies)
def test_without_the_cost_nothing_is_followed(rows: list[Row], config: SchedulerConfig, latency: Latency) -> None:
    latency = replace(latency, s_ns=0.0)
    executor = SimExecutor(latency, asynchronous=config.async_scheduling)
    assert type(executor) is SimExecutor
    run, sink, _ = replay(rows, config, latency)
    assert type(run.scheduler.state.decodes) is DecodeSet
    assert not len(sink.table("iterations")) or sink.table("iterations").dtype == ITERATIONS
    followed, executor2 = MemorySink(), Looking(latency, asynchronous=config.async_scheduling)
    assert not executor2.follows
    noise = IterationNoise(prefill=0.0, decode=0.0, seed=1).executor(latency, asynchronous=config.async_scheduling)
    again = Replay(RowSource(rows), config, noise, followed)
    again.run()
    for table in TABLES:
        assert followed.table(table).tobytes() == sink.table(table).tobytes(), table


def test_iterations_that_vary_have_the_tail_vary_with_them() -> None:
    rows = [Row(gap=0, prompt=1000, output=40), Row(gap=0, prompt=10, output=40)]
    for sigma in (0.0, 0.2):
        sink = MemorySink()
        noisy = IterationNoise(prefill=sigma, decode=sigma, seed=4).executor(COSTS, asynchronous=False)
        assert isinstance(noisy, NoisyExecutor) and noisy.follows
        Replay(RowSource(rows), ROOMY, noisy, sink).run()
        _, plain, _ = replay(rows, ROOMY, COSTS)
        noisy_rows, plain_rows = sink.table("iterations"), plain.table("iterations")
        ratio = noisy_rows["device_ns"] / plain_rows["device_ns"]
        assert noisy_rows["decode_longest_tokens"].tolist() == plain_rows["decode_longest_tokens"].tolist()
        assert (ratio == 1).all() if sigma == 0 else 0.1 < ratio.std() < 0.3


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(1, 12)), max_size=60))
def test_the_set_alone_against_all_its_members(steps: list[tuple[int, int, int]]) -> None:
    """Joins with contexts of all lengths, departures by the calendar and out of turn: longest and spread, before each change."""
    decodes, members, ticket = FollowedSet(4), dict[int, Sequence](), 0
    for it, (what, context, output) in enumerate(steps):
        contexts = [it - seq.origin for seq in members.values()]
        if what == 3 and members:
            seq = members.pop(sorted(members)[context % len(members)])
            decodes.leave(seq, it - 1 - seq.origin, it - 1)
            contexts = [it - seq.origin for seq in members.values()]
        assert decodes.longest(it) == max(contexts, default=0)
        assert decodes.spread() == max(contexts, default=0) * len(contexts) - sum(contexts)
        decodes.kv += decodes.count
        for seq in decodes.retire(it):
            del members[seq.ticket]
        if what < 2:
            request = Request(index=ticket, request_id="", arrival_ns=0, prompt_tokens=context, output_tokens=output + 1)
            seq = Sequence(request, output + 1)
            seq.ticket, seq.comp, ticket = ticket, context, ticket + 1
            members[seq.ticket] = seq
            decodes.join(seq, it)
        assert decodes.longest(it) == max(contexts, default=0), "whoever joined or ended in it does not change the iteration"
        assert decodes.kv == sum(it - seq.origin for seq in members.values())


def test_notes_are_kept_as_changes() -> None:
    log = LongestLog(kept=True)
    for it, longest in ((3, 100), (4, 101), (5, 50), (5, 60), (6, 61), (9, 7)):
        log.note(it, longest)
    rows = np.zeros(6, ITERATIONS)
    rows["iteration"], rows["decode_seqs"] = [3, 4, 5, 6, 8, 9], [2, 2, 2, 2, 0, 1]
    assert log.widened(rows[:3])["decode_longest_tokens"].tolist() == [100, 101, 60]
    assert log.widened(rows[3:])["decode_longest_tokens"].tolist() == [61, 0, 7]
    assert len(log._from) == 1
    off = LongestLog(kept=False)
    off.note(1, 5)
    assert off._from == []

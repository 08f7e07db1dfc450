"""What the loop asks of an executor, of every kind of them; and that a torch replay's plans are nobody's but the scheduler's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the torch engine needs the extra [engine]")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from replay_engine.loop import Replay  # noqa: E402
from replay_engine.profile import Latency  # noqa: E402
from replay_engine.recorded import RecordedExecutor  # noqa: E402
from replay_engine.rules import Order, Preemption, Rules  # noqa: E402
from replay_engine.simulator import SimExecutor, SkewedExecutor  # noqa: E402
from replay_engine.sinks import MemorySink  # noqa: E402
from replay_engine.tables import MODES, TABLES  # noqa: E402
from replay_engine.torch_engine.engine_pool import EnginePool  # noqa: E402
from replay_engine.types import BatchPlan, IterationResult  # noqa: E402
from tests.engine.traffic import Row, RowSource  # noqa: E402
from tests.torch_engine.engines import BLOCK, config_of, engine_for, replay_rows  # noqa: E402

ROWS = [Row(3_000_000 * (i % 3), 5 + 11 * i % 50, 1 + 7 * i % 20, group=i % 2, shared=i % 4) for i in range(12)]


class Fake:
    """An executor that takes one microsecond a token."""

    def submit(self, plan: BatchPlan) -> Any:
        took = 1000 * plan.total_tokens
        result = IterationResult(took, took, 0)

        class Done:
            def wait(self) -> IterationResult:
                return result

        return Done()


def fake(rows: list[Row], config: Any) -> tuple[Any, Any]:
    return Fake(), EnginePool(config)


def simulated(rows: list[Row], config: Any) -> tuple[Any, Any]:
    latency = Latency(floor_ns=5e5, a_ns=4e5, b_ns=1e3, d_ns=100, e_ns=1, h0_ns=1e5)
    return SimExecutor(latency, asynchronous=config.async_scheduling), EnginePool(config)


def torch_on_cpu(rows: list[Row], config: Any) -> tuple[Any, Any]:
    engine = engine_for(rows, config)
    return engine.executor, engine.pool


class Watched:
    """Counts what is under way, and keeps what came back."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.plans: list[BatchPlan] = []
        self.results: list[tuple[int, IterationResult]] = []
        self.deepest = self.under_way = 0

    def submit(self, plan: BatchPlan) -> Any:
        self.under_way += 1
        self.deepest = max(self.deepest, self.under_way)
        self.plans.append(plan)
        pending, watched = self.inner.submit(plan), self

        class Waits:
            def wait(self) -> IterationResult:
                result: IterationResult = pending.wait()
                watched.under_way -= 1
                kept = IterationResult(result.duration_ns, result.device_ns, result.host_ns)
                watched.results.append((plan.iteration, kept))
                return result

        return Waits()


@pytest.mark.parametrize("make", [fake, simulated, torch_on_cpu], ids=lambda f: f.__name__)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
class TestExecutor:
    """The contract: plans in, in order, results out in the same order; times that add up; two iterations in flight at most."""

    def run(self, make: Any, asynchronous: bool) -> tuple[Watched, MemorySink, str]:
        config = config_of(async_scheduling=asynchronous, num_gpu_blocks=24, max_model_len=96)
        executor, pool = make(ROWS, config)
        watched, sink = Watched(executor), MemorySink()
        state = Replay(RowSource(ROWS, BLOCK), config, watched, sink, pool=pool, coast=False).run()
        return watched, sink, state

    def test_every_plan_is_answered_in_its_turn(self, make: Any, asynchronous: bool) -> None:
        watched, _, state = self.run(make, asynchronous)
        assert state == "finished"
        assert [it for it, _ in watched.results] == [plan.iteration for plan in watched.plans]
        assert watched.under_way == 0
        assert watched.deepest == (2 if asynchronous else 1)

    def test_times_are_whole_and_make_sense(self, make: Any, asynchronous: bool) -> None:
        watched, _, _ = self.run(make, asynchronous)
        for plan, (_, result) in zip(watched.plans, watched.results, strict=True):
            for value in (result.duration_ns, result.device_ns, result.host_ns):
                assert isinstance(value, int)
                assert value >= 0
            if plan.total_tokens:
                assert result.duration_ns >= result.device_ns > 0
                together = result.device_ns + result.host_ns
                assert result.duration_ns == (max(result.device_ns, result.host_ns) if asynchronous else together)
            else:
                assert result.device_ns == 0

    def test_every_request_ends_and_the_log_has_every_iteration(self, make: Any, asynchronous: bool) -> None:
        watched, sink, _ = self.run(make, asynchronous)
        outcomes, rows = sink.table("outcomes"), sink.table("iterations")
        assert sorted(outcomes["request"].tolist()) == list(range(len(ROWS)))
        assert {int(o["request"]): int(o["output_tokens"]) for o in outcomes} == {i: r.output for i, r in enumerate(ROWS)}
        computed = [plan.iteration for plan in watched.plans if plan.total_tokens]
        assert [r["iteration"] for r in rows if r["prefill_tokens"] + r["decode_seqs"]] == computed


def replayed(rows: list[Row], config: Any, rules: Rules, iterations: Any, pool: Any = None) -> MemorySink:
    """The same traffic in the simulator's place, iterations as long as they were recorded to be."""
    sink = MemorySink()
    executor = RecordedExecutor(iterations)
    state = Replay(RowSource(rows, BLOCK), config, executor, sink, rules=rules, pool=pool, coast=False).run()
    assert state == "finished"
    return sink


ROW = st.builds(
    Row, gap=st.sampled_from([0, 0, 2_000_000, 30_000_000]), prompt=st.sampled_from([1, 8, 15, 40, 60]),
    output=st.sampled_from([1, 2, 9, 30]), priority=st.integers(0, 2), group=st.integers(0, 1), shared=st.integers(0, 6),
    cancel=st.sampled_from([-1, -1, -1, 5_000_000]),
)  # fmt: skip


@pytest.mark.parametrize(
    "knobs", [{}, {"async_scheduling": False}, {"enable_prefix_caching": False}, {"max_num_batched_tokens": 16}]
)
@settings(max_examples=5, deadline=None)
@given(rows=st.lists(ROW, min_size=2, max_size=10))
def test_plans_are_portable(knobs: dict[str, Any], rows: list[Row]) -> None:
    """A torch replay's durations in the simulator, with the simulator's own pool: the same rows in every table, to the byte."""
    config = config_of(num_gpu_blocks=16, max_model_len=96, **knobs)
    ran = replay_rows(rows, config)
    again = replayed(rows, config, Rules(), ran.table("iterations"))
    for table, dtype in TABLES.items():
        ours = ran.table(table)
        narrow = np.empty(len(ours), dtype)
        for name in dtype.names or ():
            narrow[name] = ours[name]
        assert narrow.tobytes() == again.table(table).tobytes(), table


def test_plans_are_portable_where_kv_is_swapped() -> None:
    """But for the copies' times, which the engine measured and the simulator predicts."""
    config = config_of(num_gpu_blocks=14, max_model_len=96, async_scheduling=False, enable_prefix_caching=False)
    rules = Rules(preemption=Preemption(mode="swap", host_blocks=50))
    rows = [Row(1_000_000 * i, 33 + i, 30) for i in range(6)]
    ran = replay_rows(rows, config, rules)
    again = replayed(rows, config, rules, ran.table("iterations"))
    for table in ("iterations", "prefill_entries", "spans", "outcomes", "preemptions"):
        ours, theirs = ran.table(table), again.table(table)
        for name in TABLES[table].names or ():
            if (table, name) != ("preemptions", "link_ns"):
                assert (ours[name] == theirs[name]).all(), (table, name)
    swapped = ran.table("preemptions")
    assert len(swapped)
    assert (swapped["link_ns"] > 0).all()
    assert (swapped["link_ns"] != again.table("preemptions")["link_ns"]).any()


def test_content_that_was_never_computed_is_never_hit() -> None:
    """vLLM keeps blocks of a sequence in its cache whose tokens it granted and took back in one iteration; this pool does not."""
    from replay_engine.types import Request, Sequence

    pool = EnginePool(config_of())
    request = Request(index=0, request_id="0", arrival_ns=0, prompt_tokens=40, output_tokens=1)
    seq, later = Sequence(request, 1), Sequence(request, 1)
    for each in (seq, later):
        pool.bind(each, [11, 12, 13, 14])
    pool.grow(seq, 4)
    pool.commit(seq, 32)  # granted 32 tokens, 16 of which were computed before
    seq.comp = 16
    pool.release(seq, 4, 4, resumes=True)
    assert pool.hits(later) == (2, 2)
    assert pool.evicted == 0
    assert pool.free == config_of().usable_blocks


def test_an_iteration_says_how_it_ran() -> None:
    rows = [Row(0, 20, 12) for _ in range(6)]
    wide = replay_rows(rows, config_of(), graphs=True).table("iterations")
    only_decodes = (wide["prefill_tokens"] == 0) & (wide["decode_seqs"] > 0)
    names = [MODES[code] for code in wide["mode"]]
    assert {n for n, d in zip(names, only_decodes, strict=True) if d} == {"padded"}
    assert {n for n, d in zip(names, only_decodes, strict=True) if not d} == {"eager"}
    buckets = (wide["padded_tokens"] + wide["decode_seqs"])[only_decodes]
    assert set(buckets.tolist()) <= {1, 2, 4, 8}
    assert (buckets < 2 * wide["decode_seqs"][only_decodes]).all(), "the smallest that holds them"
    assert (wide["padded_tokens"][~only_decodes] == 0).all()
    for column in ("schedule_ns", "submit_ns", "wait_ns"):
        assert (wide[column] > 0).all()
    assert MODES[3 + 512] == "graph 512"


def test_more_sequences_than_rows() -> None:
    """Urgent arrivals preempt more sequences than there are seats; all keep the tokens they have sampled."""
    rows = [Row(2_000_000, 20, 30, priority=20 - i) for i in range(20)]
    rules = Rules(preemption=Preemption(to_admit=True), order=Order(by="priority"))
    tight = config_of(max_num_seqs=1, num_gpu_blocks=40)
    engine = engine_for(rows, tight, rules)
    inner = engine.executor

    class EvenTimes:
        """The engine, on a clock on which every iteration takes a millisecond: two between arrivals, on any machine."""

        def submit(self, plan: BatchPlan) -> Any:
            pending = inner.submit(plan)

            class Waits:
                def wait(self) -> IterationResult:
                    pending.wait()
                    return IterationResult(1_000_000, 1_000_000, 0)

            return Waits()

    state = Replay(RowSource(rows, BLOCK), tight, EvenTimes(), MemorySink(), rules=rules, pool=engine.pool).run()
    assert state == "finished"
    assert engine.run.tables.sizes.rows > 5
    assert inner.tokens is not None
    assert inner.tokens.by_request() == replay_rows(rows, config_of()).tokens


@pytest.mark.parametrize("schedule", ["roomy", "short of blocks", "swapped", "paused"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_engine_logs_the_longest_context_of_its_own_batch(schedule: str, asynchronous: bool) -> None:
    """From the positions it computes at; the simulator's set, which is told of joins and departures alone, says the same under
    the same durations."""
    knobs = {"async_scheduling": asynchronous} | ({} if schedule == "roomy" else {"num_gpu_blocks": 20, "max_model_len": 96})
    modes = {"swapped": Preemption(mode="swap", host_blocks=64), "paused": Preemption(mode="pause")}
    rules = Rules(preemption=modes.get(schedule, Preemption()))
    config = config_of(**knobs)
    ran = replay_rows(ROWS, config, rules)
    wide = ran.table("iterations")

    class Replayed(SkewedExecutor):
        """The engine's durations, and the set that the simulator follows."""

        def submit(self, plan: BatchPlan) -> Any:
            super().submit(plan)
            return recorded.submit(plan)

    recorded = RecordedExecutor(wide)
    sink = MemorySink()
    executor = Replayed(Latency(floor_ns=1.0, s_ns=1.0), asynchronous=asynchronous)
    Replay(RowSource(ROWS, block_tokens=BLOCK), config, executor, sink, rules=rules, pool=EnginePool(config)).run()
    told = sink.table("iterations")
    assert told["iteration"].tolist() == wide["iteration"].tolist()
    assert told["decode_longest_tokens"].tolist() == wide["decode_longest_tokens"].tolist()
    assert (wide["decode_longest_tokens"] * wide["decode_seqs"] >= wide["decode_kv_tokens"]).all()
    alone = wide[wide["decode_seqs"] == 1]
    assert len(alone) and (alone["decode_longest_tokens"] == alone["decode_kv_tokens"]).all()

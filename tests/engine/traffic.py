"""Random traffic and knobs for whole replays, as hypothesis strategies, and the source that feeds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from replay_engine.config import SchedulerConfig, cdiv
from replay_engine.loop import Replay, RunState
from replay_engine.profile import Latency
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.types import RequestBatch

__all__ = ["Row", "RowSource", "latencies", "replay", "schedulers", "traffic"]


@dataclass(frozen=True)
class Row:
    """One request: gap to the one before (ns), lengths, priority, prefix group and shared blocks, cancel after (ns), tenant,
    deadline after (ns), predicted and largest output. -1: none, or not known."""

    gap: int
    prompt: int
    output: int
    priority: int = 0
    group: int = 0
    shared: int = 0
    cancel: int = -1
    tenant: int = -1
    due: int = -1
    predicted: int = -1
    limit: int = -1


class RowSource:
    """Rows as a request source, in batches of three so that batch borders are crossed."""

    def __init__(self, rows: list[Row], block_tokens: int = 8) -> None:
        self.rows = rows
        self.block_tokens = block_tokens

    @property
    def total(self) -> int:
        return len(self.rows)

    def batches(self) -> Iterator[RequestBatch]:
        arrival = np.cumsum([r.gap for r in self.rows]).astype(np.int64)
        for lo in range(0, len(self.rows), 3):
            part = self.rows[lo : lo + 3]
            shared = [min(r.shared, r.prompt // self.block_tokens) for r in part]
            cancel = [int(arrival[lo + i]) + r.cancel if r.cancel >= 0 else -1 for i, r in enumerate(part)]
            yield RequestBatch(
                index=np.arange(lo, lo + len(part)),
                arrival_ns=arrival[lo : lo + len(part)],
                prompt_tokens=np.array([r.prompt for r in part]),
                output_tokens=np.array([r.output for r in part]),
                priority=np.array([r.priority for r in part]),
                max_tokens=np.array([r.limit for r in part]),
                cancel_ns=np.array(cancel),
                tenant=np.array([r.tenant for r in part], np.int32),
                deadline_ns=np.array([int(arrival[lo + i]) + r.due if r.due >= 0 else -1 for i, r in enumerate(part)]),
                predicted_tokens=np.array([r.predicted for r in part]),
                block_tokens=self.block_tokens,
                run_offsets=np.arange(len(part) + 1),
                run_pos=np.zeros(len(part), np.int64),
                run_first=np.array([1000 * r.group for r in part]),
                run_len=np.array(shared),
                shared_blocks=np.array(shared),
            )


def traffic(*, cancels: bool = False) -> st.SearchStrategy[list[Row]]:
    """Up to 40 requests: bunched or spread, short or long, with shared prefixes."""
    row = st.builds(
        Row,
        gap=st.sampled_from([0, 0, 1, 900, 5_000, 40_000, 400_000]),
        prompt=st.integers(1, 90),
        output=st.one_of(st.integers(1, 4), st.integers(5, 60)),
        priority=st.integers(0, 2),
        group=st.integers(0, 2),
        shared=st.integers(0, 8),
        cancel=st.sampled_from([-1, -1, -1, 0, 7_000, 60_000]) if cancels else st.just(-1),
        tenant=st.integers(-1, 2),
        due=st.sampled_from([-1, 500, 20_000]),
        predicted=st.integers(-1, 60),
    )
    return st.lists(row, min_size=1, max_size=40)


@st.composite
def schedulers(draw: st.DrawFn) -> SchedulerConfig:
    """Knobs from roomy to starved; blocks between just enough for one request and plenty."""
    size = draw(st.sampled_from([1, 2, 4, 16]))
    longest = 160
    seqs = draw(st.integers(1, 12))
    chunked = draw(st.booleans())
    budget = draw(st.integers(max(seqs, 4), 64)) if chunked else draw(st.integers(longest, 300))
    return SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        max_model_len=longest,
        block_size=size,
        num_gpu_blocks=cdiv(longest, size) + 1 + draw(st.sampled_from([0, 2, 20, 400])),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        enable_chunked_prefill=chunked,
        enable_prefix_caching=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 5, 16])),
        watermark=draw(st.sampled_from([0.0, 0.05])),
        prefill_schedule_interval=draw(st.sampled_from([1, 1, 3])),
        async_scheduling=draw(st.booleans()),
    )


latencies = st.builds(
    Latency,
    floor_ns=st.sampled_from([0.0, 500.0, 4000.0]),
    a_ns=st.sampled_from([100.0, 1000.0]),
    b_ns=st.sampled_from([1.0, 30.5]),
    c_ns=st.sampled_from([0.0, 0.25]),
    d_ns=st.sampled_from([0.0, 12.3]),
    e_ns=st.sampled_from([0.0, 0.7]),
    h0_ns=st.sampled_from([0.0, 700.0, 3000.0]),
    h1_ns=st.sampled_from([0.0, 11.0]),
    h2_ns=st.sampled_from([0.0, 55.0]),
    p_ns=st.sampled_from([0.0, 0.0, 9.7]),
    s_ns=st.sampled_from([0.0, 0.0, 13.3]),
)


def replay(
    rows: list[Row], config: SchedulerConfig, latency: Latency, *, coast: bool = True, stall_ns: int | None = None
) -> tuple[Replay, MemorySink, RunState]:
    """A whole replay in memory, with full events."""
    sink = MemorySink()
    executor = SimExecutor(latency, asynchronous=config.async_scheduling)
    run = Replay(RowSource(rows), config, executor, sink, stall_threshold_ns=stall_ns, coast=coast)
    return run, sink, run.run()

"""A decode-only iteration costs O(changes): it touches only sequences that grow, fill a block, join or leave."""

from __future__ import annotations

import pytest

from replay_engine import scheduler as scheduler_module
from replay_engine.config import SchedulerConfig
from replay_engine.pools import PoolKind, make_pool
from replay_engine.scheduler import Scheduler
from replay_engine.types import BatchPlan, Request, Sequence

TOUCHED: set[int] = set()


class Watched(Sequence):
    """A sequence that notes every read of its attributes."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> object:
        TOUCHED.add(object.__getattribute__(self, "index"))
        return object.__getattribute__(self, name)


def _steady(batch: int, pool: PoolKind, *, caching: bool, asynchronous: bool) -> Scheduler:
    """A scheduler whose whole batch decodes; prompts of different lengths, so that growth is spread over the iterations."""
    config = SchedulerConfig(
        max_num_batched_tokens=8192, max_num_seqs=1024, max_model_len=4096, num_gpu_blocks=batch * 40 + 300,
        enable_prefix_caching=caching, async_scheduling=asynchronous,
    )  # fmt: skip
    scheduler = Scheduler(config, make_pool(config, pool))
    for i in range(batch):
        request = Request(index=i, request_id=str(i), arrival_ns=0, prompt_tokens=10 + i % 16, output_tokens=200 + i)
        scheduler.add(request, [])
    before: BatchPlan | None = None
    while scheduler.state.loose or len(scheduler.state.waiting):
        plan = scheduler.schedule()
        scheduler.update(before if asynchronous and before is not None else plan)
        before = plan
    return scheduler


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("batch", [8, 512])
@pytest.mark.parametrize(("pool", "caching"), [("counted", False), ("traced", True), ("identified", True), ("identified", False)])
def test_decode_only_iterations_touch_changes_only(
    monkeypatch: pytest.MonkeyPatch, batch: int, pool: PoolKind, caching: bool, asynchronous: bool
) -> None:
    monkeypatch.setattr(scheduler_module, "Sequence", Watched)
    scheduler = _steady(batch, pool, caching=caching, asynchronous=asynchronous)
    scheduler.schedule()
    total = 0
    for _ in range(160):
        state = scheduler.state
        it = state.it + 1
        members = [seq for bucket in state.decodes.buckets for seq in bucket.values()]
        allowed = {seq.index for seq in [*state.joined, *state.left]}
        for seq in members:
            comp = it - 1 - object.__getattribute__(seq, "origin")
            grows, fills = comp % 16 == 0, (comp + 1) % 16 == 0
            if grows or fills or object.__getattribute__(seq, "leaves_at") == it:
                allowed.add(object.__getattribute__(seq, "index"))
        TOUCHED.clear()
        plan = scheduler.schedule()
        scheduler.update(plan)
        touched = set(TOUCHED)
        assert touched <= allowed, (it, touched - allowed)
        assert plan.decode_seqs > 0
        total += len(touched)
    expected = {"counted": 0.01, "traced": 0.01, "identified": 2.2 / 16}[pool]
    assert total <= expected * batch * 160 + 10, "two touches per 16 tokens where blocks have ids, none where they are counted"

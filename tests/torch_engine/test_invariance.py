"""The tokens a request gets do not depend on how it was scheduled, and come from nowhere but the model and its KV blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the torch engine needs the extra [engine]")

from hypothesis import example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from replay_engine.rules import Batching, Order, Preemption, Rules  # noqa: E402
from replay_engine.torch_engine.prompts import prompt_ids  # noqa: E402
from replay_engine.types import PrefixRuns, Request  # noqa: E402
from tests.engine.traffic import Row  # noqa: E402
from tests.torch_engine.engines import BLOCK, SMALL, config_of, engine_for, replay_rows, run_on, small_model  # noqa: E402

ROW = st.builds(
    Row,
    gap=st.sampled_from([0, 0, 1_000_000, 20_000_000]),
    prompt=st.sampled_from([1, 7, 8, 9, 24, 33, 60]),
    output=st.sampled_from([1, 2, 9, 17, 30]),
    priority=st.integers(0, 2),
    group=st.integers(0, 1),
    shared=st.integers(0, 6),
)
SCHEDULES: dict[str, tuple[dict[str, Any], Rules, dict[str, Any]]] = {
    "asynchronous": ({"max_num_batched_tokens": 16}, Rules(), {}),
    "short of blocks": ({"num_gpu_blocks": 14, "max_model_len": 96, "async_scheduling": False}, Rules(), {}),
    "short of blocks, asynchronous": ({"num_gpu_blocks": 14, "max_model_len": 96}, Rules(), {}),
    "no caching": ({"enable_prefix_caching": False, "num_gpu_blocks": 20, "max_model_len": 96}, Rules(), {}),
    "chunks of three": ({"long_prefill_token_threshold": 3}, Rules(), {}),
    "padded": ({"num_gpu_blocks": 20, "max_model_len": 96}, Rules(), {"graphs": True}),
    "swapped": (
        {"num_gpu_blocks": 14, "max_model_len": 96, "async_scheduling": False, "enable_prefix_caching": False},
        Rules(preemption=Preemption(mode="swap", host_blocks=100)),
        {},
    ),
    "swapped by priority": (
        {"num_gpu_blocks": 14, "max_num_seqs": 3, "max_model_len": 96, "async_scheduling": False, "enable_prefix_caching": False},
        Rules(preemption=Preemption(mode="swap", host_blocks=6, to_admit=True), order=Order(by="priority")),
        {},
    ),
    "paused": (
        {"num_gpu_blocks": 16, "max_num_seqs": 2, "max_model_len": 96},
        Rules(preemption=Preemption(mode="pause", to_admit=True), order=Order(by="priority")),
        {},
    ),
    "by priority": ({"policy": "priority", "num_gpu_blocks": 14, "max_model_len": 96}, Rules(), {}),
    "prefill first": ({"max_num_batched_tokens": 16}, Rules(batching=Batching(step="prefill_first")), {}),
    "blocks of four": ({"block_size": 4, "num_gpu_blocks": 40, "max_model_len": 96}, Rules(), {}),
    "before 0.24": ({"engine_version": "0.20.0", "num_gpu_blocks": 16, "max_model_len": 96}, Rules(), {}),
}  # fmt: skip


def alone(rows: list[Row]) -> dict[int, list[int]]:
    """Every request for itself, its prompt in one piece, nothing shared."""
    config = config_of(
        max_num_seqs=1, max_num_batched_tokens=256, enable_chunked_prefill=False, enable_prefix_caching=False,
        async_scheduling=False,
    )  # fmt: skip
    return replay_rows(rows, config).tokens


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=4, deadline=None)
@given(rows=st.lists(ROW, min_size=3, max_size=9))
@example(rows=[Row(0, 60, 30, 2, 0, 6), Row(0, 33, 30, 2, 0, 4), Row(0, 24, 30, 1, 1, 3), Row(1000, 9, 30, 0, 0, 1)])
def test_tokens_do_not_depend_on_the_schedule(schedule: str, rows: list[Row]) -> None:
    knobs, rules, options = SCHEDULES[schedule]
    ran = replay_rows(rows, config_of(**knobs), rules, **options)
    assert ran.state == "finished"
    assert {i: len(t) for i, t in ran.tokens.items()} == {i: r.output for i, r in enumerate(rows)}
    assert ran.tokens == alone(rows)


@pytest.mark.parametrize("schedule", ["short of blocks", "swapped", "paused", "padded"])
def test_the_schedules_do_what_their_names_say(schedule: str) -> None:
    rows = [Row(1_000_000 * i, 33 + i, 30, 8 - i, 0, 2) for i in range(8)]  # each more urgent than those before it
    knobs, rules, options = SCHEDULES[schedule]
    ran = replay_rows(rows, config_of(**knobs), rules, **options)
    kinds = {"short of blocks": 0, "swapped": 1, "paused": 2}
    if schedule in kinds:
        assert (ran.table("preemptions")["kind"] == kinds[schedule]).any()
    else:
        assert ran.table("iterations")["padded_tokens"].sum() > 0


def test_seeded_sampling_does_not_depend_on_the_schedule_either() -> None:
    rows = [Row(0, 20 + i, 25, group=0, shared=2) for i in range(6)]
    tight = config_of(num_gpu_blocks=14, max_model_len=96)
    one, other = (replay_rows(rows, config, temperature=1.0, seed=5).tokens for config in (config_of(), tight))
    assert one == other
    assert replay_rows(rows, config_of(), temperature=1.0, seed=6).tokens != one
    assert replay_rows(rows, config_of(), temperature=0.0, seed=5).tokens != one


def test_tokens_are_read_through_the_block_table() -> None:
    """One entry of one block table zeroed in mid-run, and the request's further tokens are others'."""
    rows = [Row(0, 40, 30), Row(0, 40, 30)]
    config = config_of(async_scheduling=False)
    whole = replay_rows(rows, config).tokens
    engine = engine_for(rows, config)
    engine.kv.kv[0] = 0.0  # block 0 is nobody's; NaN there would end the run instead
    submit, seen = engine.executor.submit, 0

    def spoil(plan: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == 8:
            engine.run.tables.blocks[engine.executor._batch._row[next(s for s in engine.executor._batch.order)], 2] = 0
        return submit(plan)

    engine.executor.submit = spoil  # type: ignore[method-assign]
    spoilt = run_on(engine, rows, config).tokens
    changed = [i for i in whole if whole[i] != spoilt[i]]
    assert len(changed) == 1
    assert whole[changed[0]][:7] == spoilt[changed[0]][:7]


def test_reading_a_freed_block_ends_the_run() -> None:
    """A table that still names a block that its owner has lost: the NaN in it shows at once."""
    rows = [Row(0, 16, 3), Row(0, 40, 30)]
    config = config_of(async_scheduling=False, enable_prefix_caching=False)
    engine = engine_for(rows, config)
    submit, lent = engine.executor.submit, []

    def spoil(plan: Any) -> Any:
        batch = engine.executor._batch
        for entry in plan.prefill:
            if entry.seq.index == 0:
                lent.append(entry.seq.blocks[0])
        if plan.iteration == 6:
            longer = next(s for s in batch.order if s.index == 1)
            engine.run.tables.blocks[batch._row[longer], 1] = lent[0]
        return submit(plan)

    engine.executor.submit = spoil  # type: ignore[method-assign]
    ran = run_on(engine, rows, config)
    assert ran.state == "failed"
    assert str(ran.replay.failure).startswith("failed at iteration 6: a hidden state is not finite")
    assert ran.table("iterations")["iteration"].max() == 5


def test_blocks_that_hold_nothing_are_nan_and_others_are_not() -> None:
    rows = [Row(0, 30 + i, 12) for i in range(6)]
    config = config_of(num_gpu_blocks=24, max_model_len=96)
    ran = replay_rows(rows, config)
    holds = set(ran.engine.pool._key_of)
    assert holds, "prompts of full blocks stay cached"
    for block in range(1, 24):
        finite = bool(ran.engine.kv.kv[block].isfinite().all())
        assert finite == (block in holds), block


def request(index: int, prompt: int, runs: tuple[tuple[int, int, int], ...] = (), grain: int = BLOCK) -> Request:
    prefix = PrefixRuns(block_tokens=grain, runs=runs, shared_blocks=sum(r[2] for r in runs)) if runs else None
    return Request(index=index, request_id=str(index), arrival_ns=0, prompt_tokens=prompt, output_tokens=1, prefix=prefix)


@given(
    first=st.integers(0, 2**40), blocks=st.integers(1, 5), tail=st.integers(0, 30), grain=st.sampled_from([1, 8, 16, 512]),
    vocab=st.sampled_from([2, 211, 151936]),
)  # fmt: skip
def test_prompts_are_equal_where_identities_are(first: int, blocks: int, tail: int, grain: int, vocab: int) -> None:
    length = blocks * grain + tail
    a, b = (prompt_ids(request(i, length, ((0, first, blocks),), grain), vocab) for i in (1, 2))
    assert len(a) == length
    assert a.min() >= 0
    assert a.max() < vocab
    assert (a[: blocks * grain] == b[: blocks * grain]).all()
    cut = prompt_ids(request(3, blocks * grain, ((0, first, blocks),), grain), vocab)
    assert (cut == a[: blocks * grain]).all(), "a shorter prompt with the same prefix"
    if vocab > 1000 and tail >= 8:
        assert (a[blocks * grain :] != b[blocks * grain :]).any()
    if vocab > 1000 and blocks * grain >= 8:
        other = prompt_ids(request(1, length, ((0, first + 1, blocks),), grain), vocab)
        assert (other[:grain] != a[:grain]).any() or grain == 1
        assert (prompt_ids(request(1, length), vocab) != a).any()


def test_the_vocabulary_is_used_evenly() -> None:
    ids = prompt_ids(request(0, 200_000), SMALL.vocab)
    counts = torch.bincount(torch.from_numpy(ids).long(), minlength=SMALL.vocab)
    assert counts.min() > 0.85 * 200_000 / SMALL.vocab
    assert counts.max() < 1.15 * 200_000 / SMALL.vocab


def test_dummy_weights_are_the_seed_s() -> None:
    from replay_engine.torch_engine.weights import dummy_weights

    model = small_model()
    again = dummy_weights(replace(SMALL), torch.float32, torch.device("cpu"), seed=3)
    other = dummy_weights(SMALL, torch.float32, torch.device("cpu"), seed=4)
    assert torch.equal(again.layers[1].qkv, model.weights.layers[1].qkv)
    assert not torch.equal(other.layers[1].qkv, model.weights.layers[1].qkv)
    assert model.weights.bytes == 4 * (SMALL.parameters)

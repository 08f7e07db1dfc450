"""Prefill and decode on separate real engines: KV is copied from pool to pool, and nobody's tokens change for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the torch engine needs the extra [engine]")

from hypothesis import example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from replay_engine.arrivals import NEVER  # noqa: E402
from replay_engine.fetching import blocks_by_holder  # noqa: E402
from replay_engine.fleet.faults import Fault  # noqa: E402
from replay_engine.fleet.pd_driver import PdReplay  # noqa: E402
from replay_engine.pd_rules import KvLinkRules, Pd  # noqa: E402
from replay_engine.recorded import RecordedExecutor  # noqa: E402
from replay_engine.rules import Order, Rules  # noqa: E402
from replay_engine.tables import TABLES  # noqa: E402
from replay_engine.torch_engine.kv_connector import TorchConnector  # noqa: E402
from tests.engine.traffic import Row, RowSource  # noqa: E402
from tests.fleet.fleets import FleetSink  # noqa: E402
from tests.torch_engine.engines import BLOCK, Pools, config_of, replay_pools, replay_rows  # noqa: E402
from tests.torch_engine.test_invariance import ROW, alone  # noqa: E402
from tests.torch_engine.test_replay_cmd import REQUESTS, rows, run, trace  # noqa: E402, F401
from tracekit.errors import UsageError  # noqa: E402

ROWS = [Row(1_000_000 * (i % 3), 17 + 3 * i, 3 + i, group=i % 2, shared=3) for i in range(10)]
SCHEDULES: dict[str, tuple[dict[str, Any], dict[str, Any], Rules]] = {
    "vLLM": ({}, {}, Rules(pd=Pd(prefill=1, decode=1))),
    "synchronous, the first token from the prefill engine": (
        {"async_scheduling": False}, {"async_scheduling": False}, Rules(pd=Pd(prefill=1, decode=1, first_token_from="prefill")),
    ),
    "several engines, one transfer at a time": (
        {"max_num_batched_tokens": 16}, {}, Rules(pd=Pd(prefill=2, decode=2), kv_link=KvLinkRules(concurrent=1)),
    ),
    "decode engines short of blocks": (
        {"max_model_len": 96}, {"num_gpu_blocks": 14, "max_model_len": 96},
        Rules(pd=Pd(prefill=1, decode=2, first_token_from="prefill")),
    ),
    "decode engine short of blocks, prefill engine too": (
        {"num_gpu_blocks": 16, "max_model_len": 96}, {"num_gpu_blocks": 16, "max_model_len": 96, "async_scheduling": False},
        Rules(pd=Pd(prefill=1, decode=1)),
    ),
    "no caching, by priority": (
        {"enable_prefix_caching": False, "max_num_seqs": 2}, {"enable_prefix_caching": False, "max_num_seqs": 3},
        Rules(pd=Pd(prefill=1, decode=1, first_token_from="prefill"), order=Order(by="priority")),
    ),
}  # fmt: skip


def play(schedule: str, rows: list[Row], faults: tuple[Fault, ...] = ()) -> Pools:
    prefill, decode, rules = SCHEDULES[schedule]
    return replay_pools(rows, {"prefill": config_of(**prefill), "decode": config_of(**decode)}, rules, faults)


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=4, deadline=None)
@given(rows=st.lists(ROW, min_size=3, max_size=9))
@example(rows=[Row(0, 60, 30, 2, 0, 6), Row(0, 33, 30, 2, 0, 4), Row(0, 24, 30, 1, 1, 3), Row(1000, 9, 30, 0, 0, 1)])
@example(rows=[Row(0, 16, 9), Row(0, 8, 1), Row(1000, 16, 2)])
def test_tokens_do_not_depend_on_who_prefilled(schedule: str, rows: list[Row]) -> None:
    pools = play(schedule, rows)
    assert pools.state == "finished"
    assert {i: len(t) for i, t in pools.tokens.items()} == {i: r.output for i, r in enumerate(rows)}
    assert pools.tokens == alone(rows)
    assert {i: t[-1] for i, t in pools.handed.items()} == {i: t[0] for i, t in pools.tokens.items()}


def test_what_a_transfer_says_was_copied_and_took_its_time() -> None:
    pools = play("several engines, one transfer at a time", ROWS)
    moved = pools.sink.table("transfers")
    assert sorted(moved["request"].tolist()) == list(range(len(ROWS)))
    prompts = np.array([ROWS[request].prompt for request in moved["request"]])
    assert (moved["blocks"] + moved["hit_blocks"] == -(-prompts // BLOCK)).all()
    assert moved["hit_blocks"].sum() > 0, "the decode engine's cache had some of it"
    size = 2 * 2 * BLOCK * 2 * 16 * 4  # layers, K and V, tokens, heads, dimensions, float32
    assert (moved["bytes"] == moved["blocks"] * size).all()
    assert ((moved["end_ns"] > moved["start_ns"]) == (moved["blocks"] > 0)).all()
    lengths = (moved["end_ns"] - moved["start_ns"])[moved["blocks"] > 0]
    assert len(set(lengths.tolist())) > 2, "measured, not computed from the size"
    for source in (0, 1):
        own = np.sort(moved[moved["source"] == source], order="start_ns")
        assert (own["start_ns"][1:] >= own["end_ns"][:-1]).all(), "one at a time over each link"


def test_kv_that_is_not_copied_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decode engine reads what was copied and nothing else: without the copy it meets NaN and the run ends."""
    monkeypatch.setattr(TorchConnector, "move", lambda self, source, past, target, seq, blocks: 1000)
    pools = play("vLLM", ROWS)
    assert pools.state == "failed"
    assert "a hidden state is not finite" in str(pools.replay.failure)
    ended = pools.sink.table("outcomes")["request"].tolist()
    assert len(ended) == len(set(ended))


def test_no_block_is_left_behind() -> None:
    pools = play("decode engines short of blocks", ROWS)
    for member in pools.replay.members:
        holders = blocks_by_holder(member.engine.scheduler.state)
        assert {name for name, blocks in holders.items() if blocks} <= {"cached", "free"}
        assert member.engine.scheduler.state.pool.free == member.engine.scheduler.config.usable_blocks


@pytest.mark.parametrize("schedule", ["vLLM", "several engines, one transfer at a time"])
@settings(max_examples=6, deadline=None)
@given(
    rows=st.lists(ROW, min_size=3, max_size=8), down=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    at=st.integers(0, 40), lasts=st.integers(1, 20), lost=st.sampled_from(["prefill", "decode"]),
)  # fmt: skip
def test_engines_that_fail_and_come_back(
    schedule: str, rows: list[Row], down: list[int], at: int, lasts: int, lost: Any
) -> None:
    """Whatever is computed again, where and however often: the last tokens are the request's own."""
    prefill, decode, rules = SCHEDULES[schedule]
    count = rules.pd.prefill + rules.pd.decode
    rules = replace(rules, pd=replace(rules.pd, lost_kv=lost))
    faults = tuple(
        Fault(replica=number % count, at_ns=(at + 3 * i) * 1_000_000, until_ns=(at + 3 * i + lasts) * 1_000_000)
        for i, number in enumerate(down)
    )
    pools = replay_pools(rows, {"prefill": config_of(**prefill), "decode": config_of(**decode)}, rules, faults)
    assert pools.state == "finished"
    wanted = alone(rows)
    assert set(pools.tokens) == set(wanted)
    for request, tokens in wanted.items():
        got = pools.tokens[request]
        assert got[len(got) - len(tokens) :] == tokens


def test_a_decode_engine_that_is_gone_for_good() -> None:
    faults = (Fault(replica=1, at_ns=2_000_000, until_ns=NEVER),)
    pools = play("vLLM", ROWS, faults)
    assert pools.state == "finished"
    outcomes = pools.sink.table("outcomes")
    assert sorted(outcomes["request"].tolist()) == list(range(len(ROWS)))


def test_pools_by_command(trace: Path) -> None:  # noqa: F811
    lines: list[str] = []
    report = run(trace, pd="1:2", say=lines.append, sets=("max_num_seqs=4", "num_gpu_blocks=200", "max_model_len=256",
                                                          "decode.num_gpu_blocks=100"))  # fmt: skip
    assert report.state == "finished"
    assert "200 KV blocks (prefill) and 100 (decode) each of 3 engines" in lines[0]
    assert rows(trace, "SELECT DISTINCT replica, mode FROM iterations ORDER BY replica") == [
        (0, "eager"), (1, "eager"), (2, "eager"),
    ]  # fmt: skip
    assert rows(trace, "SELECT count(DISTINCT request) FROM outcomes WHERE state = 'finished'") == [(REQUESTS,)]
    ((moves, shortest),) = rows(trace, "SELECT count(*), min(end_ns - start_ns) FROM transfers")
    assert moves == REQUESTS and shortest > 0
    again = run(trace, pd="1:1", fail=("D0@50ms:50ms",))
    assert again.state == "finished"
    with pytest.raises(UsageError, match="--slow: a real engine is as fast as it is, and what was measured is not multiplied"):
        run(trace, pd="1:1", slow=("D0@1s:2x",))


def test_the_same_tokens_as_one_engine_that_does_both() -> None:
    """Sampled with a temperature: noise is the request's, whoever adds it."""
    rules = Rules(pd=Pd(prefill=1, decode=1))
    pools = replay_pools(ROWS, {"prefill": config_of(), "decode": config_of()}, rules, temperature=1.0, seed=5)
    assert pools.tokens == replay_rows(ROWS, config_of(), temperature=1.0, seed=5).tokens


class Recorded:
    """Copies that take as long as they took before."""

    def __init__(self, moved: Any) -> None:
        self._took = {int(m["request"]): int(m["end_ns"] - m["start_ns"]) for m in moved}

    def move(self, source: int, past: Any, target: int, seq: Any, blocks: int) -> int:
        return self._took[seq.index]

    def sampled(self, source: int, seq: Any) -> int:
        return 0

    def tell(self, target: int, request: int, token: int) -> None:
        return


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=3, deadline=None)
@given(rows=st.lists(ROW, min_size=3, max_size=9))
def test_plans_are_portable(schedule: str, rows: list[Row]) -> None:
    """Recorded durations and the simulator's own pools: the same rows in every table, to the byte."""
    prefill, decode, rules = SCHEDULES[schedule]
    configs = {"prefill": config_of(**prefill), "decode": config_of(**decode)}
    ran = replay_pools(rows, configs, rules)
    iterations = ran.sink.table("iterations")
    executors = [RecordedExecutor(iterations[iterations["replica"] == n]) for n in range(rules.pd.prefill + rules.pd.decode)]
    sink = FleetSink()
    replay = PdReplay(
        RowSource(rows, BLOCK), configs, executors, sink, rules=rules, kv_block_bytes=ran.engines[0].kv.block_bytes,
        connector=Recorded(ran.sink.table("transfers")), coast=False,
    )  # fmt: skip
    assert replay.run() == "finished"
    for table, dtype in TABLES.items():
        for number in range(len(executors)):
            ours, theirs = ran.sink.table(table, number), sink.table(table, number)
            assert len(ours) == len(theirs), table
            for name in set(dtype.names or ()) - {"head_need_blocks"}:  # as of the last lookup, which a pool need not repeat
                assert ours[name].tobytes() == theirs[name].tobytes(), (table, name)

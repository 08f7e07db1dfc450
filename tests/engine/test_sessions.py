"""Turns wait for the completion that releases them: exact times, nobody lost, the same rows with and without coasting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.config import SchedulerConfig
from replay_engine.loop import Replay
from replay_engine.profile import Latency
from replay_engine.rules import Batching, Client, FrontDoorRules, Rules
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.tables import TABLES, OutcomeReason
from replay_engine.types import RequestBatch, RequestState
from tests.engine.traffic import latencies, schedulers

FINISHED, UNRELEASED = int(RequestState.finished), int(RequestState.unreleased)
PLAIN = Latency(floor_ns=0.0, a_ns=1000.0, b_ns=10.0, c_ns=0.0, d_ns=0.0, e_ns=0.0, h0_ns=0.0, h1_ns=0.0, h2_ns=0.0)


@dataclass(frozen=True)
class Turn:
    """A request: ``after`` is how many requests above its parent stands (0: a root), ``gap`` ns from the root before it (or the
    earliest moment, from that root on; -1: none), ``think`` ns after its parent."""

    gap: int
    prompt: int
    output: int
    after: int = 0
    think: int = 0
    cancel: int = -1


class TurnSource:
    """Turns as a request source: each root followed by all that depends on it."""

    def __init__(self, turns: list[Turn]) -> None:
        self.parent = self._parents(turns)
        order = sorted(range(len(turns)), key=lambda i: (self._root(i), i))
        place = {old: new for new, old in enumerate(order)}
        self.turns = [turns[i] for i in order]
        self.parent = [place[self.parent[i]] if self.parent[i] >= 0 else -1 for i in order]
        arrival, now = [], 0
        for turn, parent in zip(self.turns, self.parent, strict=True):
            now += turn.gap if parent < 0 else 0
            arrival.append(now if parent < 0 else -1 if turn.gap < 0 else now + turn.gap)
        self.arrival = arrival

    @staticmethod
    def _parents(turns: list[Turn]) -> list[int]:
        return [i - turn.after if 0 < turn.after <= i else -1 for i, turn in enumerate(turns)]

    def _root(self, i: int) -> int:
        while self.parent[i] >= 0:
            i = self.parent[i]
        return i

    @property
    def total(self) -> int:
        return len(self.turns)

    def batches(self) -> Iterator[RequestBatch]:
        for low in range(0, self.total, 3):
            part = self.turns[low : low + 3]
            own = slice(low, low + len(part))
            cancel = [turn.cancel + (self.arrival[low + i] if self.parent[low + i] < 0 else 0) if turn.cancel >= 0 else -1
                      for i, turn in enumerate(part)]  # fmt: skip
            yield RequestBatch(
                index=np.arange(low, low + len(part)),
                arrival_ns=np.array(self.arrival[own]),
                prompt_tokens=np.array([turn.prompt for turn in part]),
                output_tokens=np.array([turn.output for turn in part]),
                priority=np.zeros(len(part), np.int64),
                max_tokens=np.full(len(part), -1),
                cancel_ns=np.array(cancel),
                parent=np.array(self.parent[own]),
                think_ns=np.array([turn.think for turn in part]),
            )


def play(turns: list[Turn], config: SchedulerConfig, latency: Latency, *, coast: bool = True,
         rules: Rules | None = None) -> tuple[TurnSource, MemorySink, str]:  # fmt: skip
    source, sink = TurnSource(turns), MemorySink()
    executor = SimExecutor(latency, asynchronous=config.async_scheduling)
    state = Replay(source, config, executor, sink, coast=coast, rules=rules or Rules()).run()
    return source, sink, state


def by_request(sink: MemorySink) -> dict[int, np.void]:
    rows = sink.table("outcomes")
    assert len(set(rows["request"].tolist())) == len(rows), "a request ended twice"
    return {int(row["request"]): row for row in rows}


ROOMY = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8, max_model_len=160, block_size=4, num_gpu_blocks=400,
                        enable_chunked_prefill=True, enable_prefix_caching=False, async_scheduling=False)  # fmt: skip


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("coast", [False, True])
def test_a_turn_comes_when_its_parent_is_done_and_thought_over(asynchronous: bool, coast: bool) -> None:
    turns = [Turn(100, 10, 5), Turn(-1, 12, 4, after=1), Turn(-1, 14, 3, after=1, think=7_000), Turn(90_000_000, 8, 2, after=3)]
    config = replace(ROOMY, async_scheduling=asynchronous)
    _, sink, state = play(turns, config, PLAIN, coast=coast)
    rows = by_request(sink)
    assert (state, [int(rows[i]["state"]) for i in range(4)]) == ("finished", [FINISHED] * 4)
    assert rows[0]["arrival_ns"] == 100
    assert rows[1]["arrival_ns"] == rows[0]["last_token_ns"]
    assert rows[2]["arrival_ns"] == rows[1]["last_token_ns"] + 7_000
    # not before its earliest moment, although its parent is long done
    assert rows[3]["arrival_ns"] == 100 + 90_000_000


def test_what_waits_for_a_request_that_does_not_finish_is_unreleased() -> None:
    too_long = [Turn(0, 160, 5), Turn(-1, 10, 5, after=1), Turn(-1, 10, 5, after=1), Turn(50, 10, 5)]
    rows = by_request(play(too_long, ROOMY, PLAIN)[1])
    assert [int(rows[i]["state"]) for i in range(4)] == [int(RequestState.rejected), UNRELEASED, UNRELEASED, FINISHED]
    assert {int(rows[i]["reason"]) for i in (1, 2)} == {int(OutcomeReason.parent_unfinished)}
    cancelled = [Turn(0, 10, 50, cancel=5_000), Turn(-1, 10, 5, after=1), Turn(-1, 10, 5, after=2)]
    rows = by_request(play(cancelled, ROOMY, PLAIN)[1])
    assert [int(rows[i]["state"]) for i in range(3)] == [int(RequestState.cancelled), UNRELEASED, UNRELEASED]


def test_a_cancel_of_a_turn_counts_from_its_release() -> None:
    rows = by_request(play([Turn(0, 10, 5), Turn(-1, 10, 100, after=1, think=50, cancel=8_000)], ROOMY, PLAIN)[1])
    assert int(rows[1]["state"]) == int(RequestState.cancelled)
    assert int(rows[1]["arrival_ns"]) == int(rows[0]["last_token_ns"]) + 50
    assert 0 < int(rows[1]["output_tokens"]) < 100


turn = st.builds(
    Turn,
    gap=st.sampled_from([-1, 0, 1, 900, 5_000, 40_000, 400_000]),
    prompt=st.integers(1, 90),
    output=st.one_of(st.integers(1, 4), st.integers(5, 60)),
    after=st.sampled_from([0, 0, 1, 1, 2, 5]),
    think=st.sampled_from([0, 0, 1, 3_000, 200_000, 10**12]),
    cancel=st.sampled_from([-1, -1, -1, -1, 0, 7_000, 60_000]),
)
sessions = st.lists(turn, min_size=1, max_size=30).map(
    lambda rows: [replace(row, gap=0) if not row.after and row.gap < 0 else row for row in rows]
)
rule_sets = st.sampled_from(
    [
        Rules(),
        Rules(),
        Rules(client=Client(max_in_flight=2)),
        Rules(client=Client(max_in_flight=2, arrival="slot")),
        Rules(front_door=FrontDoorRules(timeout_s=5e-5)),
        Rules(front_door=FrontDoorRules(queue_timeout_s=2e-5)),
    ]
)


@settings(max_examples=150, deadline=None)
@given(sessions, schedulers(), latencies, rule_sets)
def test_every_request_ends_once_and_no_turn_starts_too_early(turns: list[Turn], config: SchedulerConfig, latency: Latency,
                                                              rules: Rules) -> None:  # fmt: skip
    source, sink, state = play(turns, config, latency, rules=rules)
    rows = by_request(sink)
    if state == "finished":
        assert len(rows) == len(turns), "somebody never ended"
    for index, row in rows.items():
        above = source.parent[index]
        if above < 0:
            continue
        ended = rows[above]
        if int(row["state"]) == UNRELEASED:
            assert int(ended["state"]) != FINISHED or state != "finished"
            continue
        assert int(ended["state"]) == FINISHED, "released by somebody who did not finish"
        due = max(int(ended["last_token_ns"]) + source.turns[index].think, source.arrival[index])
        if rules.client.arrival == "slot" and rules.client.max_in_flight is not None:
            assert int(row["arrival_ns"]) >= due
        else:
            assert int(row["arrival_ns"]) == due


@settings(max_examples=150, deadline=None)
@given(sessions, schedulers(), latencies)
def test_coasting_and_repeating_change_nothing(turns: list[Turn], config: SchedulerConfig, latency: Latency) -> None:
    with_coast, without, again = (play(turns, config, latency, coast=coast)[1] for coast in (True, False, True))
    for table in TABLES:
        left, right = with_coast.table(table), without.table(table)
        assert left.tobytes() == again.table(table).tobytes()
        if any(turn.cancel >= 0 for turn in turns) and table != "iterations":
            # a client that leaves in the moment it comes is written before or after the iteration that is under way
            left, right = np.sort(left), np.sort(right)
        assert left.tobytes() == right.tobytes(), table


@settings(max_examples=60, deadline=None)
@given(sessions, latencies, st.integers(1, 4), st.sampled_from(["batch", "own"]))
def test_a_batch_does_not_wait_for_ever_for_company(turns: list[Turn], latency: Latency, size: int, answers: str) -> None:
    batching = Batching(mode="static", size=size, answers=answers)  # type: ignore[arg-type]
    source, sink, state = play(turns, replace(ROOMY, max_num_seqs=8), latency, rules=Rules(batching=batching))
    assert state == "finished"
    assert len(by_request(sink)) == source.total

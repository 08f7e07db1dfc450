"""Engines that take turns: who is next, what a repeated pass counts, and that it computes what one pass does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise

import pytest

from benchmarks import turns
from tests.engine.traffic import Row
from tests.torch_engine.engines import config_of as small_config
from tests.torch_engine.engines import engine_for, run_on


def test_jobs_go_on_one_at_a_time_and_in_turn_until_each_has_ended() -> None:
    said: list[tuple[int, int]] = []

    def job(me: int, steps: int) -> Callable[[Callable[[], None]], int]:
        def run(pass_on: Callable[[], None]) -> int:
            for step in range(steps):
                said.append((step, me))
                pass_on()
            return me * 10

        return run

    lengths = [3, 1, 5, 2]
    assert turns.together([job(me, steps) for me, steps in enumerate(lengths)]) == [0, 10, 20, 30]
    assert said == sorted((step, me) for me, steps in enumerate(lengths) for step in range(steps))
    assert turns.together([]) == []


def test_a_job_that_fails_is_heard_of_when_the_others_have_ended() -> None:
    ended = []

    def fails(pass_on: Callable[[], None]) -> None:
        pass_on()
        raise ValueError("out of memory")

    def ends(pass_on: Callable[[], None]) -> None:
        for _ in range(4):
            pass_on()
        ended.append(True)

    with pytest.raises(ValueError, match="out of memory"):
        turns.together([ends, fails, ends])
    assert ended == [True, True]


def all_ended(before: set[threading.Thread]) -> bool:
    """Whether every thread that was not there before ends."""
    mine = [each for each in threading.enumerate() if each not in before]
    for each in mine:
        each.join(30)
    return not any(each.is_alive() for each in mine)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_where_a_thread_cannot_be_started_none_is_left_waiting(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the system has no more threads to give."""
    log: list[int] = []

    def job(pass_on: Callable[[], None]) -> None:
        log.append(1)
        pass_on()

    before, started, start = set(threading.enumerate()), [0], threading.Thread.start

    def starts(self: threading.Thread) -> None:
        if started[0] == number:
            raise RuntimeError("can't start new thread")
        started[0] += 1
        start(self)

    monkeypatch.setattr(threading.Thread, "start", starts)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        turns.together([job, job, job])
    assert log == [] and all_ended(before)


@pytest.mark.parametrize("count", [1, 3])
def test_an_interrupt_ends_those_that_wait_and_those_that_pass_on(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before, join, began = set(threading.enumerate()), threading.Thread.join, threading.Event()

    def forever(pass_on: Callable[[], None]) -> None:
        while True:
            began.set()
            pass_on()

    def interrupted(self: threading.Thread, timeout: float | None = None) -> None:
        began.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        turns.together([forever] * count)
    monkeypatch.setattr(threading.Thread, "join", join)
    assert all_ended(before)


def test_the_clock_counts_the_fastest_of_the_repeats_and_no_turn_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now, spans = [1000], iter((50, 20, 90, 30, 31, 32))
    monkeypatch.setattr(turns, "_cpu_ns", lambda: now[0])

    def compute(one: int, other: int) -> int:
        now[0] += next(spans)
        return one + other

    def others() -> None:
        now[0] += 7000

    repeated = turns.least(compute, 3, others)
    began = turns.engine_clock()
    assert repeated(2, 3) == 5
    assert turns.engine_clock() - began == 20
    now[0] += 4  # work outside counts as it is
    assert repeated(1, 1) == 2
    assert turns.engine_clock() - began == 20 + 4 + 30


def test_engines_in_turns_sample_the_same_tokens_from_repeated_passes_as_alone() -> None:
    rows = [Row(gap=1000, prompt=prompt, output=9) for prompt in (5, 70, 33, 90, 12)]
    configs = [small_config(max_num_seqs=seats, num_gpu_blocks=34) for seats in (1, 2, 4)]
    alone = [run_on(engine_for(rows, each), rows, each).tokens for each in configs]
    counts = []

    def job(at: int) -> Callable[[Callable[[], None]], dict[int, list[int]]]:
        engine, calls = engine_for(rows, configs[at]), [0]
        counts.append(calls)

        def run(pass_on: Callable[[], None]) -> dict[int, list[int]]:
            for name in ("decode", "mixed"):
                once = getattr(engine.run, name)

                def counted(*given: object, once: Callable[..., object] = once) -> object:
                    calls[0] += 1
                    return once(*given)

                setattr(engine.run, name, turns.least(counted, 3, pass_on))
            return run_on(engine, rows, configs[at]).tokens

        return run

    assert turns.together([job(at) for at in range(3)]) == alone
    assert all(calls[0] % 3 == 0 and calls[0] >= 3 * 9 for calls in counts)
    assert all(len(tokens[request]) == 9 for tokens in alone for request in range(5))
    assert all(one[0] > other[0] for one, other in pairwise(counts))

"""What is kept, what is made twice, and who waits for whom."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.remembered import Coming, Remembered


def test_another_key_is_not_waited_for() -> None:
    memory: Remembered[str] = Remembered(4)
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert go_on.wait(60)
        return "verdict"

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(memory.get, "verdict", slow)
        assert begun.wait(60)
        assert pool.submit(memory.get, "heading", lambda: "heading").result(60) == "heading"
        assert not first.done()
        go_on.set()
        assert first.result(60) == "verdict"


def test_a_value_is_made_once_for_all_who_ask() -> None:
    memory: Remembered[object] = Remembered(4)
    made: list[int] = []
    at_once = threading.Barrier(8)

    def ask() -> object:
        at_once.wait(60)
        return memory.get("one", lambda: made.append(1) or object())

    with ThreadPoolExecutor(8) as pool:
        found = {id(each.result(60)) for each in [pool.submit(ask) for _ in range(8)]}
    assert (len(found), len(made)) == (1, 1)


def test_what_fails_is_not_kept_and_made_again() -> None:
    memory: Remembered[int] = Remembered(4)
    with pytest.raises(ZeroDivisionError):
        memory.get("x", lambda: 1 // 0)
    assert memory.get("x", lambda: 7) == 7
    assert not memory._making


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 5)), max_size=40), st.integers(1, 9))
def test_the_weight_stays_within_bounds_and_the_latest_stays(asked: list[tuple[str, int]], most: int) -> None:
    memory: Remembered[int] = Remembered(most, lambda weight: weight)
    for key, weight in asked:
        found = memory.get(key, lambda weight=weight: weight)  # type: ignore[misc]
        assert memory.get(key, lambda: -1) == found
        assert sum(memory._values.values()) <= most or len(memory._values) == 1
        assert next(reversed(memory._values)) == key


def test_what_takes_long_is_made_once_and_asked_for_again() -> None:
    coming, go_on, made = Coming(), threading.Event(), list[int]()

    def slow() -> str:
        made.append(1)
        assert go_on.wait(60)
        return "verdict"

    assert [coming.soon("verdict", slow, 0.0) for _ in range(3)] == [None] * 3
    assert coming.soon("heading", lambda: "heading", 60.0) == "heading"
    go_on.set()
    assert coming.soon("verdict", slow, 60.0) == "verdict"
    assert len(made) == 1

    def fails() -> str:
        made.append(2)
        raise TimeoutError("of its own")

    for _ in range(2):
        with pytest.raises(TimeoutError, match="of its own"):
            coming.soon("fails", fails, 60.0)
    assert made == [1, 2, 2]

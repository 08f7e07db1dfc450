"""The link between prefill and decode engines, at hand-made times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay_engine.config import ConfigError
from replay_engine.fleet.kv_link import KvLink, Transfer
from replay_engine.pd_rules import KvLinkRules, Pd

MB = 1_000_000


def transfer(request: int, size: int, now: int) -> Transfer:
    return Transfer(request, 0, 0, 1, size, now)


def test_a_transfer_takes_its_latency_and_its_bytes() -> None:
    link = KvLink(KvLinkRules(gb_per_s=0.5, latency_s=0.005))
    one = transfer(0, 100 * MB, 7)
    assert link.ask(one, 7) == [one]
    assert (one.start_ns, one.end_ns) == (7, 7 + 5_000_000 + 200_000_000)
    assert KvLink(KvLinkRules(preset="nvlink", latency_s=0.0)).duration_ns(450 * MB) == 1_000_000
    assert KvLink(KvLinkRules(latency_s=0.0)).duration_ns(1_073_741_824) == 21_474_836  # 8k tokens of 128 KiB over RDMA: 21 ms
    assert KvLink(KvLinkRules(latency_s=1.0)).duration_ns(0) == 0  # all of it was cached


def test_one_at_a_time_in_the_order_of_asking() -> None:
    link = KvLink(KvLinkRules(gb_per_s=1.0, latency_s=0.0, concurrent=1))
    first, second, third = (transfer(i, 100, i) for i in range(3))
    assert link.ask(first, 0) == [first]
    assert link.ask(second, 1) == [] and link.ask(third, 2) == []
    assert link.drop(second, 50) == []  # given up while it waits
    assert link.finish(first, 100) == [third]
    assert (third.start_ns, third.end_ns, len(link)) == (100, 200, 1)


def test_all_at_once_without_a_limit() -> None:
    link = KvLink(KvLinkRules(gb_per_s=1.0, latency_s=0.0))
    wanted = [transfer(i, 100, 0) for i in range(9)]
    assert [link.ask(each, 0) for each in wanted] == [[each] for each in wanted]
    assert {each.end_ns for each in wanted} == {100}


def test_what_a_failing_link_breaks_off_starts_over_first() -> None:
    link = KvLink(KvLinkRules(gb_per_s=1.0, latency_s=0.0, concurrent=2))
    first, second, third = (transfer(i, 100, 0) for i in range(3))
    for each in (first, second, third):
        link.ask(each, 0)
    assert link.fail() == [first, second]
    fourth = transfer(3, 100, 20)
    assert link.ask(fourth, 20) == [] and first.end_ns == -1
    assert link.back(60) == [first, second]
    assert [(each.attempt, each.start_ns, each.end_ns) for each in (first, second, third)] == [
        (2, 60, 160), (2, 60, 160), (1, -1, -1),
    ]  # fmt: skip
    assert link.finish(first, 160) == [third] and link.finish(second, 160) == [fourth]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 300)), min_size=1, max_size=30),
    st.integers(0, 4),
    st.lists(st.integers(1, 400), max_size=3),
)
def test_every_transfer_ends_once_and_nobody_overtakes(asked: list[tuple[int, int]], concurrent: int, falls: list[int]) -> None:
    link = KvLink(KvLinkRules(gb_per_s=1.0, latency_s=0.0, concurrent=concurrent))
    todo, now = [], 0
    for request, (gap, size) in enumerate(asked):
        now += gap
        todo.append((now, 1, transfer(request, size, now)))
    todo += [(at, 2, None) for at in falls] + [(at + 35, 3, None) for at in falls]
    ended: list[int] = []
    starts: list[int] = []

    def started(found: list[Transfer]) -> None:
        for each in found:
            assert not link.down
            starts.append(each.request)
            todo.append((each.end_ns, 0, each))

    while todo:
        todo.sort(key=lambda entry: (entry[0], entry[1]))
        now, kind, each = todo.pop(0)
        if kind == 1 and each is not None:
            started(link.ask(each, now))
        elif kind == 0 and each is not None:
            if each in link.running and each.end_ns == now:
                ended.append(each.request)
                assert now - each.start_ns == each.size
                started(link.finish(each, now))
        elif kind == 2:
            link.fail()
        elif kind == 3:
            started(link.back(now))
        assert not concurrent or len(link.running) <= concurrent
    assert sorted(ended) == list(range(len(asked))) and not len(link)
    if not falls:
        assert starts == list(range(len(asked)))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (lambda: KvLinkRules(gb_per_s=0.0), "kv_link.gb_per_s = 0.0: expected a bandwidth above 0"),
        (lambda: KvLinkRules(latency_s=-1.0), "kv_link.latency_s = -1.0: expected a number of at least 0"),
        (lambda: KvLinkRules(concurrent=1.5), "kv_link.concurrent = 1.5: expected a whole number"),
        (lambda: KvLinkRules(preset="usb"), "kv_link.preset = 'usb': expected one of rdma, nvlink, pcie5"),
        (lambda: Pd(prefill=2), "pd.decode = 0: a request needs an engine of either pool"),
        (lambda: Pd(decode=2), "pd.prefill = 0: a request needs an engine of either pool"),
    ],
)
def test_a_link_or_pools_without_sense_are_refused(rules: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rules()  # type: ignore[operator]
    assert message in str(caught.value)

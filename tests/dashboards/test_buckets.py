"""Downsampling: by value against sums written out, extremes never lost, a million iterations in a blink."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboards.buckets import Buckets, downsample, span_ns
from dashboards.columns import Columns, Frame, by_replica
from tests.dashboards.runs import frame_from, frame_of, iteration_rows

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
LEVELS = ("running", "waiting", "kv_used")


@st.composite
def timelines(draw: st.DrawFn) -> Frame:
    """A few iterations with idle gaps, long ones and ones of no length among them."""
    count = draw(st.integers(1, 14))
    numbers = st.lists(st.integers(0, 50), min_size=count, max_size=count)
    durations = np.array(draw(st.lists(st.integers(0, 400), min_size=count, max_size=count)))
    gaps = np.array(draw(st.lists(st.sampled_from([0, 0, 0, 7, 300]), min_size=count, max_size=count)))
    start = np.cumsum(np.maximum(durations, 1) + gaps) - np.maximum(durations, 1)
    waiting = np.array(draw(numbers))
    return frame_from(
        start_ns=start,
        duration_ns=durations,
        running=draw(numbers),
        waiting=waiting,
        kv_used=draw(numbers),
        kv_cached=draw(numbers),
        decode_seqs=draw(numbers),
        prefill_tokens=draw(numbers),
        preempted=draw(numbers),
        head_refused_by=np.where(waiting > 0, np.array(draw(numbers)) % 4, 0),
    )


def overlaps(frame: Frame, low: int, high: int) -> list[tuple[int, int]]:
    """Iterations that overlap ``[low, high)`` and by how many ns, one by one."""
    found = []
    for i, (start, duration) in enumerate(zip(frame["start_ns"].tolist(), frame["duration_ns"].tolist(), strict=True)):
        inside = min(start + max(duration, 1), high) - max(start, low)
        if inside > 0:
            found.append((i, inside))
    return found


@UNHURRIED
@given(timelines(), st.integers(0, 3000), st.integers(1, 9000), st.integers(1, 12))
def test_every_bucket_is_what_its_iterations_say(frame: Frame, begin: int, length: int, count: int) -> None:
    buckets = downsample(frame, begin, begin + length, count)
    edges = buckets.edges_ns.tolist()
    assert edges[0] == begin
    assert edges[-1] == begin + length
    batch = frame["decode_seqs"] + frame["prefill_tokens"]
    for k, (low, high) in enumerate(zip(edges, edges[1:], strict=False)):
        there = overlaps(frame, low, high)
        busy = sum(ns for _, ns in there)
        assert buckets.iterations[k] == len(there)
        assert buckets.busy_ns[k] == pytest.approx(busy)
        for name in LEVELS:
            integral = sum(int(frame[name][i]) * ns for i, ns in there)
            over = busy if name == "kv_used" else high - low
            assert buckets.mean[name][k] == pytest.approx(integral / over if integral else 0)
            assert buckets.peak[name][k] == max((frame[name][i] for i, _ in there), default=0)
        tokens = sum(int(frame["decode_seqs"][i]) * ns for i, ns in there)
        assert buckets.mean["decode"][k] == pytest.approx(tokens / busy if busy else 0)
        assert buckets.peak["batch"][k] == max((batch[i] for i, _ in there), default=0)
        worst = buckets.worst["duration_ns"][k]
        assert (worst == -1) == (not there)
        if there:
            longest = max(frame["duration_ns"][i] for i, _ in there)
            assert buckets.peak["duration_ns"][k] == longest
            assert worst == next(i for i, _ in there if frame["duration_ns"][i] == longest)
            assert buckets.low["duration_ns"][k] == min(frame["duration_ns"][i] for i, _ in there)
    parts = sum(buckets.queue.values(), np.zeros(len(buckets.iterations)))
    assert parts == pytest.approx(buckets.mean["waiting"])


@UNHURRIED
@given(timelines(), st.integers(1, 12))
def test_the_whole_run_loses_nothing(frame: Frame, count: int) -> None:
    begin, end = span_ns(frame)
    buckets = downsample(frame, begin, end + 1, count)
    widths = np.diff(buckets.edges_ns)
    lengths = np.maximum(frame["duration_ns"], 1)
    assert buckets.covered == len(lengths)
    assert buckets.preempted.sum() == frame["preempted"].sum()
    assert buckets.busy_ns.sum() == pytest.approx(lengths.sum())
    for name in ("running", "waiting"):
        assert (buckets.mean[name] * widths).sum() == pytest.approx((frame[name] * lengths).sum())
        assert buckets.peak[name].max() == frame[name].max()


def million() -> Frame:
    return frame_of(iteration_rows(1_000_000))


def planted(frame: Frame, at: int, column: str, value: int) -> Frame:
    return {**frame, column: np.concatenate([frame[column][:at], [value], frame[column][at + 1 :]])}


@pytest.mark.parametrize("at", [0, 1, 123_456, 499_999, 833_333, 999_998, 999_999])
def test_one_bad_iteration_among_a_million_is_seen(at: int) -> None:
    frame = million()
    delayed = frame["start_ns"].copy()
    delayed[at + 1 :] += 9_990_000_000
    frame = planted({**frame, "start_ns": delayed}, at, "duration_ns", 10_000_000_000)
    for column, value in (("waiting", 700), ("kv_used", 999), ("running", 300), ("decode_seqs", 8000), ("preempted", 5)):
        frame = planted(frame, at, column, value)
    buckets = downsample(frame, *span_ns(frame))
    assert len(buckets.iterations) == 1200
    where = {name: buckets.peak[name].max() for name in ("duration_ns", "waiting", "kv_used", "running")}
    assert where == {"duration_ns": 10_000_000_000, "waiting": 700, "kv_used": 999, "running": 300}
    assert buckets.worst["duration_ns"][buckets.peak["duration_ns"].argmax()] == at
    assert buckets.worst["batch"][buckets.peak["batch"].argmax()] == at
    assert buckets.preempted.sum() == 5


def test_a_million_iterations_take_a_fraction_of_a_second() -> None:
    frame = million()
    spent = []
    for _ in range(3):
        began = time.process_time()
        downsample(frame, *span_ns(frame))
        spent.append(time.process_time() - began)
    assert min(spent) < 0.3  # 0.08 s where nothing else runs


def test_few_iterations_are_drawn_one_by_one_with_the_idle_time_between() -> None:
    frame = frame_from(start_ns=[100, 200, 500], duration_ns=[100, 50, 10], running=[1, 2, 3])
    buckets = downsample(frame, 0, 600)
    assert buckets.exact
    assert buckets.edges_ns.tolist() == [0, 100, 200, 250, 500, 510, 600]
    assert buckets.mean["running"].tolist() == [0, 1, 2, 0, 3, 0]
    assert buckets.worst["duration_ns"].tolist() == [-1, 0, 1, -1, 2, -1]


def test_an_iteration_of_decades_is_found_too() -> None:
    """Longer than what fits into one number together with the iteration's place."""
    long = 1 << 61
    frame = frame_from(start_ns=[0, 7, 7 + long], duration_ns=[7, long, 9], running=[1, 1, 1])
    buckets = downsample(frame, 0, 20 + long, 2)
    assert buckets.worst["duration_ns"].tolist() == [1, 1]


@pytest.mark.parametrize("window", [(0, 50), (5_000, 6_000), (0, 0)])
def test_a_window_without_iterations_is_idle(window: tuple[int, int]) -> None:
    buckets = downsample(frame_from(start_ns=[100, 300], duration_ns=[100, 50]), *window)
    assert (buckets.covered, buckets.iterations.sum(), buckets.busy_ns.sum()) == (0, 0, 0)


def test_no_iterations_at_all() -> None:
    frame = Columns().frame()
    assert span_ns(frame) == (0, 0)
    buckets: Buckets = downsample(frame, 0, 0)
    assert buckets.covered == 0
    assert buckets.queue == {}


def test_columns_grow_without_moving_what_was_handed_out() -> None:
    columns = Columns()
    columns.append(iteration_rows(4000))
    before = columns.frame()
    kept = {name: column.copy() for name, column in before.items()}
    for first in range(4000, 40_000, 4000):
        columns.append(iteration_rows(4000, first))
    for name, column in before.items():
        assert np.array_equal(column, kept[name])
    whole = frame_of(iteration_rows(40_000))
    assert all(np.array_equal(columns.frame()[name], whole[name]) for name in whole)


def test_rows_of_several_replicas_are_dealt_out_in_order() -> None:
    rows: npt.NDArray[np.void] = iteration_rows(9)
    columns = {name: rows[name] for name in rows.dtype.names or ()} | {"replica": np.array([2, 0, 2, 0, 0, 2, 2, 0, 5])}
    dealt: dict[int, Columns] = {}
    by_replica(columns, dealt)
    by_replica({**columns, "replica": np.full(9, 5)}, dealt)
    numbers = {replica: part.frame()["iteration"].tolist() for replica, part in dealt.items()}
    assert numbers == {0: [1, 3, 4, 7], 2: [0, 2, 5, 6], 5: [8, *range(9)]}
    spooled = np.zeros(9, [("replica", "<i2"), *rows.dtype.descr])
    for name, column in columns.items():
        spooled[name] = column
    again: dict[int, Columns] = {}
    by_replica(spooled, again)
    by_replica(spooled[spooled["replica"] == 2], again)
    numbers = {replica: part.frame()["iteration"].tolist() for replica, part in again.items()}
    assert numbers == {0: [1, 3, 4, 7], 2: [0, 2, 5, 6, 0, 2, 5, 6], 5: [8]}

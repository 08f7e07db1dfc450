"""Trace events: held against the format's rules by a checker of our own (which finds planted faults), and against the tables."""

from __future__ import annotations

import copy
import gzip
import io
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from tests.exports.conftest import Runs
from tracekit.exports import perfetto
from tracekit.exports.perfetto import FIRST_REPLICA_PID, REQUESTS_PID, write_perfetto
from tracekit.store import Store, sql

Event = dict[str, Any]
NEEDED = {
    "X": {"pid", "tid", "name", "ts", "dur"}, "C": {"pid", "name", "ts", "args"}, "b": {"pid", "cat", "id", "name", "ts"},
    "e": {"pid", "cat", "id", "name", "ts"}, "i": {"pid", "tid", "name", "ts", "s"}, "M": {"pid", "name", "args"},
}  # fmt: skip


def exported(runs: Runs, run: int, **options: Any) -> list[Event]:
    stream = io.BytesIO()
    with runs.store.read() as con:
        write_perfetto(con, run, stream, title="t", **options)
    document = json.loads(gzip.decompress(stream.getvalue()))
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    events: list[Event] = document["traceEvents"]
    return events


def faults(events: list[Event]) -> list[str]:
    """What a viewer would stumble over; empty where there is nothing."""
    found = []
    slices, stacks, last = defaultdict(list), defaultdict(list), {}
    named = {event["pid"] for event in events if event.get("ph") == "M" and event["name"] == "process_name"}
    for event in events:
        kind = event.get("ph")
        if kind not in NEEDED or not NEEDED[kind] <= set(event):
            found.append(f"not an event: {event}")
            continue
        if event["pid"] not in named:
            found.append(f"process {event['pid']} has no name")
        if kind == "M":
            continue
        if not isinstance(event["ts"], int) or event["ts"] < 0 or event.get("dur", 0) < 0:
            found.append(f"time {event['ts']}")
            continue
        if kind == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif kind == "C" and not all(isinstance(each, int | float) for each in event["args"].values()):
            found.append(f"counter {event['args']}")
        elif kind in "be":
            track = (event["pid"], event["cat"], event["id"])
            if event["ts"] < last.get(track, 0):
                found.append(f"track {track} goes back")
            last[track] = event["ts"]
            if kind == "b":
                stacks[track].append(event["name"])
            elif not stacks[track] or stacks[track].pop() != event["name"]:
                found.append(f"track {track}: {event['name']} ends what is not open")
    found += [f"track {track} stays open" for track, stack in stacks.items() if stack]
    for track, own in slices.items():
        own.sort()
        found += [f"slices of {track} overlap" for one, other in zip(own, own[1:], strict=False) if other[0] < one[1]]
    return found


def shifted(events: list[Event]) -> None:
    next(event for event in events if event["ph"] == "X" and event["args"]["iteration"] == 3)["ts"] -= 2


def first_end(events: list[Event]) -> Event:
    return next(event for event in events if event["ph"] == "e")


FAULTS: dict[str, Callable[[list[Event]], object]] = {
    "an end is missing": lambda events: events.remove(first_end(events)),
    "an end has another name": lambda events: first_end(events).update(name="other"),
    "ends are crossed": lambda events: events.reverse(),
    "a slice overlaps the one before": shifted,
    "a time is a text": lambda events: first_end(events).update(ts="1"),
    "a process has no name": lambda events: events.pop(0),
    "a counter is a text": lambda events: next(e for e in events if e["ph"] == "C")["args"].update(x="1"),
    "an event has no kind": lambda events: events[9].pop("ph"),
}


@pytest.mark.parametrize("kind", ["tight", "preempting", "fleet", "pools", "outcomes_only"])
def test_a_viewer_finds_nothing_to_object_to(runs: Runs, kind: str) -> None:
    assert faults(exported(runs, getattr(runs, kind))) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_the_checker_finds_what_is_planted(runs: Runs, fault: str) -> None:
    events = copy.deepcopy(exported(runs, runs.tight))
    FAULTS[fault](events)
    assert faults(events)


@pytest.mark.parametrize("kind", ["tight", "preempting", "fleet", "pools"])
def test_iterations_and_counters_are_the_tables(runs: Runs, kind: str) -> None:
    run = getattr(runs, kind)
    events = exported(runs, run)
    with runs.store.read() as con:
        rows = con.execute(
            "SELECT replica, iteration, start_ns, start_ns + duration_ns, running, waiting, kv_used, kv_total, prefill_tokens,"
            " decode_seqs FROM iterations WHERE run = ? ORDER BY replica, iteration", [run]).fetchall()  # fmt: skip
    slices = [event for event in events if event["ph"] == "X"]
    told = [(e["pid"] - FIRST_REPLICA_PID, e["args"]["iteration"], e["ts"], e["ts"] + e["dur"]) for e in slices]
    assert told == [(replica, number, begin // 1000, end // 1000) for replica, number, begin, end, *_ in rows]
    assert [e["args"].get("prefill_tokens", 0) for e in slices] == [row[8] for row in rows]
    assert [e["args"].get("decode_seqs", 0) for e in slices] == [row[9] for row in rows]
    counted: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counted[event["pid"] - FIRST_REPLICA_PID, event["name"]].append(event)
    for replica, _, begin, _, running, waiting, used, total, *_ in rows:
        assert held_at(counted[replica, "requests"], begin // 1000) == {"running": running, "waiting": waiting}
        assert abs(held_at(counted[replica, "KV blocks"], begin // 1000)["used"] - used) <= total / 500 + 1


def held_at(events: list[Event], ts: int) -> dict[str, int]:
    """What a counter stands at."""
    held: dict[str, int] = events[bisect_right(events, ts, key=lambda each: each["ts"]) - 1]["args"]
    return held


@pytest.mark.parametrize("kind", ["tight", "preempting", "fleet", "pools"])
def test_requests_are_the_spans(runs: Runs, kind: str) -> None:
    run = getattr(runs, kind)
    events = [event for event in exported(runs, run) if event["pid"] == REQUESTS_PID and event["ph"] in "be"]
    with runs.store.read() as con:
        spans = con.execute("SELECT request, phase::VARCHAR, start_ns, end_ns FROM spans WHERE run = ?", [run]).fetchall()
        outcomes = con.execute("SELECT request, state::VARCHAR, tenant FROM outcomes WHERE run = ? AND arrival_ns >= 0",
                               [run]).fetchall()  # fmt: skip
    begun = {int(e["id"]): e["args"] for e in events if e["ph"] == "b" and e["name"].startswith("request")}
    assert {number: (args["state"], args["tenant"]) for number, args in begun.items()} == {
        number: (state, tenant) for number, state, tenant in outcomes
    }
    told = []
    for begin, end in zip(events, events[1:], strict=False):
        if begin["ph"] == "b" and end["ph"] == "e" and not begin["name"].startswith("request"):
            told.append((int(begin["id"]), begin["name"], begin["ts"], end["ts"]))
    assert sorted(told) == sorted((request, phase, begin // 1000, end // 1000) for request, phase, begin, end in spans)


def test_who_missed_the_slo_is_told_from_who_had_none(runs: Runs) -> None:
    told = [event["args"]["slo_met"] for event in exported(runs, runs.tight) if "slo_met" in event.get("args", {})]
    met = [row[0] for row in sql(Store(runs.path), f"SELECT slo_met FROM outcomes WHERE run = {runs.tight}").rows]
    assert (told.count(True), told.count(False)) == (met.count(True), met.count(False))
    assert False in told


def test_preemptions_and_transfers_are_drawn(runs: Runs) -> None:
    with runs.store.read() as con:
        (preempted,) = con.execute("SELECT count(*) FROM preemptions WHERE run = ?", [runs.preempting]).fetchall()[0]
        (moved,) = con.execute("SELECT count(*) FROM transfers WHERE run = ?", [runs.pools]).fetchall()[0]
    assert preempted and sum(event["ph"] == "i" for event in exported(runs, runs.preempting)) == preempted
    assert moved and sum(e.get("cat") == "transfer" and e["ph"] == "b" for e in exported(runs, runs.pools)) == moved


def test_a_window_has_what_overlaps_it(runs: Runs) -> None:
    low, high = 2 * 10**9, 4 * 10**9
    events = exported(runs, runs.tight, window_ns=(low, high))
    assert faults(events) == []
    slices = [e for e in events if e["ph"] == "X"]
    everything = [e for e in exported(runs, runs.tight) if e["ph"] == "X"]
    assert [e for e in everything if e["ts"] < high // 1000 and e["ts"] + e["dur"] > low // 1000] == slices
    assert 0 < len(slices) < len(everything)


def test_batches_do_not_show(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [event for event in exported(runs, runs.fleet) if event["ph"] != "C"]
    monkeypatch.setattr(perfetto, "BATCH_ROWS", 2048)  # the database hands out no fewer
    assert [event for event in exported(runs, runs.fleet) if event["ph"] != "C"] == whole


def test_the_same_run_gives_the_same_bytes(runs: Runs) -> None:
    streams = [io.BytesIO(), io.BytesIO()]
    for stream in streams:
        with runs.store.read() as con:
            write_perfetto(con, runs.preempting, stream, title="t")
    assert streams[0].getvalue() == streams[1].getvalue()

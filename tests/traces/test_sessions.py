"""Sessions of a trace on their way to the engine: linked, placed, sliced by their root; and what lies beside a trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from tests.traces.samples import samples
from tests.traces.session_samples import claude_session
from tracekit.errors import UsageError
from tracekit.traces.clock import moved
from tracekit.traces.load import LoadedTrace, load_trace, read_trace
from tracekit.traces.session_tree import break_cycles, roots_of
from tracekit.traces.sessions import RELATIVE_DEFAULT
from tracekit.traces.slicing import Slice
from tracekit.traces.source import TraceSource

Write = Callable[..., Path]
SECOND = 10**9


def text(*lines: dict[str, Any]) -> str:
    return "".join(json.dumps({"input_tokens": 10, "output_tokens": 2} | line) + "\n" for line in lines)


def rows(write: Write, *lines: dict[str, Any], name: str = "t.jsonl") -> LoadedTrace:
    return read_trace(write(text(*lines), name))


def turn(session: str, number: int, at: float, **more: Any) -> dict[str, Any]:
    return {"arrival_s": at, "session_id": session, "turn": number, "obs_e2e_s": 2.0} | more


TWO = (turn("a", 0, 0), turn("b", 0, 5), turn("a", 1, 10), turn("b", 1, 20), turn("a", 2, 30), {"arrival_s": 40})


def columns(source: TraceSource) -> dict[str, list[Any]]:
    parent = source.parent.tolist() if source.parent is not None else None
    think = (source.think_ns / SECOND).tolist() if source.think_ns is not None else None
    arrival = (source.arrival_ns / SECOND).tolist()
    return {"req_idx": source.req_idx.tolist(), "arrival": arrival, "parent": parent, "think": think}


def test_turns_stand_behind_their_root_and_wait(write: Write, con: duckdb.DuckDBPyConnection) -> None:
    trace = rows(write, *TWO)
    trace_id = load_trace(con, write(text(*TWO), "u.jsonl")).trace
    assert trace_id is not None
    for source in (TraceSource.from_loaded(trace), TraceSource.from_database(con, trace_id)):
        free = -1 / SECOND
        assert columns(source) == {
            "req_idx": [0, 2, 4, 1, 3, 5], "arrival": [0, free, free, 5, free, 40], "parent": [-1, 0, 1, -1, 3, -1],
            "think": [0, 8, 18, 0, 13, 0],
        }  # fmt: skip
        assert (source.start_ns / SECOND).tolist() == [0, 0, 0, 5, 5, 40]
        batches = list(source.batches(4))
        assert [batch.parent.tolist() for batch in batches if batch.parent is not None] == [[-1, 0, 1, -1], [3, -1]]
    assert con.execute("SELECT release, count(*) FROM requests GROUP BY release ORDER BY release").fetchall() == [
        ("after_parent", 3), ("at_arrival", 3)
    ]  # fmt: skip


def test_as_recorded_every_turn_arrives_at_its_own_time(write: Write) -> None:
    source = TraceSource.from_loaded(rows(write, *TWO), Slice(sessions="as_recorded"))
    assert columns(source) == {"req_idx": list(range(6)), "arrival": [0, 5, 10, 20, 30, 40], "parent": None, "think": None}


def test_a_window_takes_sessions_by_their_root(write: Write, con: duckdb.DuckDBPyConnection) -> None:
    trace = rows(write, *TWO)
    trace_id = load_trace(con, write(text(*TWO), "u.jsonl")).trace
    assert trace_id is not None
    part = Slice(window_ns=(4 * SECOND, 15 * SECOND))
    for source in (TraceSource.from_loaded(trace, part), TraceSource.from_database(con, trace_id, part)):
        assert source.req_idx.tolist() == [1, 3]
        assert source.counted.all()
        assert source.window_ns == 11 * SECOND
    lead = TraceSource.from_loaded(trace, Slice(window_ns=(4 * SECOND, 15 * SECOND), lead_in_ns=10 * SECOND, limit=1))
    assert (lead.req_idx.tolist(), lead.counted.tolist()) == ([0, 2, 4, 1], [False] * 3 + [True])


def test_a_rate_scales_starts_not_think_times(write: Write) -> None:
    source = TraceSource.from_loaded(rows(write, *TWO), Slice(rate_scale=2.0))
    with pytest.raises(UsageError, match="wait for each other"):
        moved(source, rate_scale=2.0)
    assert columns(source)["think"] == [0, 8, 18, 0, 13, 0]
    assert (source.start_ns / SECOND).tolist() == [0, 0, 0, 2.5, 2.5, 20]


def test_failed_turns_are_stepped_over_and_missing_parents_make_roots(write: Write) -> None:
    lines = [turn("a", 0, 0), turn("a", 1, 10, output_tokens=0), turn("a", 2, 30), turn("a", 3, 50)]
    source = TraceSource.from_loaded(rows(write, *lines))
    # the first answer was complete at 2 s, and this turn came at 30 s
    assert columns(source)["think"] == [0, 28, 18]
    assert source.left_out == 1
    cut = TraceSource.from_loaded(rows(write, *TWO), Slice(where="turn <> 1"))
    assert columns(cut) == {"req_idx": [0, 1, 4], "arrival": [0, 5, 30], "parent": None, "think": None}


def test_sessions_without_a_clock_are_placed(write: Write) -> None:
    lines = b"".join(
        json.dumps(claude_session(f"s{i}", *({"t": t, "in": 64, "out": 3, "think_time": 1.0} for t in (0.5, 9.0)))).encode()
        + b"\n"
        for i in range(40)
    )
    trace = read_trace(write(lines, "s.jsonl"))
    source = TraceSource.from_loaded(trace)
    roots = source.arrival_ns[source.parent < 0] if source.parent is not None else np.zeros(0)
    assert len(roots) == 40 and roots[0] == 0 and (np.diff(roots) > 0).all()
    assert 5 * SECOND < np.diff(roots).mean() < 20 * SECOND
    same = TraceSource.from_loaded(trace, Slice(sessions=RELATIVE_DEFAULT))
    assert same.arrival_ns.tolist() == source.arrival_ns.tolist()
    other = TraceSource.from_loaded(trace, Slice(sessions="poisson:rate=10,seed=3"))
    assert other.arrival_ns.max() < source.arrival_ns.max() / 10
    together = TraceSource.from_loaded(trace, Slice(sessions="start_together"))
    assert together.arrival_ns.max() == 0
    recorded = TraceSource.from_loaded(trace, Slice(sessions="as_recorded"))
    assert recorded.parent is None and sorted(set(recorded.arrival_ns.tolist())) == [0, 8_500_000_000]
    for said in ("poisson", "poisson:rate=-1", "later"):
        with pytest.raises(UsageError, match="--sessions"):
            TraceSource.from_loaded(trace, Slice(sessions=said))


def test_circles_lost_parents_and_repeated_turns_survive(write: Write) -> None:
    def named(own: str, parent: str, at: float) -> dict[str, Any]:
        return {"arrival_s": at, "request_id": own, "parent_id": parent}

    lost = named("z", "nobody", 3)
    trace = rows(write, named("x", "y", 1), named("y", "x", 2), lost, named("w", "z", 4), named("v", "v", 5))
    said = " ".join(trace.report.warnings)
    assert "2 circles of parents" in said and "1 requests name a parent that is not in the trace" in said
    assert trace.extras is not None
    assert trace.extras["parent_idx"].to_pylist() == [None, 0, None, 2, None]
    odd = rows(write, turn("a", 0, 0), turn("a", 0, 5), turn("a", 4, 9), turn("a", 5, 10, think_time_s=-3), name="o.jsonl")
    said = " ".join(odd.report.warnings)
    for words in ("1 turns have the number", "1 gaps in the numbers", "think time is negative"):
        assert words in said
    assert odd.extras is not None and odd.extras["think_ns"].to_pylist()[-1] == -3 * SECOND
    source = TraceSource.from_loaded(odd)
    assert source.think_ns is not None and source.think_ns.min() == 0


def test_a_giant_session_is_one_chain(write: Write) -> None:
    count = 3000
    trace = rows(write, *(turn("g", i, 3 * i) for i in range(count)))
    source = TraceSource.from_loaded(trace)
    assert source.parent is not None and source.parent.tolist() == list(range(-1, count - 1))
    assert source.think_ns is not None and set(source.think_ns[1:].tolist()) == {SECOND}


def test_roots_and_circles() -> None:
    parent = np.array([-1, 0, 1, 5, 3, 4, 4, -1], np.int64)
    assert break_cycles(parent) == 1
    assert parent.tolist() == [-1, 0, 1, -1, 3, 4, 4, -1]
    root, depth = roots_of(parent)
    assert root.tolist() == [0, 0, 0, 3, 3, 3, 3, 7]
    assert depth.tolist() == [0, 1, 2, 0, 1, 2, 2, 0]


def test_settings_and_series_beside_a_trace(write: Write, con: duckdb.DuckDBPyConnection) -> None:
    path = write(samples()["inferencex"][0], "run.requests.csv")
    polls = "timestamp_sec,relative_time_sec,running,kv\n1776762401.5,0.0,3,0.5\n1776762402.5,1.0,4,bad\n"
    write(polls, "run.server_metrics.csv")
    settings = {"model": "m", "engine_kwargs": {"max_num_seqs": 8, "prompt": ["x"]}, "secret": "y",
                "resolved_config": {"cache_config": {"block_size": 16}, "other": {"a": 1}}}  # fmt: skip
    write(json.dumps(settings), "run.meta.json")
    write("what,ever\n1,2\n", "run.timeseries.csv")
    report = load_trace(con, path)
    assert [line for line in report.warnings if "run.timeseries.csv" in line]
    kept = dict(con.execute("SELECT kind, settings::VARCHAR FROM sidecars").fetchall())
    assert json.loads(kept["meta"]) == {"model": "m", "engine_kwargs": {"max_num_seqs": 8}, "cache_config": {"block_size": 16}}
    assert con.execute("SELECT metric, t_ns, value FROM sidecar_series ORDER BY metric, t_ns").fetchall() == [
        ("kv", 1_500_000_000, 0.5), ("running", 1_500_000_000, 3.0), ("running", 2_500_000_000, 4.0)
    ]  # fmt: skip
    counted = con.execute("SELECT kind, series, points FROM sidecars ORDER BY kind").fetchall()
    assert counted == [("meta", 0, 0), ("server_metrics", 2, 3)]


def test_series_of_the_public_runs(con: duckdb.DuckDBPyConnection, shared: Callable[[str], Path]) -> None:
    load_trace(con, shared("vllm_measured_llama8b_rtx4090.requests.jsonl"))
    load_trace(con, shared("inferencex_dsr1_b200_tp8_conc64_offloadoff.requests.csv.gz"))
    found = dict(con.execute("SELECT metric, sum(value) FROM sidecar_series WHERE trace = 1 GROUP BY metric").fetchall())
    assert (found["gen_throughput"], len(found)) == (195_753.0, 5)
    peak = con.execute("SELECT metric, max(value) FROM sidecar_series WHERE trace = 2 GROUP BY metric").fetchall()
    assert (dict(peak)["num_preemptions_total"], dict(peak)["num_requests_waiting"]) == (7, 51)

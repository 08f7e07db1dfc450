"""Formats that know sessions and agents: each hand-made sample by value, and the public files by the statistics of their page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from tests.traces.samples import samples
from tests.traces.session_samples import claude_session
from tracekit.traces.load import LoadedTrace, load_trace, read_trace

Write = Callable[..., Path]
Shared = Callable[[str], Path]


def sample(write: Write, name: str, number: int = 0) -> LoadedTrace:
    trace = read_trace(write(samples()[name][number], f"{name}.x"))
    assert trace.report.format == name
    assert trace.report.rows_read == trace.report.rows_kept + sum(trace.report.rows_dropped.values())
    return trace


def column(trace: LoadedTrace, name: str) -> list[Any]:
    """A column with one value per request, NULL where nothing is known."""
    if name in trace.arrivals.column_names:
        return trace.arrivals[name].to_pylist()  # type: ignore[no-any-return]
    assert trace.extras is not None
    known = dict(zip(trace.extras["req_idx"].to_pylist(), trace.extras[name].to_pylist(), strict=True))
    return [known.get(i) for i in range(trace.arrivals.num_rows)]


def seconds(trace: LoadedTrace, name: str) -> list[float | None]:
    return [None if value is None else value / 1e9 for value in column(trace, name)]


def test_azure_2024_is_told_by_its_offset(write: Write) -> None:
    trace = sample(write, "azure2024")
    assert column(trace, "arrival_ns") == [0, 7_405_000, 990_070_000]
    assert trace.report.t0_ns == 1715299200009930000
    assert column(trace, "output_tokens") == [5, 6, 15]


def test_burstgpt_in_both_releases(write: Write) -> None:
    six = sample(write, "burstgpt6")
    assert seconds(six, "arrival_ns") == [0, 40, 113]
    assert column(six, "kind") == ["Conversation log", "API log", "Conversation log"]
    eight = sample(write, "burstgpt8")
    assert column(eight, "session_id") == ["a", None, "a", "b", "b"]
    assert column(eight, "parent_idx") == [None, None, 0, None, 3]
    # 19440200 - 19440110 - 43, and the second turn of b was sent before its first was answered
    assert seconds(eight, "think_ns") == [None, None, 47, None, -20]
    assert seconds(eight, "obs_e2e_ns") == [43, 3, None, 60, 2]
    said = " ".join(eight.report.warnings)
    assert "1 turns arrive before the answer" in said and "1 prompts are shorter" in said


def test_bailian_turns_follow_the_parent_that_they_name(write: Write) -> None:
    trace = sample(write, "bailian")
    assert seconds(trace, "arrival_ns") == [0, 0.5, 8.75, 28.5]
    assert column(trace, "parent_idx") == [None, None, 0, 2]
    assert column(trace, "session_id") == ["0", "1", "0", "0"]
    assert column(trace, "think_ns") == [None] * 4
    assert trace.report.block_tokens == 16
    assert any("2 turns after an answer whose end is unknown" in line for line in trace.report.warnings)


def test_delays_of_mooncake_sessions_are_think_times(write: Write) -> None:
    trace = sample(write, "mooncake_sessions")
    assert column(trace, "session_id") == ["a", "a", "a", "b"]
    assert seconds(trace, "arrival_ns") == [0, 0.25, 0.35, 0.5005]
    assert seconds(trace, "think_ns") == [None, 0.25, 0.1, None]
    assert column(trace, "parent_idx") == [None, 0, 1, None]


def test_nested_claude_code_sessions(write: Write) -> None:
    trace = sample(write, "weka_sessions")
    assert trace.report.arrival_kind == "session_relative"
    assert column(trace, "session_id") == ["s1", "s2", "s1", "s1", "s2", "s1", "s1"]
    assert seconds(trace, "arrival_ns") == [0, 0, 2.5, 6.5, 9, 13, 40]
    assert column(trace, "agent_path") == ["root", "root", "root/agent_001", "root/agent_001", "root", "root", "root"]
    # the sub-agent follows the request that sent it out, and the agent goes on after the sub-agent's last answer
    assert column(trace, "parent_idx") == [None, None, 0, 2, 1, 3, 5]
    assert seconds(trace, "think_ns") == [None, None, 0.5, 2.0, 7.0, 4.5, 25.0]
    assert seconds(trace, "tool_ns") == [None, None, None, 2.0, None, 11.0, None]
    assert trace.runs is not None
    by_request: dict[int, set[int]] = {}
    for row in trace.runs.to_pylist():
        by_request.setdefault(row["req_idx"], set()).update(range(row["first_id"], row["first_id"] + row["len"]))
    assert not by_request[0] & by_request[1], "ids of two sessions are the same block"
    assert by_request[0] < by_request[5] and len(by_request[5]) == 4
    assert column(trace, "shared_blocks") == [3, 2, 2, 2, 2, 3, 2]


def test_session_ids_stay_apart_over_files_and_may_be_hashes(write: Write) -> None:
    def file(name: str, ids: list[Any]) -> Path:
        call = {"t": 0, "type": "n", "in": 64 * len(ids), "out": 1, "hash_ids": ids}
        return write(json.dumps(claude_session(name, call)) + "\n", f"{name}.jsonl")

    plain, same = file("a", [1, 2, 3]), file("b", [1, 2, 3])
    hashed = file("c", ["0xab", "0xcd", "0xab"])
    trace = read_trace([plain, same, hashed])
    assert trace.report.rows_kept == 3
    assert trace.runs is not None
    firsts = [(row["req_idx"], row["first_id"], row["len"]) for row in trace.runs.to_pylist()]
    assert firsts == [(0, 1, 3), (1, 5, 3), (2, 8, 2), (2, 8, 1)]


def test_sessions_that_are_damaged_lose_their_bad_requests_only(write: Write) -> None:
    good = {"t": 1.0, "type": "n", "in": 70, "out": 3, "hash_ids": [1]}
    bad: list[Any] = [{**good, "in": -1}, "nonsense", {**good, "hash_ids": [-4]}, {**good, "hash_ids": "x"}]
    session = claude_session("s", good, *bad, good)
    lines = [json.dumps(session), json.dumps({**session, "id": "t", "requests": 7}), '{"id": "u", "requests": [{"t"']
    path = write("\n".join([json.dumps(claude_session("v", *[good] * 8)), *lines]), "t.jsonl")
    loaded = read_trace(path)
    assert loaded.report.rows_kept == 10
    assert loaded.report.rows_read == 10 + sum(loaded.report.rows_dropped.values()) == 16


def test_one_session_as_one_document(write: Write) -> None:
    first = {"t": 0, "type": "n", "in": 64, "out": 1, "hash_ids": [1]}
    session = claude_session("s", first, {"t": 5, "in": 64, "out": 1, "think_time": 4})
    trace = read_trace(write(json.dumps(session, indent=2), "s.json"))
    assert (trace.report.format, trace.report.rows_kept) == ("weka_sessions", 2)
    assert seconds(trace, "think_ns") == [None, 4]


def test_flattened_sessions_and_spans(write: Write) -> None:
    flat = sample(write, "weka_normalized")
    assert flat.report.arrival_kind == "session_relative"
    assert column(flat, "parent_idx") == [None, None, 0, 1, 2, 3]
    assert seconds(flat, "think_ns") == [None, None, 6, 6, 6, 6]
    spans = sample(write, "exgentic_spans")
    assert spans.report.t0_ns == 1776685450855935000
    assert seconds(spans, "arrival_ns") == [0, 5, 10]
    assert column(spans, "status") == ["ok", "error", "ok"]
    assert seconds(spans, "obs_e2e_ns") == [2.5005, None, 2.5005]
    assert seconds(spans, "think_ns") == [None, 2.4995, 5.0]


def test_rounds_of_coding_agents(write: Write) -> None:
    trace = sample(write, "tracelab")
    assert column(trace, "session_id") == ["x:2", "c:1", "c:1"]
    assert seconds(trace, "arrival_ns") == [0, 600, 660]
    assert seconds(trace, "obs_e2e_ns") == [3.5, 3.5, 3.5]
    assert seconds(trace, "think_ns") == [None, None, 56.5]
    # the tool ran from 4.0 to 30; what counts is after the answer's end at 4.5
    assert seconds(trace, "tool_ns") == [None, None, 25.5]
    assert column(trace, "obs_cached_tokens") == [0, 90, 90]


def test_failed_rows_of_inferencex_are_no_instant_answers(write: Write) -> None:
    trace = sample(write, "inferencex")
    assert seconds(trace, "arrival_ns") == [0, 0.25, 12]
    assert column(trace, "status") == ["error", "ok", "ok"]
    assert seconds(trace, "obs_ttft_ns") == [None, 1.5, 1.5]
    assert column(trace, "parent_idx") == [None, None, 1]
    assert seconds(trace, "think_ns") == [None, None, 8]
    assert "token_timestamps" in trace.report.ignored_columns


@pytest.mark.parametrize("number", [0, 1], ids=["request", "agent"])
def test_dynamo_agents_wait_for_the_agents_that_they_send_out(write: Write, number: int) -> None:
    trace = sample(write, "dynamo_trace", number)
    assert trace.report.rows_dropped == {"a tool's event": 2}
    assert column(trace, "session_id") == ["run:root"] * 4
    assert column(trace, "agent_path") == ["root", "root/scout:0", "root/scout:0", "root"]
    assert column(trace, "parent_idx") == [None, 0, 1, 2]
    assert seconds(trace, "think_ns") == [None, 0.05, 0.03, 0.01]
    assert seconds(trace, "tool_ns") == [None, None, 0.02, 0.0]
    assert column(trace, "obs_replica") == [str(2**63 + 5)] * 4
    assert column(trace, "shared_blocks") == [2, 1, 1, 2]


# --- the public files -------------------------------------------------------------------------------------------------------


def stats(trace: LoadedTrace, name: str) -> list[float]:
    data = trace.arrivals[name].to_numpy()
    return [round(float(value), 1) for value in (data.mean(), *np.percentile(data, [50, 95, 99]), data.max())]


@pytest.mark.parametrize(
    ("name", "rows", "inputs", "outputs"),
    [
        ("BurstGPT_1.head400.csv", 400, [520.5, 314, 1637.1, 1958.0, 2126], [276.5, 229.5, 813.6, 1421.2, 2019]),
        ("BurstGPT_3.head250.csv", 250, [690.9, 277.5, 1481.4, 12363.7, 25085], [177.4, 104, 590.4, 852.7, 1101]),
        ("cc_traces_weka_051226.normalized.jsonl.gz", 5000, [252413.8, 205149, 726189.4, 817396.8, 847831],
         [648.9, 247.5, 2520.3, 6103.1, 24356]),
        ("exgentic_swebench_claude_code.normalized.jsonl.gz", 2294, [27541.4, 26316.5, 53057.2, 62851.1, 67657],
         [244.4, 98, 818.5, 1744.8, 7566]),
        ("inferencex_dsr1_b200_tp8_conc16_offloadoff.requests.csv.gz", 34, [76146.4, 87269.5, 119251.7, 119606.1, 119748],
         [2628, 2629.5, 3760.2, 4929.5, 5412]),
        ("inferencex_dsr1_b200_tp8_conc64_offloadoff.requests.csv.gz", 121, [82139.2, 92163, 119439, 125609.4, 127422],
         [1515.3, 1498, 4366, 5051.8, 6367]),
        ("dynamo_request_trace.jsonl", 17, [3912.9, 3423, 8381.6, 8700.3, 8780], [476.1, 389, 885.8, 1058.0, 1101]),
    ],
)  # fmt: skip
def test_public_files_by_their_lengths(shared: Shared, name: str, rows: int, inputs: list[float], outputs: list[float]) -> None:
    trace = read_trace(shared(name))
    assert trace.report.rows_kept == rows
    assert stats(trace, "input_tokens") == pytest.approx(inputs, abs=0.11)
    assert stats(trace, "output_tokens") == pytest.approx(outputs, abs=0.11)


def test_public_burstgpt_sessions(shared: Shared) -> None:
    trace = read_trace(shared("BurstGPT_3.head250.csv"))
    sessions = [name for name in column(trace, "session_id") if name is not None]
    counts = np.unique(sessions, return_counts=True)[1]
    assert (len(counts), counts.max(), (counts > 1).sum()) == (91, 24, 52)
    assert any("18 prompts are shorter" in line for line in trace.report.warnings)


def test_public_claude_code_sessions(shared: Shared, con: duckdb.DuckDBPyConnection) -> None:
    path = shared("claude_code_sessions.sample142.jsonl.gz")
    began = time.process_time()
    report = load_trace(con, path)
    assert time.process_time() - began < 8
    assert (report.format, report.rows_kept, report.rows_dropped, report.block_tokens) == ("weka_sessions", 8853, {}, 64)
    assert report.span_ns == 94_890 * 10**9
    row = con.execute(
        "SELECT count(*), count(DISTINCT session_id), round(avg(input_tokens)), max(input_tokens), round(avg(output_tokens), 1),"
        " count(*) FILTER (output_tokens = 0), count(*) FILTER (agent_path <> 'root'), count(*) FILTER (release = 'at_arrival'),"
        " quantile_cont(think_ns, 0.5) / 1e9, max(think_ns) / 1e9 FROM requests"
    ).fetchall()
    assert row == [(8853, 142, 134105, 880502, 427.4, 7, 11, 142, pytest.approx(10, abs=0.3), pytest.approx(48547, abs=1))]
    runs, blocks = con.execute("SELECT count(*), sum(len) FROM blocks").fetchall()[0]
    assert (blocks, runs < 30_000) == (18_546_117, True)
    # 96.4 % of the blocks were seen before in their own session
    ranges = "SELECT first_id::BIGINT AS low, (first_id + len)::BIGINT AS high FROM blocks ORDER BY low, high"
    held = con.execute(ranges).fetchnumpy()
    reached = np.maximum.accumulate(np.concatenate([[0], held["high"][:-1]]))
    distinct = int(np.maximum(held["high"] - np.maximum(held["low"], reached), 0).sum())
    assert 1 - distinct / blocks == pytest.approx(0.964, abs=0.0005)
    head = con.execute("SELECT hash_scope, hash_rounding, arrival_kind FROM traces").fetchall()
    assert head == [("session", "floor", "session_relative")]


def test_public_agent_traces_are_the_same_requests_in_both_schemas(shared: Shared) -> None:
    new, old = read_trace(shared("dynamo_request_trace.jsonl")), read_trace(shared("dynamo_agent_trace.jsonl"))
    assert new.arrivals.equals(old.arrivals)
    assert new.extras is not None and old.extras is not None and new.extras.equals(old.extras)
    assert new.report.rows_dropped == {"a tool's event": 44}
    assert new.report.span_ns == 162_147 * 10**6
    assert sum(parent is None for parent in column(new, "parent_idx")) == 2
    assert new.runs is not None and int(new.runs["len"].to_numpy().astype(np.int64).sum()) == 4163
    cached = [value for value in column(new, "obs_cached_tokens") if value is not None]
    assert round(float(np.mean(cached))) == 2956


def test_public_tracelab_rounds(shared: Shared) -> None:
    trace = read_trace(shared("tracelab_sanitized_rounds.example.jsonl"))
    assert trace.report.rows_kept == 19
    assert sorted(np.unique(column(trace, "session_id"), return_counts=True)[1].tolist()) == [9, 10]


def test_public_measured_replays(shared: Shared) -> None:
    for name, ok, failed, median in (("conc16", 34, 0, 49.2), ("conc64", 68, 53, 285.7)):
        trace = read_trace(shared(f"inferencex_dsr1_b200_tp8_{name}_offloadoff.requests.csv.gz"))
        status = column(trace, "status")
        assert (status.count("ok"), status.count("error")) == (ok, failed)
        ttft = [value for value, state in zip(seconds(trace, "obs_ttft_ns"), status, strict=True) if state == "ok" and value]
        assert float(np.median(np.array(ttft))) == pytest.approx(median, abs=3)

"""Out to the engine: batches, windows, rates, and the columns that metrics need."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pytest

from tracekit.errors import InputError, UsageError
from tracekit.traces.load import load_trace, read_trace
from tracekit.traces.slicing import Slice
from tracekit.traces.source import TraceSource

Write = Callable[..., Path]


@pytest.fixture
def path(write: Write) -> Path:
    rows = []
    for i in range(100):
        row = {"arrival_s": i, "input_tokens": 100 + i, "output_tokens": 7, "tenant": "ab"[i % 2], "block_tokens": 16,
               "hash_ids": [0, 1, *range(10 + 10 * i, 14 + 10 * i)], "obs_ttft_ms": 5 if i % 3 else None}  # fmt: skip
        rows.append(row | ({"output_tokens": 0} if i == 50 else {}) | ({"status": "error"} if i == 51 else {}))
    return write("".join(json.dumps(row) + "\n" for row in rows), "t.jsonl")


def both(path: Path, con: duckdb.DuckDBPyConnection, **options: object) -> list[TraceSource]:
    trace = load_trace(con, path).trace
    assert trace is not None
    part = Slice(**options)  # type: ignore[arg-type]
    return [TraceSource.from_database(con, trace, part), TraceSource.from_loaded(read_trace(path), part)]


def test_whole_trace(path: Path, con: duckdb.DuckDBPyConnection) -> None:
    for source in both(path, con):
        assert (source.total, source.left_out, source.window_ns) == (98, 2, 99 * 10**9)
        assert source.counted.all()
        batches = list(source.batches(40))
        assert [len(batch.index) for batch in batches] == [40, 40, 18]
        assert np.concatenate([batch.index for batch in batches]).tolist() == list(range(98))
        expected = [i for i in range(100) if i not in (50, 51)]
        assert np.concatenate([batch.prompt_tokens for batch in batches]).tolist() == [100 + i for i in expected]
        assert np.concatenate([batch.arrival_ns for batch in batches]).tolist() == [i * 10**9 for i in expected]
        last = batches[-1]
        assert last.run_offsets is not None and last.run_first is not None and last.run_len is not None
        assert last.run_offsets.tolist() == [2 * i for i in range(19)]
        assert last.run_first[-2:].tolist() == [0, 1000]
        assert last.run_len[-2:].tolist() == [2, 4]
        assert last.shared_blocks is not None and set(last.shared_blocks.tolist()) == {2}
        assert last.block_tokens == 16
        assert last.max_tokens.tolist() == [-1] * 18
        assert last.request_id is None and last.deadline_ns is None
        assert last.tenant is not None and last.tenant.tolist() == [i % 2 for i in range(82, 100)]
        assert source.tenant_names == ["a", "b"]
        assert source.tenant is not None and source.tenant.tolist() == [i % 2 for i in expected]
        assert source.obs_ttft_ns is not None
        assert source.obs_ttft_ns.tolist() == [5_000_000 if i % 3 else -1 for i in expected]
        assert source.obs_queue_ns is None and source.class_ is None
        assert source.req_idx.tolist() == expected


def test_window_with_lead_in_and_rate(path: Path, con: duckdb.DuckDBPyConnection) -> None:
    for source in both(path, con, window_ns=(20 * 10**9, 30 * 10**9), lead_in_ns=5 * 10**9, rate_scale=2.0):
        assert source.total == 15
        assert source.arrival_ns.tolist() == [i * 10**9 // 2 for i in range(15)]
        assert source.counted.tolist() == [False] * 5 + [True] * 10
        assert source.window_ns == 5 * 10**9
        assert source.prompt_tokens[0] == 115


def test_limit_and_empty_slices(path: Path, con: duckdb.DuckDBPyConnection) -> None:
    for source in both(path, con, limit=10):
        assert (source.total, source.window_ns) == (10, 9 * 10**9)
    with pytest.raises(InputError, match="no request to replay"):
        both(path, con, window_ns=(10**15, 2 * 10**15))
    with pytest.raises(UsageError, match="end after its begin"):
        both(path, con, window_ns=(5, 5))
    with pytest.raises(UsageError, match="rate-scale"):
        both(path, con, rate_scale=0.0)
    with pytest.raises(UsageError, match="not in this database"):
        TraceSource.from_database(con, 99)


def test_deadlines_keep_their_distance_from_the_arrival(write: Write) -> None:
    rows = [{"arrival_ms": 1000 * i, "deadline_ms": 1000 * i + 300, "input_tokens": 1, "output_tokens": 1} for i in range(1, 4)]
    trace = read_trace(write("".join(json.dumps(row) + "\n" for row in rows), "t.jsonl"), fmt="generic_jsonl")
    source = TraceSource.from_loaded(trace, Slice(rate_scale=4.0))
    assert source.arrival_ns.tolist() == [0, 250_000_000, 500_000_000]
    assert source.deadline_ns is not None
    assert source.deadline_ns.tolist() == [300_000_000, 550_000_000, 800_000_000]

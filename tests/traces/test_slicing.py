"""Parts of a trace: predicates, thinning by groups, spread ticks, limits inside windows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pytest

from tracekit.errors import UsageError
from tracekit.slices import parse_thin, slice_of
from tracekit.traces.load import load_trace, read_trace
from tracekit.traces.slicing import Slice
from tracekit.traces.source import TraceSource
from tracekit.traces.ticks import find_tick

Write = Callable[..., Path]
SECOND = 10**9


@pytest.fixture
def path(write: Write) -> Path:
    """200 requests in 20 ticks of 3 s; 40 sessions of 5; 25 prefix groups of 8 behind a system prompt that all have."""
    rows = []
    for i in range(200):
        group = i % 25
        rows.append({"arrival_s": 3 * (i // 10) + (0.001 if i // 10 % 7 == 3 else 0), "input_tokens": 100 + i, "output_tokens": 5,
                     "tenant": "abc"[i % 3], "session_id": f"s{i % 40}", "block_tokens": 16,
                     "hash_ids": [0, 1, 100 + 10 * group, 101 + 10 * group, 5000 + i]})  # fmt: skip
    return write("".join(json.dumps(row) + "\n" for row in rows), "t.jsonl")


@pytest.fixture
def trace(path: Path, con: duckdb.DuckDBPyConnection) -> int:
    number = load_trace(con, path).trace
    assert number is not None
    return number


def both(path: Path, con: duckdb.DuckDBPyConnection, trace: int, part: Slice) -> TraceSource:
    """From the database; the same from memory must agree."""
    source, other = TraceSource.from_database(con, trace, part), TraceSource.from_loaded(read_trace(path), part)
    assert np.array_equal(source.req_idx, other.req_idx)
    assert np.array_equal(source.arrival_ns, other.arrival_ns)
    return source


def test_where(path: Path, con: duckdb.DuckDBPyConnection, trace: int) -> None:
    source = both(path, con, trace, Slice(where="tenant = 'b' AND input_tokens < 150 -- the short ones"))
    assert source.req_idx.tolist() == [i for i in range(50) if i % 3 == 1]
    assert source.weight == 1.0
    inside = both(path, con, trace, Slice(where="tenant = 'b'", window_ns=(6 * SECOND, 9 * SECOND), limit=2))
    assert inside.req_idx.tolist() == [22, 25]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tenent = 'a'", "no column tenent; expected one of tenant"),
        ("foo = 1", "no column foo; expected one of trace, req_idx, source_file, "),
        ("input_tokens >", "syntax error"),
        ("1=1) UNION SELECT * FROM requests WHERE (1=1", "not a single expression"),
        ("req_idx IN (SELECT req_idx FROM blocks)", "a subquery is not allowed"),
        ("exists(SELECT * FROM read_csv('/etc/passwd'))", "a subquery is not allowed"),
        ("1=1); DROP TABLE arrivals; --", "syntax error"),
        ("row_number() OVER () < 5", "a window function is not allowed"),
        ("random() < 0.5", "does not say the same"),
        ("input_tokens = $1", "a parameter is not allowed"),
        ("sum(input_tokens) > 3", "cannot contain aggregates"),
        ("tenant > 3 AND", "syntax error"),
        ("", "empty"),
        ("(1, 2)", "cast"),
    ],
)
def test_a_bad_predicate_is_one_line(con: duckdb.DuckDBPyConnection, trace: int, text: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        TraceSource.from_database(con, trace, Slice(where=text))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("--where")


def test_thin_keeps_whole_sessions(path: Path, con: duckdb.DuckDBPyConnection, trace: int) -> None:
    source = both(path, con, trace, Slice(thin=(1, 8), seed=3))
    assert source.by == "session"
    assert source.weight == 8.0
    sessions = {int(i) % 40 for i in source.req_idx}
    assert len(sessions) == 5
    assert source.total == 25
    assert np.array_equal(source.req_idx, both(path, con, trace, Slice(thin=(1, 8), seed=3)).req_idx)
    assert not np.array_equal(source.req_idx, both(path, con, trace, Slice(thin=(1, 8), seed=4)).req_idx)
    # a window of a thinned trace holds the same requests as the thinned trace has there
    window = both(path, con, trace, Slice(thin=(1, 8), seed=3, window_ns=(0, 30 * SECOND)))
    assert window.req_idx.tolist() == [i for i in source.req_idx.tolist() if i < 100]


def test_thin_by_prefix_ignores_the_prompt_that_all_have(path: Path, con: duckdb.DuckDBPyConnection, trace: int) -> None:
    source = both(path, con, trace, Slice(thin=(1, 5), by="prefix"))
    groups = {int(i) % 25 for i in source.req_idx}
    assert len(groups) == 5
    assert source.total == 40
    assert source.run_offsets is not None and len(source.run_offsets) == 41


def test_thin_by_request(path: Path, con: duckdb.DuckDBPyConnection, trace: int) -> None:
    assert both(path, con, trace, Slice(thin=(1, 4), by="request")).total == 50
    with pytest.raises(UsageError, match="--by session"):
        Slice(by="session")


def test_ticks_are_found_and_spread(path: Path, con: duckdb.DuckDBPyConnection, trace: int) -> None:
    assert con.execute("SELECT time_resolution_ns FROM traces").fetchall() == [(3 * SECOND,)]
    plain, spread = both(path, con, trace, Slice()), both(path, con, trace, Slice(spread_ticks=True, seed=1))
    assert spread.total == 200
    assert (np.diff(spread.arrival_ns) >= 0).all()
    assert len(np.unique(spread.arrival_ns)) > 190
    moved = spread.arrival_ns[np.argsort(spread.req_idx)] - plain.arrival_ns
    assert moved.min() >= 0
    assert moved.max() < 3 * SECOND
    assert abs(moved.mean() / SECOND - 1.5) < 0.2
    window = both(path, con, trace, Slice(spread_ticks=True, seed=1, window_ns=(10 * SECOND, 20 * SECOND)))
    inside = (spread.arrival_ns >= 10 * SECOND) & (spread.arrival_ns < 20 * SECOND)
    assert window.req_idx.tolist() == spread.req_idx[inside].tolist()


def test_limit_counts_counted_requests_only(path: Path, con: duckdb.DuckDBPyConnection, trace: int) -> None:
    source = both(path, con, trace, Slice(window_ns=(9 * SECOND, 30 * SECOND), lead_in_ns=6 * SECOND, limit=15))
    assert int(source.counted.sum()) == 15
    assert int((~source.counted).sum()) == 20
    assert source.window_ns == 3 * SECOND


def test_powers_of_ten_and_coarse_ticks() -> None:
    assert find_tick(np.array([0, 7, 15], np.int64) * 100) == 100
    assert find_tick(np.array([0, 2, 5], np.int64) * SECOND) == SECOND
    assert find_tick(np.repeat(np.arange(50), 3) * 250_000_000) == 250_000_000
    assert find_tick(np.zeros(1, np.int64)) == SECOND


def test_options() -> None:
    assert parse_thin("1/64") == (1, 64)
    for text in ("2", "3/2", "0/5", "1/x", "-1/4"):
        with pytest.raises(UsageError, match="--thin"):
            parse_thin(text)
    part = slice_of({"window": "1s:2s", "thin": "1/3", "by": "prefix", "limit": 5, "seed": 2}, 10 * SECOND, None)
    assert part == Slice(window_ns=(SECOND, 2 * SECOND), thin=(1, 3), by="prefix", limit=5, seed=2)
    with pytest.raises(UsageError, match="--by"):
        slice_of({"by": "weekday"}, 1, None)


def test_mooncake_ticks(shared: Callable[[str], Path]) -> None:
    trace = read_trace(shared("mooncake_conversation_trace.jsonl.gz"))
    assert find_tick(trace.arrivals["arrival_ns"].to_numpy()) == 3 * SECOND
    spread = TraceSource.from_loaded(trace, Slice(spread_ticks=True))
    gaps = np.diff(spread.arrival_ns)
    assert gaps.std() / gaps.mean() < 1.3

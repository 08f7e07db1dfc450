"""JSON lines: values, prefix runs, and every dropped row with its line and reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.errors import InputError
from tracekit.traces.load import LoadedTrace, load_trace, read_trace

Write = Callable[..., Path]


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def mooncake(at: int, prompt: int, ids: Any, output: Any = 5) -> dict[str, Any]:
    return {"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": ids}


def runs(trace: LoadedTrace) -> list[tuple[int, ...]]:
    assert trace.runs is not None
    return [tuple(row.values()) for row in trace.runs.select(["req_idx", "pos_start", "first_id", "len"]).to_pylist()]


def test_mooncake_runs_and_shared_blocks(write: Write) -> None:
    trace = read_trace(
        write(lines(mooncake(0, 1500, [0, 1, 2]), mooncake(3000, 1024, [0, 1]), mooncake(3000, 2048, [0, 3, 4, 9])), "a")
    )
    assert trace.report.format == "mooncake"
    assert trace.report.block_tokens == 512
    assert runs(trace) == [(0, 0, 0, 3), (1, 0, 0, 2), (2, 0, 0, 1), (2, 1, 3, 2), (2, 3, 9, 1)]
    assert trace.arrivals["shared_blocks"].to_pylist() == [2, 2, 1]
    assert trace.arrivals["arrival_ns"].to_pylist() == [0, 3_000_000_000, 3_000_000_000]


def test_runs_follow_their_request_when_arrivals_are_not_sorted(write: Write) -> None:
    trace = read_trace(write(lines(mooncake(9, 1024, [5, 6]), mooncake(4, 512, [7]), mooncake(4, 1024, [8, 5])), "a"))
    assert trace.arrivals["input_tokens"].to_pylist() == [512, 1024, 1024]
    assert runs(trace) == [(0, 0, 7, 1), (1, 0, 8, 1), (1, 1, 5, 1), (2, 0, 5, 2)]
    assert any("before the row above" in warning for warning in trace.report.warnings)


def test_64_bit_hashes_become_dense_ids_that_form_runs(write: Write) -> None:
    big = [2**64 - 1 - 977 * i for i in range(6)]
    trace = read_trace(
        write(lines(mooncake(0, 2048, big[:4]), mooncake(1, 2048, big[:2] + big[4:]), mooncake(2, 1024, big[:2])), "a")
    )
    assert runs(trace) == [(0, 0, 0, 4), (1, 0, 0, 2), (1, 2, 4, 2), (2, 0, 0, 2)]
    assert trace.arrivals["shared_blocks"].to_pylist() == [2, 2, 2]


def test_ids_as_text_and_bad_ids(write: Write) -> None:
    good = [mooncake(i, 600, [1, 2]) for i in range(8)]
    bad = [mooncake(9, 600, [1, -2]), mooncake(9, 600, [1.5]), mooncake(9, 600, "x"), mooncake(9, 600, [1, 2, 3])]
    trace = read_trace(write(lines(*good, *bad, mooncake(9, 600, ["0x1", "2"])), "a"))
    assert [(reject.line, reject.column, reject.reason) for reject in trace.report.rejects] == [
        (9, "hash_ids", "a block id is not a whole number from 0 to 2^64 - 1"),
        (10, "hash_ids", "a block id is not a whole number from 0 to 2^64 - 1"),
        (11, "hash_ids", "not a list of block ids"),
        (12, "hash_ids", "more blocks of 512 tokens than the prompt has"),
    ]
    assert runs(trace)[-1] == (8, 0, 1, 2)


def test_broken_lines_are_named_and_never_quoted(write: Write) -> None:
    good = lines(*(mooncake(i, 512, [i]) for i in range(6)))
    text = (
        good
        + "\nsecret prompt text\n[1]\n"
        + lines(mooncake(7, 512, [1], 1.5), mooncake(7, 512, [1], None))
        + '{"timestamp": 8, "inp'
    )
    trace = read_trace(write(text, "a"))
    report = trace.report
    assert [(reject.line, reject.column, reject.reason) for reject in report.rejects] == [
        (8, None, "not valid JSON"),
        (9, None, "not a JSON object"),
        (12, None, f"incomplete line (cut at byte {len(text)})"),
        (10, "output_length", "not a whole number"),
        (11, "output_length", "missing"),
    ]
    assert "secret" not in json.dumps(report.as_dict())
    assert report.rows_read == 11 == report.rows_kept + sum(report.rows_dropped.values())


def test_measured_latencies_use_one_clock(write: Write) -> None:
    row = {"request_id": "a", "input_toks": 10, "output_toks": 3, "arrival_time": 1787267980.5, "queued_ts": 100.0,
           "scheduled_ts": 100.25, "first_token_ts": 101.0, "last_token_ts": 103.0}  # fmt: skip
    rows = lines(row, row | {"arrival_time": 1787267981.5, "output_toks": 1, "last_token_ts": 101.0})
    trace = read_trace(write(rows, "a"))
    assert trace.extras is not None
    assert trace.report.obs_clock == "server"
    extras = trace.extras.to_pydict()
    assert extras["obs_queue_ns"] == [250_000_000] * 2
    assert extras["obs_ttft_ns"] == [1_000_000_000] * 2
    assert extras["obs_tpot_ns"] == [1_000_000_000, None]
    assert extras["obs_e2e_ns"] == [3_000_000_000, 1_000_000_000]
    assert trace.arrivals["arrival_ns"].to_pylist() == [0, 1_000_000_000]


@pytest.mark.parametrize("name", ["queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts"])
@pytest.mark.parametrize(("value", "reason"), [("soon", "not a number"), (True, "not a number"), (1.0, "ends before it begins")])
def test_a_moment_that_is_none_is_not_said_to_be_early(name: str, value: object, reason: str, write: Write) -> None:
    row = {"request_id": "a", "input_toks": 10, "output_toks": 3, "arrival_time": 1787267980.5, "queued_ts": 100.0,
           "scheduled_ts": 100.25, "first_token_ts": 101.0, "last_token_ts": 103.0}  # fmt: skip
    if name == "queued_ts" and value == 1.0 and value is not True:
        value = 200.0
    report = read_trace(write(lines(row, row | {name: value}, row, row), "a")).report
    assert report.rows_dropped == {reason: 1}


def test_generic_json_by_name_by_hand_and_nested(write: Write) -> None:
    rows = lines(
        {
            "ts": "2024-01-01T00:00:00.1234567Z",
            "usage": {"prompt_tokens": 5, "completion_tokens": 6},
            "user": "a",
            "messages": "text",
        },
        {"ts": "2024-01-01T01:00:01.1234567+01:00", "usage": {"prompt_tokens": "7", "completion_tokens": 8.0}, "user": None},
    )
    mapping = {
        "arrival": "ts",
        "input_tokens": "usage.prompt_tokens",
        "output_tokens": "usage.completion_tokens",
        "tenant": "user",
    }
    trace = read_trace(write(rows, "a"), mapping=mapping)
    assert trace.report.format == "generic_jsonl"
    assert trace.arrivals["arrival_ns"].to_pylist() == [0, 1_000_000_000]
    assert trace.arrivals["input_tokens"].to_pylist() == [5, 7]
    assert trace.extras is not None
    assert trace.extras["tenant"].to_pylist() == ["a"]
    assert "messages" in trace.report.ignored_columns


def test_block_ids_with_their_size_by_hand(write: Write) -> None:
    rows = lines({"t": 0, "in": 32, "out": 1, "h": [3, 4]}, {"t": 1, "in": 20, "out": 1, "h": [3]})
    mapping = ["arrival=t:s", "input_tokens=in", "output_tokens=out", "hash_ids=h:16"]
    trace = read_trace(write(rows, "a"), mapping=mapping)
    assert trace.report.block_tokens == 16
    assert runs(trace) == [(0, 0, 3, 2), (1, 0, 3, 1)]


def test_unit_change_and_what_is_no_object_are_refused(write: Write) -> None:
    rows = lines(
        {"arrival": 1.7e9, "input_tokens": 1, "output_tokens": 1}, {"arrival": 1.7e12, "input_tokens": 1, "output_tokens": 1}
    )
    with pytest.raises(InputError) as caught:
        read_trace(write(rows, "a"))
    assert (caught.value.line, caught.value.column) == (2, "arrival")
    with pytest.raises(InputError, match="not JSON"):
        read_trace(write("[\n1]", "b"))


def test_an_array_over_many_lines(write: Write) -> None:
    row = '{"arrival_s": %d,\n "input_tokens": 5,\n "output_tokens": 6}'
    rows = ",\n".join(row % i for i in range(4))
    trace = read_trace(write("[\n" + rows + ",\n" + '{"arrival_s": 9, "input_tokens": x}\n]', "b"))
    assert trace.arrivals["source_line"].to_pylist() == [2, 5, 8, 11]
    assert [(reject.line, reject.reason) for reject in trace.report.rejects] == [(14, "not valid JSON")]


def test_a_column_that_only_later_rows_have(write: Write, con: duckdb.DuckDBPyConnection) -> None:
    base = {"arrival_s": 0, "input_tokens": 5, "output_tokens": 5}
    load_trace(con, write(lines(*[base] * 6000, base | {"tenant": "late", "other": 1}), "a"))
    assert con.execute("SELECT req_idx, tenant FROM requests WHERE tenant IS NOT NULL").fetchall() == [(6000, "late")]


def test_failed_rows_are_kept_with_their_status(write: Write, con: duckdb.DuckDBPyConnection) -> None:
    base = {"arrival_s": 0, "input_tokens": 5, "output_tokens": 5}
    rows = lines(base, base | {"output_tokens": 0}, base | {"input_tokens": 0, "output_tokens": 0}, base | {"status": "FAILED"})
    load_trace(con, write(rows.replace('"output_tokens": 5}\n', '"output_tokens": 5, "status": "success"}\n', 1), "a"))
    found = con.execute("SELECT status FROM requests ORDER BY req_idx").fetchall()
    assert found == [("ok",), ("unknown",), ("error",), ("error",)]


def test_the_same_file_is_loaded_once(write: Write, con: duckdb.DuckDBPyConnection) -> None:
    path = write(lines(mooncake(0, 512, [1], "x"), *(mooncake(i, 512, [1]) for i in range(9))), "conv.jsonl")
    first = load_trace(con, path)
    again = load_trace(con, path)
    assert (first.trace, again.trace, again.already_loaded) == (1, 1, True)
    assert (again.rows_dropped, again.rejects) == (first.rows_dropped, first.rejects)
    assert load_trace(con, path, fmt="mooncake").name == "conv-2"
    assert con.execute("SELECT count(*) FROM requests").fetchall() == [(18,)]
    assert con.execute('SELECT trace, line, "column", reason FROM quarantine').fetchall()[0] == (
        1,
        1,
        "output_length",
        "not a number",
    )


def test_several_files_a_glob_and_a_directory(tmp_path: Path) -> None:
    for k in range(3):
        (tmp_path / f"part{k}.jsonl").write_text(lines(mooncake(10 - k, 512, [k])))
    for inputs in ([tmp_path / f"part{k}.jsonl" for k in range(3)], tmp_path / "part*.jsonl", tmp_path):
        trace = read_trace(inputs)
        assert trace.arrivals["arrival_ns"].to_pylist() == [0, 1_000_000, 2_000_000]
        assert trace.arrivals["source_file"].to_pylist() == [2, 1, 0]
        assert runs(trace) == [(0, 0, 2, 1), (1, 0, 1, 1), (2, 0, 0, 1)]
    with pytest.raises(InputError, match="no such file"):
        read_trace(tmp_path / "nothing*")


def test_standard_input_and_a_fifo(tmp_path: Path) -> None:
    code = "import sys; from tracekit.traces.load import read_trace; print(read_trace(sys.argv[1]).report.rows_kept)"
    data = lines(*(mooncake(i, 512, [i]) for i in range(500)))
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code, "-"], input=data, text=True, capture_output=True, cwd=root, check=True)
    assert done.stdout.strip() == "500"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen([sys.executable, "-c", code, str(fifo)], stdout=subprocess.PIPE, text=True, cwd=root) as process:
        fifo.write_text(data)
        assert process.communicate(timeout=60)[0].strip() == "500"


VALUES = st.one_of(
    st.integers(-2, 3000), st.floats(allow_nan=False, allow_infinity=False), st.none(), st.text(max_size=3), st.booleans()
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(VALUES, VALUES, st.one_of(st.none(), VALUES, st.lists(st.integers(0, 40), max_size=6))), max_size=12))
def test_any_json_reconciles(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, Any, Any]]) -> None:
    path = tmp_path_factory.mktemp("h") / "t.jsonl"
    filler = [mooncake(0, 3000, [1, 2]) for _ in range(len(rows) + 1)]
    path.write_text(lines(*filler, *(mooncake(a, b, ids) for a, b, ids in rows)))
    report = read_trace(path).report
    assert report.rows_read == len(filler) + len(rows) == report.rows_kept + sum(report.rows_dropped.values())
    assert all(reject.line > len(filler) for reject in report.rejects)

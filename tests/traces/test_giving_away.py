"""``validate`` and ``anonymize`` from outside: what is said, what leaves, and that what left is the same trace."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.traces.samples import samples
from tracekit.cli.main import main
from tracekit.errors import TracekitError, UsageError
from tracekit.traces.anonymize import anonymize
from tracekit.traces.formats import MODULES
from tracekit.traces.load import LoadedTrace, read_trace
from tracekit.traces.validate import validate

Write = Callable[..., Path]
RENAMED = ("request_id", "tenant", "session_id", "model", "adapter", "obs_replica", "agent_path")
WORDS = ("class", "kind", "error_code", "finish_reason")


def groups(values: list[Any]) -> list[int | None]:
    """Values as the place at which each appeared first: equal for columns that differ only in names."""
    places: dict[Any, int] = {}
    return [None if value is None else places.setdefault(value, i) for i, value in enumerate(values)]


def same(before: LoadedTrace, after: LoadedTrace) -> None:
    for name in ("arrival_ns", "input_tokens", "output_tokens", "shared_blocks"):
        if name in before.arrivals.column_names:
            assert after.arrivals[name].to_pylist() == before.arrivals[name].to_pylist(), name
    one, two = _extras(before), _extras(after)
    for name in one.keys() | two.keys():
        a, b = one.get(name), two.get(name)
        a, b = (values or [None] * before.arrivals.num_rows for values in (a, b))
        if name in RENAMED:
            if name == "request_id" and None in a:
                continue
            assert groups(a) == groups(b), name
        elif name not in WORDS:
            assert a == b, name


def _extras(trace: LoadedTrace) -> dict[str, list[Any]]:
    if trace.extras is None:
        return {}
    rows = {row["req_idx"]: row for row in trace.extras.to_pylist()}
    names = [name for name in trace.extras.column_names if name not in ("trace", "req_idx")]
    return {name: [rows.get(i, {}).get(name) for i in range(trace.arrivals.num_rows)] for name in names}


def blocks(trace: LoadedTrace) -> list[list[int]]:
    out: list[list[int]] = [[] for _ in range(trace.arrivals.num_rows)]
    if trace.runs is not None:
        for run in trace.runs.to_pylist():
            out[run["req_idx"]] += range(run["first_id"], run["first_id"] + run["len"])
    return out


@pytest.mark.parametrize("name", MODULES)
def test_what_left_is_the_same_trace(name: str, write: Write, tmp_path: Path) -> None:
    for i, data in enumerate(samples().get(name, [])):
        path = write(data, f"in{i}")
        arrival = "poisson:rate=5" if name == "lengths_csv" else None
        try:
            before = read_trace(path, fmt=name, arrival=arrival)
        except TracekitError as error:
            pytest.skip(f"a sample that does not load by itself: {error}")
        anonymize(path, tmp_path / f"out{i}.jsonl.gz", fmt=name, arrival=arrival)
        after = read_trace(tmp_path / f"out{i}.jsonl.gz")
        assert after.report.format == "canonical_jsonl"
        assert after.report.rows_dropped == {}
        assert not after.report.ignored_columns
        assert after.report.arrival_kind == before.report.arrival_kind.replace("absolute", "relative")
        same(before, after)
        assert groups(list(chain(*blocks(before)))) == groups(list(chain(*blocks(after))))
        assert before.report.block_tokens == after.report.block_tokens


ROWS: list[dict[str, Any]] = [
    {"arrival_s": 1_700_000_000 + 60 * i, "input_tokens": 40 + i, "output_tokens": 7, "request_id": f"req-{i % 5}",
     "tenant": f"acme-{i % 3}", "model": "secret-7b", "session_id": f"user@{i % 2}.example", "class": "batch", "note": "private",
     "finish_reason": "stop" if i % 2 else "because Anna said so", "block_tokens": 16, "hash_ids": [9_000_000_000 + i % 3, 5 + i]}
    for i in range(10)
]  # fmt: skip


def test_nothing_but_lengths_times_and_structure_leaves(write: Write, tmp_path: Path) -> None:
    path = write("".join(json.dumps(row) + "\n" for row in ROWS), "t.jsonl")
    found = anonymize(path, tmp_path / "o.jsonl", salt="s")
    text = (tmp_path / "o.jsonl").read_text()
    for secret in ("req-", "acme", "secret", "example", "Anna", "private", "9000000000", "1700000000", "note"):
        assert secret not in text
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["arrival_ns"] for row in rows] == [60 * 10**9 * i for i in range(10)]
    assert [row["tenant"] for row in rows[:4]] == ["tenant-1", "tenant-2", "tenant-3", "tenant-1"]
    assert {row["finish_reason"] for row in rows} == {"stop", "other"}
    assert {row["class"] for row in rows} == {"batch"}
    assert found["rows"] == 10
    told = {column["column"]: column for column in found["columns"]}
    assert set(told) == set().union(*rows)
    assert told["input_tokens"] == {"column": "input_tokens", "values": 10, "distinct": 10, "range": "40 to 49"}


def test_a_salt_makes_hashes_the_same_and_none_makes_them_new(write: Write, tmp_path: Path) -> None:
    path = write("".join(json.dumps(row) + "\n" for row in ROWS), "t.jsonl")
    outs = [tmp_path / f"{i}.jsonl" for i in range(4)]
    for out, salt in zip(outs, ("a", "a", None, None), strict=True):
        anonymize(path, out, salt=salt)
    texts = [out.read_bytes() for out in outs]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


def test_a_window_takes_sessions_whole(write: Write, tmp_path: Path) -> None:
    rows = [{"arrival_s": 100 * i, "input_tokens": i + 1, "output_tokens": 7, "session_id": f"s{i // 3}", "turn": i % 3}
            for i in range(9)]  # fmt: skip
    path = write("".join(json.dumps(row) + "\n" for row in rows), "t.jsonl")
    found = anonymize(path, tmp_path / "o.jsonl", window="200s:400s")
    after = read_trace(tmp_path / "o.jsonl")
    assert after.arrivals["input_tokens"].to_pylist() == [4, 5, 6], "the session that begins in it"
    assert after.arrivals["arrival_ns"].to_pylist() == [0, 100 * 10**9, 200 * 10**9]
    assert found["rows_left_behind"] == 6
    with pytest.raises(UsageError, match="no request arrives in it"):
        anonymize(path, tmp_path / "p.jsonl", window="10s:20s")


def test_the_command_writes_once_and_equal_slices_are_equal_bytes(write: Write, tmp_path: Path,
                                                                  capfd: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    path = write("".join(json.dumps(row) + "\n" for row in ROWS), "t.jsonl")
    arguments = ["anonymize", str(path), "--salt", "x", "--out"]
    assert main([*arguments, str(tmp_path / "a.jsonl.gz")]) == 0
    out = capfd.readouterr().out
    assert "10 requests; 0 stay behind" in out
    assert "tenant-1, tenant-2, tenant-3" in out
    assert main([*arguments, str(tmp_path / "b.jsonl.gz"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["schema"] == "tracekit.anonymize/1"
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert len(gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).splitlines()) == 10
    assert main([*arguments, str(tmp_path / "a.jsonl.gz")]) == 2
    assert main([*arguments, str(tmp_path / "no" / "a.jsonl.gz")]) == 2


def test_validate_says_format_units_and_bad_rows_and_loads_nothing(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                   capfd: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    rows = [f"{1_700_000_000_000 + 500 * i},{i + 1},5,{0.5}" for i in range(30)] + ["oops,1,1,1", "1700000000000,x,1,1"]
    path = write("arrival,input_tokens,output_tokens,ttft\n" + "\n".join(rows) + "\n")
    assert main(["validate", str(path)]) == 0
    out = capfd.readouterr().out
    assert "generic_csv (a header of 4 columns, 4 of them known)" in out
    assert "times in arrival: ms since 1970: 1700000014500.0 is a date in this unit" in out
    assert "times in ttft: s: by magnitude" in out
    assert "line 32, column arrival: 'oops' not a time" in out
    assert "line 33, column input_tokens: 'x' not a number" in out
    assert "32 read = 30 kept + 2 dropped" in out
    assert out.endswith("usable\n")
    assert main(["validate", str(path), "--max-dropped", "1%", "--json"]) == 3
    document = json.loads(capfd.readouterr().out)
    assert (document["usable"], document["rows_kept"]) == (False, 30)
    assert "2 of 32 rows cannot be used" in document["refused"]
    assert main(["validate", str(path), "--on-error", "fail"]) == 3
    assert main(["validate", "nothing.csv"]) == 3
    assert main(["validate", str(path), "--max-dropped", "two"]) == 2
    assert [p.name for p in tmp_path.iterdir()] == [path.name], "no database"


def test_load_and_replay_take_the_same_options(write: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{i},5,6,r{i // 2}\n" for i in range(20))
    path = write(f"arrival_s,input_tokens,output_tokens,request_id\n{rows}x,1,1,z\n")
    db = str(tmp_path / "t.duckdb")
    for verb in ("load", "replay"):
        assert main([verb, str(path), "--on-error", "fail", "--db", db]) == 3
        assert "line 22" in capfd.readouterr().err
        assert main([verb, str(path), "--max-dropped", "0.01", "--db", db]) == 3
        capfd.readouterr()
    assert main(["load", str(path), "--dedupe", "--db", db, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["rows_dropped"] == {"duplicate request id": 10, "not a time": 1}
    assert main(["load", str(path), "--db", db, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["rows_kept"] == 20, "another way of reading the same bytes is another trace"
    assert main(["load", str(path), "--on-error", "fail", "--db", db]) == 3, "loaded before, with less asked of it"


def test_validate_in_python(write: Write) -> None:
    report, refused = validate(write("arrival_s,input_tokens,output_tokens\nx,1,1\nx,1,1\n1,1,1\n"))
    assert (report.rows_kept, report.trace) == (1, None)
    assert refused is not None and "2 of 3 rows" in refused


def test_block_tables_are_plain_arrow(write: Write) -> None:
    path = write("".join(json.dumps(row) + "\n" for row in ROWS), "t.jsonl")
    assert isinstance(read_trace(path).runs, pa.Table)

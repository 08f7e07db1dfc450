"""The 21 kinds of nasty input, first half: files, cells, times, names. Each test is called by its kind."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracekit.errors import InputError
from tracekit.traces.load import LoadedTrace, read_trace
from tracekit.traces.tolerance import tolerance

Write = Callable[..., Path]
HEAD = "arrival,input_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def csv_of(rows: list[str], head: str = HEAD) -> str:
    return head + "".join(f"{row}\n" for row in rows)


def steady(n: int, start: int = 1_700_000_000) -> list[str]:
    return [f"{start + i},{100 + i},{10 + i}" for i in range(n)]


def rejects(trace: LoadedTrace) -> list[tuple[int, str | None, str]]:
    return [(reject.line, reject.column, reject.reason) for reject in trace.report.rejects]


def warned(trace: LoadedTrace, *parts: str) -> bool:
    return any(all(part in warning for part in parts) for warning in trace.report.warnings)


# 1. header but no rows, empty files
@pytest.mark.parametrize("data", ["", "\n \n\n", HEAD, AZURE, AZURE.replace("\n", "\r\n"), "\ufeff" + HEAD])
def test_01_files_without_rows(write: Write, data: str) -> None:
    with pytest.raises(InputError, match="no data rows"):
        read_trace(write(data))


# 2. byte order mark, line ends, UTF-16
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_02_utf_16_is_named_with_and_without_a_mark(write: Write, encoding: str) -> None:
    with pytest.raises(InputError, match="UTF-16"):
        read_trace(write(csv_of(steady(9)).encode(encoding)))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_02_mark_and_line_ends_load_silently(write: Write, end: str) -> None:
    text = csv_of(steady(9)).replace("\n", end).removesuffix(end)
    trace = read_trace(write(b"\xef\xbb\xbf" + text.encode()))
    assert trace.report.rows_kept == 9
    assert rejects(trace) == []
    assert not warned(trace, "incomplete")


def test_02_lone_carriage_returns_and_latin_1(write: Write) -> None:
    with pytest.raises(InputError, match="carriage returns alone"):
        read_trace(write(csv_of(steady(9)).replace("\n", "\r")))
    rows = [f"{i},1,2,caf\xe9" for i in range(5)]
    trace = read_trace(write(("arrival_s,input_tokens,output_tokens,tenant\n" + "\n".join(rows[:1] + rows[:1])).encode("latin-1")
                             + b"\n" + b"\n".join(f"{i},1,2,a".encode() for i in range(5))))  # fmt: skip
    assert trace.report.rows_kept >= 5
    assert trace.report.rows_read == 7


# 3. truncated archives, half lines
def test_03_half_a_last_line_is_named_and_strict_mode_fails(write: Write) -> None:
    path = write(csv_of(steady(9)) + "1700000009,1")
    trace = read_trace(path)
    assert rejects(trace) == [(11, None, f"incomplete line (cut at byte {path.stat().st_size})")]
    with pytest.raises(InputError, match=r"line 11: incomplete line .*--on-error fail"):
        read_trace(path, tolerance=tolerance("fail"))


def test_03_an_archive_that_breaks_off_is_refused_in_strict_mode(write: Write) -> None:
    data = gzip.compress(csv_of(steady(3000)).encode())[:-900]
    path = write(data, "cut.csv")
    assert warned(read_trace(path), "breaks off at byte")
    with pytest.raises(InputError, match=r"incomplete line|breaks off"):
        read_trace(path, tolerance=tolerance("fail"))


def test_03_members_of_a_rotated_archive_are_all_read(write: Write) -> None:
    text = csv_of(steady(40)).encode()
    assert read_trace(write(gzip.compress(text[:300]) + gzip.compress(text[300:]), "plain.csv")).report.rows_kept == 40


@pytest.mark.parametrize(
    ("data", "what"),
    [(b"PK\x03\x04abc", "ZIP"), (b"\x28\xb5\x2f\xfdabc", "Zstandard"), (b"BZh9abc", "bzip2"), (b"\xfd7zXZ\x00abc", "xz"),
     (b"SQLite format 3\x00abc", "SQLite"), (b"\x1f\x8bnonsense", "gzip")],
)  # fmt: skip
def test_03_other_archives_are_named(write: Write, data: bytes, what: str) -> None:
    with pytest.raises(InputError, match=what):
        read_trace(write(data))


# 4. what is no data at all
@pytest.mark.parametrize(
    ("data", "what"),
    [("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n", "Git LFS pointer"),
     ("\n<!DOCTYPE HTML><html><body>404</body></html>", "HTML page"), ("<HTML>sign in</HTML>", "HTML page")],
)  # fmt: skip
def test_04_pointers_and_pages_are_named(write: Write, data: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        read_trace(write(data))


# 5. token counts that are none
BAD_COUNTS = {
    "1.5": "not a whole number", "-3": "negative", "NaN": "missing", "Infinity": "not a number", "1e400": "not a number",
    '"1,234"': "a thousands separator or a fraction", "12.000": "a thousands separator or a fraction", "": "missing",
    "9223372036854775808": "too large", "4294967296": "too large", "abc": "not a number", "0x1f": "not a number",
}  # fmt: skip


def test_05_counts_in_delimited_text(write: Write) -> None:
    good = steady(30)
    bad = [f"1700000100,{value},5" for value in BAD_COUNTS]
    trace = read_trace(write(csv_of(good + bad + ["1700000200,12.0,1e1"])))
    assert rejects(trace) == [(32 + i, "input_tokens", reason) for i, reason in enumerate(BAD_COUNTS.values())]
    assert trace.arrivals["input_tokens"].to_pylist()[-1] == 12
    assert trace.arrivals["output_tokens"].to_pylist()[-1] == 10
    assert warned(trace, "12 of 43 rows were dropped")


def test_05_counts_in_json_and_the_failing_cell_is_told(write: Write) -> None:
    base = '{"arrival_s": 1, "input_tokens": %s, "output_tokens": 5}\n'
    values = ["1.5", "-3", "NaN", "Infinity", '"1,234"', "9223372036854775808", "null", "true", '"x"', "[1, 2]", '{"a": 1}']
    trace = read_trace(write(base % 7 * 40 + "".join(base % value for value in values) + base % "12.0", "t.jsonl"))
    told = [(reject.line, reject.value, reject.reason) for reject in trace.report.rejects]
    assert told == [
        (41, "1.5", "not a whole number"), (42, "-3", "negative"), (43, "nan", "missing"), (44, "inf", "not a number"),
        (45, "1,234", "a thousands separator or a fraction"), (46, "9223372036854775808", "too large"), (47, None, "missing"),
        (48, "True", "not a number"), (49, "x", "not a number"), (50, "a list of 2", "not a number"),
        (51, "an object of 1", "not a number"),
    ]  # fmt: skip
    assert trace.report.rows_kept == 41


def test_05_shares_of_dropped_rows(write: Write) -> None:
    path = write(csv_of([*steady(18), "x,1,1", "y,1,1"]))
    assert warned(read_trace(path), "2 of 20 rows were dropped (10.0%)")
    with pytest.raises(InputError, match=r"2 of 20 rows cannot be used .* at least 0\.95 of the rows"):
        read_trace(path, tolerance=tolerance(max_dropped="5%"))
    assert read_trace(path, tolerance=tolerance(max_dropped=0.1)).report.rows_kept == 18
    mostly = write(csv_of(steady(2) + ["x,1,1"] * 3), "m.csv")
    with pytest.raises(InputError, match="3 of 5 rows cannot be used"):
        read_trace(mostly)
    assert read_trace(mostly, tolerance=tolerance(max_dropped=1)).report.rows_kept == 2


# 6. requests without tokens
def test_06_requests_without_tokens_are_no_instant_answers(write: Write) -> None:
    head = "arrival_s,input_tokens,output_tokens,ttft_s,e2e_s\n"
    trace = read_trace(write(head + "0,5,5,0.5,1\n1,0,0,0.0,0.0\n2,5,0,0,0\n3,7,7,0.25,2\n"))
    assert trace.extras is not None
    known = {row["req_idx"]: row for row in trace.extras.to_pylist()}
    assert known[0]["obs_ttft_ns"] == 500_000_000
    assert all(known.get(i, {}).get("obs_ttft_ns") is None and known.get(i, {}).get("obs_e2e_ns") is None for i in (1, 2))
    assert trace.report.rows_kept == 4


# 7. times of every kind
@pytest.mark.parametrize(
    ("first", "second", "step"),
    [
        ("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:46.6805901", 100),
        ("2024-05-10T00:00:00Z", "2024-05-10T00:00:00.000000001Z", 1),
        ("2024-05-10 00:00:00.5+00:00", "2024-05-10 02:00:01+02:00", 500_000_000),
        ("2024-05-10T02:00:00.000000007+0200", "2024-05-10T00:00:01Z", 999_999_993),
        ("2024-05-09T17:00:00-07:00", "2024-05-10T00:00:02+00:00", 2_000_000_000),
        ("1700000000", "1700000000.25", 250_000_000),
        ("1700000000000", "1700000000250", 250_000_000),
        ("1700000000000000", "1700000000250000", 250_000_000),
        ("1700000000000000001", "1700000000000000002", 1),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:01Z", 1_000_000_000),
        ("2016-12-31 23:59:60.5", "2017-01-01 00:00:01", 500_000_000),
        ('"8/18/2025, 12:00:38.941 AM"', '"8/18/2025, 1:00:38.941 AM"', 3_600_000_000_000),
        ("8/18/2025 11:59:59 PM", "8/19/2025 12:00:01 AM", 2_000_000_000),
        ("18.08.2025 12:00:38", "18.08.2025 12:00:39", 1_000_000_000),
        ("18/08/2025 00:00:38", "18/08/2025 00:00:39", 1_000_000_000),
    ],
)
@pytest.mark.parametrize("shape", ["csv", "json"])
def test_07_times_of_every_kind(write: Write, first: str, second: str, step: int, shape: str) -> None:
    if shape == "csv":
        trace = read_trace(write(csv_of([f"{first},1,2", f"{second},3,4"], "timestamp,input_tokens,output_tokens\n")))
    elif "/" in first or "." in first[:3]:
        pytest.skip("dates with the year last come from spreadsheets")
    else:
        quote = "" if first.isdigit() else '"'
        at = [value if value.replace(".", "").isdigit() else f"{quote}{value}{quote}" for value in (first, second)]
        rows = (f'{{"timestamp": {t}, "input_tokens": 1, "output_tokens": 2}}\n' for t in at)
        trace = read_trace(write("".join(rows), "t.jsonl"))
    assert trace.arrivals["arrival_ns"].to_pylist() == [0, step]
    assert trace.report.t0_ns is not None
    assert "timestamp" in trace.report.times


def test_07_days_of_a_spreadsheet(write: Write) -> None:
    trace = read_trace(write(csv_of(["45887.500000,1,2", "45887.75,3,4", "45888.0000,5,6"])))
    assert trace.arrivals["arrival_ns"].to_pylist() == [0, 21_600_000_000_000, 43_200_000_000_000]
    assert trace.report.t0_ns == 1_755_518_400_000_000_000, "2025-08-18 12:00"
    assert warned(trace, "spreadsheet")


def test_07_day_and_month_that_nobody_can_tell(write: Write) -> None:
    with pytest.raises(InputError, match="day and month cannot be told apart"):
        read_trace(write(csv_of(["5/8/2025 10:00:00,1,2", "6/8/2025 10:00:00,1,2"])))


@pytest.mark.parametrize("other", ["1700000002000", "1700000002000000"])
def test_07_a_change_of_unit_is_refused_with_its_line(write: Write, other: str) -> None:
    for name, text in (
        ("a.csv", csv_of([*steady(5), f"{other},1,2"])),
        ("a.jsonl", "".join(json.dumps({"arrival": t, "input_tokens": 1, "output_tokens": 2}) + "\n"
                            for t in [*range(1_700_000_000, 1_700_000_005), int(other)])),
    ):  # fmt: skip
        with pytest.raises(InputError, match="unit of time changes") as caught:
            read_trace(write(text, name))
        assert caught.value.line == (7 if name == "a.csv" else 6)


def test_07_an_hour_that_comes_twice_is_told_with_both_lines(write: Write) -> None:
    rows = [f"2024-10-27 02:{m:02}:00,5,5" for m in range(60)] + [f"2024-10-27 02:{m:02}:30,5,5" for m in range(60)]
    trace = read_trace(write(csv_of(rows)))
    assert warned(trace, "jumps back by 3,510 s from line 61 to line 62", "autumn")


# 8. order
def test_08_unsorted_rows_are_sorted_stably_and_counted(write: Write) -> None:
    trace = read_trace(write(csv_of(["1700000005,1,1", "1700000003,2,1", "1700000003,3,1", "1700000009,4,1", "1700000003,5,1"])))
    assert trace.arrivals["input_tokens"].to_pylist() == [2, 3, 5, 1, 4]
    assert trace.arrivals["source_line"].to_pylist() == [3, 4, 6, 2, 5]
    assert warned(trace, "2 rows arrive before the row above them")


def test_08_clock_steps_and_holes_are_told_with_their_lines(write: Write) -> None:
    step = steady(200, 1_700_010_000) + steady(200, 1_700_000_000)
    assert warned(read_trace(write(csv_of(step))), "jumps back by 10,199 s from line 201 to line 202", "clock change")
    hole = steady(200) + steady(200, 1_700_005_000)
    assert warned(read_trace(write(csv_of(hole))), "hole of 4,801.0 s", "from line 201 to line 202")


# 9. duplicates
def test_09_duplicate_ids_are_kept_and_reported_or_dropped_on_demand(write: Write) -> None:
    rows = [{"arrival_s": i, "input_tokens": 600, "output_tokens": i + 1, "request_id": f"r{i % 4}", "block_tokens": 512,
             "hash_ids": [i, i + 100]} for i in range(6)] + [{"arrival_s": 9, "input_tokens": 1, "output_tokens": 1}]  # fmt: skip
    path = write("".join(json.dumps(row) + "\n" for row in rows), "t.jsonl")
    trace = read_trace(path)
    assert trace.report.rows_kept == 7
    assert warned(trace, "2 request ids occur more than once", "line 5", "--dedupe")
    fewer = read_trace(path, tolerance=tolerance(dedupe=True))
    assert fewer.arrivals["output_tokens"].to_pylist() == [1, 2, 3, 4, 1]
    assert fewer.report.rows_dropped == {"duplicate request id": 2}
    assert fewer.report.rows_read == 7
    assert rejects(fewer) == [(5, "request_id", "duplicate request id"), (6, "request_id", "duplicate request id")]
    assert fewer.runs is not None
    assert [(r["req_idx"], r["first_id"]) for r in fewer.runs.to_pylist()] == [(i, b) for i in range(4) for b in (i, i + 100)]
    assert read_trace(path, tolerance=tolerance("fail", dedupe=True)).report.rows_kept == 5, "what is asked for is no bad row"


def test_09_equal_rows_are_kept_and_reported(write: Write) -> None:
    rows = steady(20)
    trace = read_trace(write(csv_of([*rows, rows[3]])))
    assert trace.report.rows_kept == 21
    assert warned(trace, "1 rows equal another", "line 5 and line 22")


# 10. columns
def test_10_names_with_blanks_case_and_an_index(write: Write) -> None:
    text = ", Timestamp ,Prompt Tokens,COMPLETION-TOKENS ,extra,Unnamed: 0\n0,1700000000,5,6,x,0\n1,1700000001,7,8,y,1\n"
    trace = read_trace(write(text))
    assert trace.arrivals["input_tokens"].to_pylist() == [5, 7]
    assert {"extra", "Unnamed: 0"} <= set(trace.report.ignored_columns)


def test_10_order_does_not_matter_and_missing_ones_name_the_near(write: Write) -> None:
    assert read_trace(write(csv_of(["6,5,1700000000"], "output_tokens,input_tokens,arrival\n"))).arrivals.num_rows == 1
    with pytest.raises(InputError, match=r"no column for input_tokens; the file has arrival, inputt_tokenz"):
        read_trace(write(csv_of(["1,2,3"], "arrival,inputt_tokenz,output_tokens\n")))


def test_10_a_header_again_and_one_in_another_order(write: Write) -> None:
    trace = read_trace(write(csv_of([*steady(5), HEAD.strip(), *steady(5, 1_700_000_100)])))
    assert rejects(trace) == [(7, "arrival", "the header again")]
    with pytest.raises(InputError, match="another order") as caught:
        read_trace(write(csv_of([*steady(5), "input_tokens,arrival,output_tokens", "5,1700000100,6"])))
    assert caught.value.line == 7


def test_10_data_in_place_of_a_header_is_not_quoted(write: Write) -> None:
    with pytest.raises(InputError, match="a row of data, not a header"):
        read_trace(write("2024-05-10 00:00:00,374,44\n2024-05-10 00:00:01,375,45\n"))
    with pytest.raises(InputError) as caught:
        read_trace(write("tell me a very secret thing about my neighbour please,x\n1,2\n"))
    assert "neighbour" not in str(caught.value)


def test_10_two_columns_of_one_name(write: Write) -> None:
    with pytest.raises(InputError, match="two columns have this name"):
        read_trace(write(csv_of(["1,2,3,4"], "arrival,input_tokens,output_tokens,arrival\n")))


# 11. block ids
def mooncake(at: int, tokens: int, ids: Any) -> str:
    return json.dumps({"timestamp": at, "input_length": tokens, "output_length": 5, "hash_ids": ids}) + "\n"


def test_11_ids_of_every_kind(write: Write) -> None:
    good = "".join(mooncake(i, 1024, [2**64 - 1, 2**63]) for i in range(20))
    odd = [[1.0, 2.0], ["0xff", "ff"], [], None]
    bad = [[-1], [1e19], [2**64], [True], ["x"], "12", [1, 2, 3], [[1]]]
    trace = read_trace(write(good + "".join(mooncake(30, 1024, ids) for ids in odd + bad), "t.jsonl"))
    assert [line for line, _, _ in rejects(trace)] == list(range(25, 33))
    assert trace.runs is not None
    assert trace.report.rows_kept == 24


def test_11_a_wrong_block_size_is_seen(write: Write) -> None:
    rows = "".join(json.dumps({"t": i, "in": 5120, "out": 1, "h": list(range(i * 10, i * 10 + 10))}) + "\n" for i in range(9))
    mapping = ["arrival=t:s", "input_tokens=in", "output_tokens=out"]
    path = write(rows, "t.jsonl")
    assert warned(read_trace(path, mapping=[*mapping, "hash_ids=h:16"]), "32 times the tokens", "block size")
    assert not warned(read_trace(path, mapping=[*mapping, "hash_ids=h:512"]), "block size")
    with pytest.raises(InputError, match="more blocks of 4096 tokens than the prompt has"):
        read_trace(path, mapping=[*mapping, "hash_ids=h:4096"])


def test_11_ids_that_are_not_chained_or_come_twice(write: Write) -> None:
    chained = mooncake(0, 1536, [0, 1, 2]) + mooncake(1, 1536, [0, 1, 7]) + mooncake(2, 1024, [0, 9])
    assert not warned(read_trace(write(chained, "a.jsonl")), "chained")
    loose = mooncake(0, 1536, [0, 1, 2]) + mooncake(1, 1536, [5, 1, 2])
    assert warned(read_trace(write(loose, "b.jsonl")), "1 block ids follow different blocks", "not chained")
    assert warned(read_trace(write(mooncake(0, 2048, [4, 5, 4, 8]), "c.jsonl")), "1 requests hold a block id more than once")

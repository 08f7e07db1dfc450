"""Delimited text: values, units, and every dropped row with its line and reason."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.errors import InputError, UsageError
from tracekit.traces.load import LoadReport, load_trace, read_trace

Write = Callable[..., Path]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROWS = [
    "2023-11-16 18:15:46.6805900,374,44",
    "2023-11-16 18:15:50.9951690,396,109",
    "2023-11-16 18:15:51.2224671,879,55",
    "2023-11-16 18:15:52.0000000,10,5",
]


def columns(path: Path, **options: object) -> tuple[list[int], list[int], list[int], LoadReport]:
    trace = read_trace(path, **options)  # type: ignore[arg-type]
    table = trace.arrivals.to_pydict()
    assert trace.report.rows_read == trace.report.rows_kept + sum(trace.report.rows_dropped.values())
    return table["arrival_ns"], table["input_tokens"], table["output_tokens"], trace.report


def places(report: LoadReport) -> list[tuple[int, str | None, str]]:
    return [(reject.line, reject.column, reject.reason) for reject in report.rejects]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_azure_values_to_100_ns(write: Write, end: str, last: bool, mark: bytes) -> None:
    text = AZURE.replace("\n", end) + end.join(ROWS) + (end if last else "")
    arrival, prompt, output, report = columns(write(mark + text.encode()))
    assert report.format == "azure2023"
    assert arrival == [0, 4_314_579_000, 4_541_877_100, 5_319_410_000]
    assert (prompt, output) == ([374, 396, 879, 10], [44, 109, 55, 5])
    assert report.t0_ns == 1_700_158_546_680_590_000
    assert report.rows_dropped == {}


def test_bad_cells_are_named_by_line_column_and_reason(write: Write) -> None:
    bad = ["x,1,2", "2023-11-16 18:16:00,1.5,2", "2023-11-16 18:16:00,-3,2",
           "2023-11-16 18:16:00,,2", "2023-11-16 18:16:00,7,nan",
           "2023-11-16 18:16:00,99999999999,2", "2023-11-16 18:16:00,1e400,2", "2023-11-16 18:16:00,12.0,1e1"]  # fmt: skip
    good = [f"2023-11-16 18:17:{i:02},5,6" for i in range(20)]
    _, prompt, output, report = columns(write(AZURE + "\n".join(bad[:4] + good[:10] + bad[4:] + good[10:]) + "\n"))
    assert places(report) == [
        (2, "TIMESTAMP", "not a time"),
        (3, "ContextTokens", "not a whole number"),
        (4, "ContextTokens", "negative"),
        (5, "ContextTokens", "missing"),
        (16, "GeneratedTokens", "missing"),
        (17, "ContextTokens", "too large"),
        (18, "ContextTokens", "not a number"),
    ]
    assert report.rejects[1].value == "1.5"
    assert (prompt[0], output[0]) == (12, 10), "integral floats pass"
    assert report.rows_read == 28
    assert any("25.0%" in warning for warning in report.warnings)


def test_torn_rows_keep_exact_lines_among_blank_ones(write: Write) -> None:
    lines = [*ROWS[:2], "", "2023-11-16 18:16:00,1", ROWS[2], "", "", "2023-11-16 18:16:00,1,2,3", ROWS[3], "2023-11-16 18:1"]
    *_, report = columns(write(AZURE + "\n".join(lines)))
    size = len(AZURE + "\n".join(lines))
    assert places(report) == [
        (5, None, "too few columns"),
        (9, None, "too many columns"),
        (11, None, f"incomplete line (cut at byte {size})"),
    ]
    assert report.rows_kept == 4


def test_lines_of_kept_rows_are_physical(write: Write, con: duckdb.DuckDBPyConnection) -> None:
    text = 'arrival,input_tokens,output_tokens,note\n0,1,2,"a\nb"\n\n1,2\n2,3,4,c\n3,4,5,"x""y"\n'
    report = load_trace(con, write(text))
    assert con.execute("SELECT source_line FROM requests ORDER BY req_idx").fetchall() == [(2,), (6,), (7,)]
    assert places(report) == [(5, None, "too few columns")]
    assert report.ignored_columns == ["note"]


def test_mixed_line_ends_and_blank_lines_before_the_header(write: Write) -> None:
    arrival, *_, report = columns(write(b"\n\n" + AZURE.encode() + f"{ROWS[0]}\r\n{ROWS[1]}\nx,1,1\r\n{ROWS[2]}".encode()))
    assert len(arrival) == 3
    assert places(report) == [(6, "TIMESTAMP", "not a time")]


def test_an_unclosed_quote_is_named_by_its_line(write: Write) -> None:
    rows = "".join(f"{i},5,6,t\n" for i in range(50))
    with pytest.raises(InputError, match=r"line 52: a quote opened here is never closed"):
        read_trace(write(f'arrival,input_tokens,output_tokens,tenant\n{rows}50,1,2,"open\n{rows}'))


def test_a_header_in_the_middle_of_a_concatenated_file_is_a_reject(write: Write) -> None:
    *_, report = columns(write(AZURE + "\n".join([*ROWS, AZURE.strip(), *ROWS]) + "\n"))
    assert places(report) == [(6, "TIMESTAMP", "the header again")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no data rows"),
        (b"\n\n", "no data rows"),
        (AZURE.encode(), "no data rows"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n", "Git LFS pointer"),
        (AZURE.encode("utf-16"), "UTF-16"),
        (b"<!DOCTYPE html><html></html>", "HTML page"),
        (b"just words\nand more\n", "no known trace format"),
        (b"when,what\n1,2\n", "no column for arrival, input_tokens, output_tokens"),
        (b"arrival,input_tokens,output_tokens,arrival\n1,2,3,4\n", "two columns have this name"),
        (AZURE.encode() + b"x,1,2\ny,1,2\n2023-11-16 18:16:00,1,2\n", "2 of 3 rows cannot be used"),
        (
            b"arrival,input_tokens,output_tokens\n1700000000,1,2\n1700000001,1,2\n1700000002000,1,2\n",
            "unit of time changes from s to ms",
        ),
    ],
)
def test_unusable_input_is_one_clear_line(write: Write, data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_trace(write(data))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_unit_change_names_the_line(write: Write) -> None:
    with pytest.raises(InputError) as caught:
        read_trace(write(b"arrival,input_tokens,output_tokens\n1700000000,1,2\n1700000002000,1,2\n"))
    assert caught.value.line == 3


@pytest.mark.parametrize(
    ("header", "first", "second", "step"),
    [
        ("arrival_ms", "0", "1500", 1_500_000_000),
        ("arrival_s", "0.0", "1.5", 1_500_000_000),
        ("arrival", "1700000000", "1700000001.5", 1_500_000_000),
        ("timestamp", "1700000000000", "1700000001500", 1_500_000_000),
        ("ts", "1700000000000000", "1700000001500000", 1_500_000_000),
        ("ts", "1700000000000000000", "1700000001500000001", 1_500_000_001),
        ("arrival", "2024-05-10T00:00:00.5Z", "2024-05-10T00:00:02.000000001Z", 1_500_000_001),
        ("arrival", "2024-05-10 02:00:00+0200", "2024-05-10 00:00:01.5+00:00", 1_500_000_000),
        ("arrival", "1787267980.082740307", "1787267980.082740308", 1),
    ],
)
def test_units_by_name_and_by_magnitude(write: Write, header: str, first: str, second: str, step: int) -> None:
    arrival, *_ = columns(write(f"{header},prompt_tokens,completion_tokens\n{first},1,2\n{second},3,4\n"))
    assert arrival == [0, step]


def test_mapping_by_hand(write: Write, con: duckdb.DuckDBPyConnection) -> None:
    path = write("t;who;in;out;lat;prio;tier\n5;a;10;20;350;2;gold\n4;b;11;21;;0;\n")
    mapping = [
        "arrival=t:ms",
        "input_tokens=in",
        "output_tokens=out",
        "tenant=who",
        "obs_ttft=lat:ms",
        "priority=prio",
        "slo_class=tier",
    ]
    report = load_trace(con, path, mapping=mapping)
    assert report.format == "generic_csv"
    assert con.execute(
        'SELECT arrival_ns, input_tokens, output_tokens, tenant, obs_ttft_ns, priority, "class" FROM requests ORDER BY req_idx'
    ).fetchall() == [(0, 11, 21, "b", None, 0, None), (1_000_000, 10, 20, "a", 350_000_000, 2, "gold")]


def test_wrong_mappings_name_the_near_ones(write: Write) -> None:
    path = write("when,in,out\n1,2,3\n")
    with pytest.raises(UsageError, match="input_tokens"):
        read_trace(path, mapping=["input_tokns=in"])
    with pytest.raises(InputError, match="expected one of when"):
        read_trace(path, mapping=["arrival=whn", "input_tokens=in", "output_tokens=out"])
    with pytest.raises(UsageError, match="generic_csv"):
        read_trace(path, fmt="generic-csv")


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with duckdb.connect() as con:
        con.execute(
            "COPY (SELECT * FROM (VALUES (TIMESTAMP '2024-01-01 00:00:00', 5, 6, 'a'), (TIMESTAMP '2024-01-01 00:00:01.5', -1, 7,"
            " NULL), (TIMESTAMP '2024-01-01 00:00:02', 7, 8, NULL)) t(timestamp, prompt_tokens, completion_tokens, tenant))"
            f" TO '{path}' (FORMAT parquet)"
        )
    arrival, prompt, output, report = columns(path)
    assert (arrival, prompt, output) == ([0, 2_000_000_000], [5, 7], [6, 8])
    assert places(report) == [(2, "prompt_tokens", "negative")]


def test_gzip_by_content_many_members_and_cut(write: Write) -> None:
    rows = "".join(f"2023-11-16 18:17:{i % 60:02}.{i:07},5,6\n" for i in range(5000))
    whole = (AZURE + rows).encode()
    members = gzip.compress(whole[:1000]) + gzip.compress(whole[1000:])
    assert columns(write(members, "plain_name.csv"))[3].rows_kept == 5000
    assert columns(write(whole, "not_really.csv.gz"))[3].rows_kept == 5000
    *_, report = columns(write(gzip.compress(whole)[:-4000], "cut.csv.gz"))
    assert 0 < report.rows_kept < 5000
    assert any("breaks off at byte" in warning for warning in report.warnings)


def test_counts_are_exact_beyond_the_examples(write: Write) -> None:
    rows = "".join(f"2023-11-16 18:17:{i % 60:02},{'x' if i % 3 == 0 else 5},6\n" for i in range(9000))
    *_, report = columns(write(AZURE + rows))
    assert report.rows_dropped == {"not a number": 3000}
    assert report.rows_kept == 6000
    assert len(report.rejects) == 1000


def test_hostile_text_is_escaped(write: Write) -> None:
    rows = "".join(f"{i},1,2\n" for i in range(5))
    *_, report = columns(write(f"arrival,input_tokens,output_tokens\n{rows}6,\x1b[31m{'9' * 200},2\n"))
    assert report.rejects[0].value is not None
    assert report.rejects[0].value.startswith("\\x1b[31m")
    assert len(report.rejects[0].value) < 90


CELLS = st.sampled_from(["5", "0", "12.0", "1.5", "-1", "", "x", "nan", "4294967295", "4294967296", "1e3", " 7 ", "007"])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), CELLS, CELLS), min_size=1, max_size=30), st.booleans())
def test_read_is_kept_plus_dropped_and_lines_are_right(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str, str]],
                                                       last: bool) -> None:  # fmt: skip
    good = {"5": 5, "0": 0, "12.0": 12, "4294967295": 4294967295, "1e3": 1000, " 7 ": 7, "007": 7}
    path = tmp_path_factory.mktemp("h") / "t.csv"
    filler = [(0, "5", "5")] * (len(rows) + 1)
    lines = [f"{t},{a},{b}" for t, a, b in [*rows, *filler]]
    path.write_text("arrival_ms,input_tokens,output_tokens\n" + "\n".join(lines) + ("\n" if last else ""))
    arrival, prompt, output, report = columns(path)
    expected = sorted((t, i, good[a], good[b]) for i, (t, a, b) in enumerate([*rows, *filler]) if a in good and b in good)
    start = expected[0][0]
    assert list(zip(arrival, prompt, output, strict=True)) == [((t - start) * 10**6, a, b) for t, _, a, b in expected]
    assert [reject.line for reject in report.rejects] == [
        i + 2 for i, (_, a, b) in enumerate(rows) if a not in good or b not in good
    ]

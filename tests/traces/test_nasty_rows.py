"""The 21 kinds of nasty input, second half: sessions, units, nested JSON, privacy, size, quotes, rates, hostile content."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.traces.test_nasty_text import HEAD, csv_of, rejects, steady, warned
from tracekit.cli.main import main
from tracekit.errors import InputError
from tracekit.traces.load import load_trace, read_trace

Write = Callable[..., Path]
ROOT = Path(__file__).parents[2]


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def request(at: float, **more: Any) -> dict[str, Any]:
    return {"arrival_s": at, "input_tokens": 100, "output_tokens": 10, **more}


# 12. sessions
def test_12_lost_parents_circles_and_odd_think_times_survive(write: Write) -> None:
    rows = [
        request(0, request_id="a", session_id="s", turn=0, obs_e2e_s=1),
        request(1, request_id="b", session_id="s", turn=1, parent_id="a", obs_e2e_s=1),
        request(2, request_id="c", session_id="s", turn=1, parent_id="gone"),
        request(3, request_id="d", session_id="t", turn=0, parent_id="e"),
        request(4, request_id="e", session_id="t", turn=5, parent_id="d", input_tokens=5),
        request(5, request_id="f", session_id="t", turn=6, parent_id="f"),
    ]
    trace = read_trace(write(lines(*rows), "t.jsonl"))
    assert trace.report.rows_kept == 6
    assert trace.extras is not None
    assert trace.extras["parent_idx"].to_pylist()[1] == 0
    assert any("parent" in warning for warning in trace.report.warnings)


def test_12_a_giant_session(write: Write) -> None:
    rows = [request(i, session_id="s", turn=i, obs_e2e_s=0.5) for i in range(3000)]
    trace = read_trace(write(lines(*rows), "t.jsonl"))
    assert trace.extras is not None
    assert trace.extras["parent_idx"].to_pylist() == [None, *range(2999)]
    assert set(trace.extras["think_ns"].to_pylist()[1:]) == {500_000_000}


# 13. units that lie
def test_13_latencies_that_contradict_each_other_are_counted(write: Write) -> None:
    rows = [request(i, ttft_s=0.5, e2e_s=1.0) for i in range(9)] + [request(9, ttft_s=3, e2e_s=1.0)]
    assert warned(read_trace(write(lines(*rows), "a.jsonl")), "1 rows have a first token after the end")
    rows = [request(i, tpot_s=50, e2e_s=1.0) for i in range(9)]
    assert warned(read_trace(write(lines(*rows), "b.jsonl")), "9 rows have a time per token that does not fit the whole")
    rows = [request(i, ttft_s=812.0 + i, e2e_s=4000.0) for i in range(9)]
    assert warned(read_trace(write(lines(*rows), "c.jsonl")), "milliseconds under a name of seconds?")


def test_13_throughput_where_a_count_is_expected(write: Write) -> None:
    with pytest.raises(InputError, match="not a whole number"):
        read_trace(write(csv_of([f"{i},{i}.37,12.5" for i in range(1, 9)])))


# 14. nested JSON
@pytest.mark.parametrize("indent", [None, 2])
def test_14_one_array_instead_of_lines(write: Write, indent: int | None) -> None:
    rows = [request(i) for i in range(30)]
    trace = read_trace(write(json.dumps(rows, indent=indent), "t.json"))
    assert trace.arrivals["arrival_ns"].to_pylist() == [i * 10**9 for i in range(30)]


def test_14_duplicate_keys_and_keys_that_only_some_rows_have(write: Write) -> None:
    text = '{"arrival_s": 1, "input_tokens": 9, "input_tokens": 7, "output_tokens": 1}\n'
    text += '{"arrival_s": 2, "input_tokens": 3, "output_tokens": 1, "tenant": "a", "priority": 1}\n'
    trace = read_trace(write(text, "t.jsonl"))
    assert trace.arrivals["input_tokens"].to_pylist() == [7, 3]
    assert trace.extras is not None
    assert trace.extras["tenant"].to_pylist() == ["a"]


@pytest.mark.parametrize("at", [0, 40])
def test_14_a_line_of_four_megabytes(write: Write, at: int) -> None:
    rows = [request(i, note="") for i in range(80)]
    rows[at]["note"] = "x" * (4 << 20)
    trace = read_trace(write(lines(*rows), "t.jsonl"))
    assert trace.report.rows_kept == 80
    assert trace.arrivals["source_line"].to_pylist() == list(range(1, 81))


def test_14_integers_as_text_and_other_events_between(write: Write) -> None:
    rows: list[dict[str, Any]] = [{"arrival_s": str(i), "input_tokens": "12", "output_tokens": "7"} for i in range(20)]
    rows.insert(5, {"tool": "grep", "ms": 5})
    trace = read_trace(write(lines(*rows), "t.jsonl"))
    assert trace.report.rows_kept == 20
    assert rejects(trace) == [(6, "arrival_s", "missing")]


def test_14_nesting_without_end(write: Write) -> None:
    good = lines(*(request(i) for i in range(9)))
    for bad in ("[" * 5000, '{"a":' * 5000, '{"arrival_s": NaN, "x": ' + "[" * 100_000):
        assert read_trace(write(good + bad + "\n", "t.jsonl")).report.rows_dropped == {"not valid JSON": 1}


# 15. privacy
SECRET = "meet me at the harbour at nine"


@pytest.mark.parametrize("shape", ["csv", "json"])
def test_15_texts_never_reach_tables_messages_or_reports(write: Write, shape: str, tmp_path: Path,
                                                         capfd: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    if shape == "csv":
        rows = [f'{i},5,6,"{SECRET}",10.1.2.3,a@b.example' for i in range(9)]
        rows += [f"{SECRET},5,6,,,", f"9,{SECRET},6,,,", f"9,5,6,{SECRET}, with, many, commas", f"9,anna@b.example,6,{SECRET},,"]
        path = write(csv_of(rows, "arrival,input_tokens,output_tokens,prompt,ip,email\n"), "t.csv")
    else:
        private = {"messages": [{"content": SECRET}], "prompt": SECRET, "ip": "10.1.2.3", "email": "a@b.example"}
        records = [request(i, **private) for i in range(9)]
        records += [request(9) | {"input_tokens": SECRET}, request(9) | {"output_tokens": [SECRET]}, {"prompt": SECRET}]
        path = write(lines(*records) + f'{{"prompt": "{SECRET}\n', "t.jsonl")
    db = tmp_path / "t.duckdb"
    at = ["--db", str(db)]
    for arguments in (["validate"], ["validate", "--json"], ["load", *at], ["load", "--on-error", "fail", *at]):
        main([*arguments, str(path)])
    main(["sql", "SELECT * FROM quarantine", *at])
    told = capfd.readouterr()
    for secret in ("harbour", "10.1.2.3", "b.example"):
        assert secret not in told.out + told.err
        assert secret.encode() not in db.read_bytes()
    assert "prompt" in told.out, "which columns were not used is said"
    with duckdb.connect(str(db), read_only=True) as con:
        values = con.execute("SELECT value FROM quarantine WHERE value IS NOT NULL").fetchall()
    assert ("a text of 30 characters",) in values


# 16. size
def test_16_a_header_of_a_hundred_thousand_columns_in_json(write: Write) -> None:
    row = request(0) | {f"k{i}": i for i in range(100_000)}
    trace = read_trace(write(lines(row, row), "t.jsonl"))
    assert trace.report.rows_kept == 2
    assert len(trace.report.ignored_columns) == 201
    assert trace.report.ignored_columns[-1] == "and 99800 more"


def test_16_thousands_of_columns_and_a_cell_of_five_megabytes(write: Write) -> None:
    wide = 3000
    head = HEAD.strip() + "," + ",".join(f"k{i}" for i in range(wide)) + "\n"
    cells = ",0" * wide
    assert read_trace(write(head + f"0,1,2{cells}\n1,2,3{cells}\n")).report.rows_kept == 2
    rows = [f"{i},1,2,{'x' * (5 << 20) if i == 3 else ''}" for i in range(6)]
    trace = read_trace(write(csv_of(rows, HEAD.strip() + ",note\n")))
    assert trace.arrivals["source_line"].to_pylist() == [2, 3, 4, 5, 6, 7]


def test_16_a_fifo_and_standard_input(write: Write, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    text = csv_of(steady(500))
    threading.Thread(target=fifo.write_text, args=(text,), daemon=True).start()
    assert read_trace(fifo).report.rows_kept == 500
    command = [sys.executable, "-m", "tracekit.cli.main", "validate", "-", "--json"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT, check=True)
    assert json.loads(done.stdout)["rows_kept"] == 500


def test_16_shards_with_overlapping_hours(tmp_path: Path) -> None:
    for k in range(3):
        (tmp_path / f"hour{k}.csv").write_text(csv_of(steady(100, 1_700_000_000 + 90 * k)))
    trace = read_trace(tmp_path)
    arrivals = trace.arrivals["arrival_ns"].to_pylist()
    assert arrivals == sorted(arrivals)
    assert trace.report.rows_kept == 300
    assert warned(trace, "hour1.csv begins 9 s before", "hour0.csv ends", "overlap")
    tied = [row for row in trace.arrivals.to_pylist() if row["arrival_ns"] == 95 * 10**9]
    assert [row["source_file"] for row in tied] == [0, 1]


def test_16_the_same_shard_twice_and_shards_of_two_formats(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(csv_of(steady(10)))
    assert warned(read_trace(tmp_path), "the same bytes as")
    (tmp_path / "c.csv").write_text(lines(request(0)))
    with pytest.raises(InputError, match="not generic_csv"):
        read_trace(tmp_path)


# 17. separators and quotes
@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_17_separators_and_decimal_commas(write: Write, mark: str) -> None:
    rows = [mark.join(cells) for cells in (("0,5", "10", "20"), ("1,75", "11", "21"))]
    trace = read_trace(write(csv_of(rows, mark.join(("arrival_s", "input_tokens", "output_tokens")) + "\n")))
    assert trace.arrivals["arrival_ns"].to_pylist() == [0, 1_250_000_000]
    assert warned(trace, "comma")


def test_17_quoted_line_ends_and_quotes_inside_cells(write: Write) -> None:
    head = "arrival,input_tokens,output_tokens,tenant\n"
    text = head + '0,1,2,"a\nb"\n1,2\n2,3,4,5" pipe\n3,4,5,"say ""hi"""\n\n4,5,6,"c,\r\nd"\n5,x,7,e\n'
    trace = read_trace(write(text))
    assert trace.arrivals["source_line"].to_pylist() == [2, 5, 6, 8]
    assert [line for line, _, _ in rejects(trace)] == [4, 10]


@pytest.mark.parametrize("rows_after", [50, 3_000_000])
def test_17_the_line_of_a_quote_that_is_never_closed(write: Write, rows_after: int) -> None:
    head, row = "arrival,input_tokens,output_tokens,tenant\n", "1,5,6,t\n"
    with pytest.raises(InputError, match=r"line 52: a quote opened here is never closed"):
        read_trace(write(head + row * 50 + '1,5,6,"open\n' + row * rows_after))


# 18. lengths beyond limits
def test_18_answers_beyond_their_limit_are_counted(write: Write) -> None:
    rows = [request(i, max_tokens=5 if i < 2 else 64) for i in range(9)]
    trace = read_trace(write(lines(*rows), "t.jsonl"))
    assert warned(trace, "2 rows have an answer longer than its limit")
    assert trace.report.rows_kept == 9


def test_18_prompts_beyond_the_model_are_rejected_with_a_reason_and_counted(write: Write, tmp_path: Path) -> None:
    path = write(lines(*(request(i, input_tokens=200_000 if i == 3 else 100) for i in range(6))), "t.jsonl")
    db = tmp_path / "t.duckdb"
    assert main(["replay", str(path), "--db", str(db)]) == 0
    with duckdb.connect(str(db), read_only=True) as con:
        states = dict(con.execute("SELECT state::VARCHAR, count(*) FROM outcomes GROUP BY ALL").fetchall())
    assert states == {"finished": 5, "rejected": 1}


# 19. rates that are none
@pytest.mark.parametrize("rows", [["1700000000,5,6"], ["1700000000,5,6"] * 40], ids=["one", "equal"])
def test_19_no_rate_where_there_is_none(write: Write, rows: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", str(write(csv_of(rows))), "--json", "--db", str(tmp_path / "x.duckdb")]) == 0
    found = capfd.readouterr().out
    assert '"rate_refused"' in found or "refused" in found


# 20. dates that cannot be
def test_20_zero_among_dates_is_no_date(write: Write) -> None:
    trace = read_trace(write(csv_of([*steady(20), "0,5,6", "17,5,6"])))
    assert rejects(trace) == [(22, "arrival", "not a date, as the others are"), (23, "arrival", "not a date, as the others are")]
    trace = read_trace(write(lines(*({"arrival": 0 if i == 3 else 1_700_000_000 + i, "input_tokens": 1, "output_tokens": 1}
                                     for i in range(9))), "t.jsonl"))  # fmt: skip
    assert rejects(trace) == [(4, "arrival", "not a date, as the others are")]


def test_20_1970_as_a_date_and_the_future(write: Write) -> None:
    dated = [f"2024-05-10 00:00:{i:02},5,6" for i in range(50)]
    assert warned(read_trace(write(csv_of(["1970-01-01 00:00:00,5,6", *dated]))), "before the year 2000")
    assert warned(read_trace(write(csv_of([*dated, "2199-01-01 00:00:00,5,6"]))), "in the future")


def test_20_times_that_begin_anywhere(write: Write) -> None:
    for first in (-5, 19_440_110):
        trace = read_trace(write(csv_of([f"{first + i},5,6" for i in range(5)], "arrival_s,input_tokens,output_tokens\n")))
        assert trace.arrivals["arrival_ns"].to_pylist() == [i * 10**9 for i in range(5)]
        assert trace.report.t0_ns is None


# 21. hostile content
HOSTILE = ("\x1b[31mred\x1b[0m", "=cmd('x')", "../../etc/passwd", "a\u202eb", "[bold]x[/bold]", "'; DROP TABLE t; --", "\x07")


def test_21_hostile_content_is_escaped_in_every_output(tmp_path: Path, capfd: pytest.CaptureFixture[str],
                                                       monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    rows = [request(i, model=text, tenant=text, request_id=text, **{f"\x1b[1m{i}": 1}) for i, text in enumerate(HOSTILE)]
    rows += [request(9) | {"input_tokens": "\x1b[31m7"}]
    path = Path("\x1b[32mevil.jsonl")
    path.write_text(lines(*rows))
    for arguments in (["validate"], ["load"], ["describe"], ["replay"], ["anonymize", "--out", "o.jsonl"]):
        main([*arguments, str(path)])
        main([*arguments, str(path), "--json"])
    for table in ("requests", "quarantine", "traces"):
        main(["sql", f"SELECT * FROM {table}"])
    for arguments in (["traces"], ["runs"], ["explain", "1", "0"]):
        main(arguments)
    told = capfd.readouterr()
    for mark in ("\x1b", "\x07", "\u202e"):
        assert mark not in told.out + told.err, repr(mark)
    assert not list(tmp_path.parent.glob("etc*"))


def test_21_names_are_values_in_sql(write: Write) -> None:
    with duckdb.connect() as con:
        text = csv_of([f"{i},5,6,\"x'); DROP TABLE stage; --\"" for i in range(5)], HEAD.strip() + ",ten'ant\n")
        report = load_trace(con, write(text, "o'brien; --.csv"), mapping=["tenant=ten'ant"])
        assert report.rows_kept == 5
        assert con.execute("SELECT DISTINCT tenant FROM requests").fetchall() == [("x'); DROP TABLE stage; --",)]

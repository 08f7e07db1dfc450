"""A run as trace events for Perfetto (ui.perfetto.dev, "Open trace file") and chrome://tracing: JSON, gzipped.

One process per replica: a slice per iteration, counters of KV blocks, running, waiting and the filled share of the token budget,
preemptions as instants. One process of requests: each is an asynchronous track of its own (requests overlap, and slices of one
track must nest) with a slice for every phase. Both ends of a slice are cut to whole microseconds, so what adjoins still does; the
tables have the nanoseconds. KV is written where it has moved by a 500th of the pool, the other counters wherever they change.
Rows are read, formatted and compressed a batch at a time, so memory does not grow with the run.

Format: the Trace Event Format document, phases ``X``, ``C``, ``b``, ``e``, ``i`` and ``M``.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl
    from duckdb import DuckDBPyConnection

__all__ = ["REQUESTS_PID", "write_perfetto"]

REQUESTS_PID = 1
TRANSFERS_PID = 2
FIRST_REPLICA_PID = 10
ITERATIONS_TID, PREEMPTIONS_TID = 1, 2
BATCH_ROWS = 65_536
COMPRESSION = 6

_ITERATIONS = """
SELECT replica + {first} AS pid, start_ns, start_ns + duration_ns AS end_ns, iteration, prefill_tokens, recomputed_tokens,
       decode_seqs, preempted,
       nullif(head_refused_by::VARCHAR, 'none') AS refused, kv_used, kv_cached, running, waiting,
       coalesce(500 * kv_used // nullif(kv_total, 0), kv_used) AS used_step,
       coalesce(500 * kv_cached // nullif(kv_total, 0), kv_cached) AS cached_step,
       coalesce(100 * (prefill_tokens + recomputed_tokens + decode_seqs) // nullif(budget, 0), 0) AS filled
FROM iterations WHERE run = ? AND start_ns < ? AND start_ns + duration_ns > ? ORDER BY replica, iteration
"""
_REQUESTS = """
WITH lives AS (
    SELECT request, arrival_ns, prompt_tokens, output_tokens, cached_tokens, state::VARCHAR AS state, tenant, class, preemptions,
           slo_met, least(coalesce(low, arrival_ns), arrival_ns) AS begin_ns,
           greatest(coalesce(high, 0), coalesce(last_token_ns, 0), arrival_ns) AS end_ns
    FROM (SELECT * FROM outcomes WHERE run = $run AND arrival_ns >= 0) LEFT JOIN (
        SELECT request, min(start_ns) AS low, max(end_ns) AS high FROM spans WHERE run = $run GROUP BY request) USING (request)),
picked AS (SELECT * EXCLUDE (arrival_ns) FROM lives WHERE begin_ns < $high AND end_ns >= $low),
phases AS (
    SELECT p.request, p.class, s.phase::VARCHAR AS phase, nullif(s.reason::VARCHAR, 'none') AS reason, s.replica,
           s.start_iteration, s.start_ns AS begin_ns, greatest(s.end_ns, s.start_ns) AS end_ns
    FROM spans AS s JOIN picked AS p ON s.request = p.request WHERE s.run = $run),
together AS (
    SELECT 0 AS kind, * FROM picked UNION ALL BY NAME SELECT 1 AS kind, * FROM phases
    UNION ALL BY NAME SELECT 2 AS kind, request, class, begin_ns, end_ns FROM picked)
SELECT * FROM together ORDER BY request, kind, begin_ns, end_ns
"""
_PREEMPTIONS = """
SELECT replica + {first} AS pid, preempted_ns, request, lost_tokens, kind::VARCHAR AS kind
FROM preemptions WHERE run = ? AND preempted_ns < ? AND preempted_ns >= ? ORDER BY replica, preempted_ns, request
"""
_TRANSFERS = """
SELECT row_number() OVER (ORDER BY asked_ns, request, attempt) AS id, request, source, target, bytes,
       ended::VARCHAR AS ended, coalesce(start_ns, asked_ns) AS begin_ns, greatest(end_ns, coalesce(start_ns, asked_ns)) AS end_ns
FROM transfers WHERE run = ? AND coalesce(start_ns, asked_ns) < ? AND end_ns > ? ORDER BY 1
"""
_EVER = 2**62
_LENGTHS = ("prompt_tokens", "output_tokens", "cached_tokens", "preemptions")


def write_perfetto(con: DuckDBPyConnection, run: int, stream: IO[bytes], *, title: str,
                   window_ns: tuple[int, int] | None = None) -> dict[str, int]:  # fmt: skip
    """Write the run's trace events to ``stream``; the numbers of iterations and requests written.

    ``con``: a connection to the database; ``window_ns``: only what overlaps this stretch of the engine clock, and all phases of
    requests that do. A request that was never released has no time and is left out.
    """
    low, high = window_ns or (-_EVER, _EVER)
    replicas = FIRST_REPLICA_PID
    with gzip.GzipFile(filename="", mode="wb", fileobj=stream, compresslevel=COMPRESSION, mtime=0) as out:
        about = {"title": title, "run": run, "clock": "the engine's: 0 is the start of the replayed slice"}
        out.write(b'{"displayTimeUnit":"ms","otherData":' + _json(about) + b',"traceEvents":[\n')
        out.write(_metadata(con, run))
        iterations = _write(con, out, _ITERATIONS.format(first=replicas), [run, high, low], _iterations)
        requests = _write(con, out, _REQUESTS, {"run": run, "low": low, "high": high}, _requests)
        _write(con, out, _PREEMPTIONS.format(first=replicas), [run, high, low], _instants)
        _write(con, out, _TRANSFERS, [run, high, low], _moves)
        # closes the list: every line above ends in a comma
        out.write(_json({"ph": "M", "name": "process_labels", "pid": REQUESTS_PID, "args": {"labels": "by phase"}}) + b"\n]}\n")
    return {"iterations": iterations, "requests": requests}


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _metadata(con: DuckDBPyConnection, run: int) -> bytes:
    """Names of processes and threads, in the order in which they are to be shown."""
    found = con.execute("SELECT DISTINCT replica FROM iterations WHERE run = ? ORDER BY 1", [run]).fetchall()
    moved = con.execute("SELECT 1 FROM transfers WHERE run = ? LIMIT 1", [run]).fetchall()
    processes = [(FIRST_REPLICA_PID + replica, f"replica {replica}" if len(found) > 1 else "engine") for (replica,) in found]
    processes += [(REQUESTS_PID, "requests"), *([(TRANSFERS_PID, "KV transfers")] if moved else [])]
    events: list[dict[str, Any]] = []
    for place, (pid, name) in enumerate(processes):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": place}})
        for tid, thread in ((ITERATIONS_TID, "iterations"), (PREEMPTIONS_TID, "preemptions")) if pid >= FIRST_REPLICA_PID else ():
            events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": thread}})
    return b"".join(_json(each) + b",\n" for each in events)


def _write(con: DuckDBPyConnection, out: gzip.GzipFile, query: str, values: Any, lines: Callable[[pl.DataFrame], pl.Expr]) -> int:
    """The query's rows as events; how many rows were things of their own, not parts of one."""
    import polars as pl

    count = 0
    for batch in con.sql(query, params=values).to_arrow_reader(BATCH_ROWS):
        if not batch.num_rows:
            continue
        rows = pl.from_arrow(batch)
        assert isinstance(rows, pl.DataFrame)
        out.write(rows.select(lines(rows)).to_series().str.join("").item().encode())
        count += int((rows["kind"] == 0).sum()) if rows.columns[0] == "kind" else rows.height
    return count


def _us(column: str) -> pl.Expr:
    """Nanoseconds as whole microseconds."""
    import polars as pl

    return pl.col(column) // 1000


def _line(*parts: str | pl.Expr) -> pl.Expr:
    """One event: texts are themselves."""
    import polars as pl

    return pl.concat_str([pl.lit(each) if isinstance(each, str) else each for each in parts])


def _given(name: str, *, text: bool = False, zero: bool = False) -> pl.Expr:
    """``,"name":value`` where there is a value (and, unless ``zero``, one that is not 0), else nothing. Text is escaped."""
    import polars as pl

    column = pl.col(name)
    if text:
        quoted = column.map_elements(json.dumps, return_dtype=pl.String)
        return pl.when(column.is_not_null()).then(_line(f',"{name}":', quoted.fill_null(""))).otherwise(pl.lit(""))
    there = column.is_not_null() if zero else column.fill_null(0) != 0
    return pl.when(there).then(_line(f',"{name}":', column.cast(pl.String).fill_null(""))).otherwise(pl.lit(""))


def _iterations(rows: pl.DataFrame) -> pl.Expr:
    """A slice, named by what the iteration did, and the counters that changed with it."""
    import polars as pl

    prefills = pl.col("prefill_tokens") + pl.col("recomputed_tokens") > 0
    decodes = pl.col("decode_seqs") > 0
    name = (pl.when(prefills & decodes).then(pl.lit("prefill + decode")).when(prefills).then(pl.lit("prefill"))
            .when(decodes).then(pl.lit("decode")).otherwise(pl.lit("empty")))  # fmt: skip
    figures = [_given(each) for each in ("prefill_tokens", "recomputed_tokens", "decode_seqs", "preempted")]
    slices = _line('{"ph":"X","pid":', pl.col("pid"), f',"tid":{ITERATIONS_TID},"name":"', name, '","ts":', _us("start_ns"),
                   ',"dur":', _us("end_ns") - _us("start_ns"), ',"args":{"iteration":', pl.col("iteration"), *figures,
                   _given("refused", text=True), "}},\n")  # fmt: skip
    return pl.concat_str(slices, *[_counter(*each) for each in _COUNTERS])


_COUNTERS: tuple[tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]], ...] = (
    ("KV blocks", (("used", "kv_used"), ("cached", "kv_cached")), ("used_step", "cached_step")),
    ("requests", (("running", "running"), ("waiting", "waiting")), ("running", "waiting")),
    ("token budget, %", (("filled", "filled"),), ("filled",)),
)
"""Name, series with their columns, and the columns of which one must have moved since the row before."""


def _counter(name: str, series: Sequence[tuple[str, str]], moved: Sequence[str]) -> pl.Expr:
    """A counter event, or nothing where it stands as before: a counter holds its value until the next event."""
    import polars as pl

    same = pl.col("pid") == pl.col("pid").shift(1)
    for column in moved:
        same &= pl.col(column) == pl.col(column).shift(1)
    values = [piece for at, (label, column) in enumerate(series)
              for piece in (f'{"," if at else ""}"{label}":', pl.col(column))]  # fmt: skip
    event = _line('{"ph":"C","pid":', pl.col("pid"), f',"name":"{name}","ts":', _us("start_ns"), ',"args":{', *values, "}},\n")
    return pl.when(same.fill_null(False)).then(pl.lit("")).otherwise(event)


def _requests(rows: pl.DataFrame) -> pl.Expr:
    """A request's beginning, its phases, its end, in this order: equal times then nest as they stand."""
    import polars as pl

    common = f'"pid":{REQUESTS_PID},"tid":0,"cat":"request","id":"'
    label = pl.when(pl.col("class").is_null()).then(pl.lit('"request"')).otherwise(
        _line("request ", pl.col("class").fill_null("")).map_elements(json.dumps, return_dtype=pl.String))  # fmt: skip
    number, begin, end = pl.col("request"), _us("begin_ns"), _us("end_ns")
    told = [_given(each, zero=True) for each in _LENGTHS]
    first = _line('{"ph":"b",', common, number, '","name":', label, ',"ts":', begin, ',"args":{"request":', number, *told,
                  _given("state", text=True), _given("tenant", text=True), _given("slo_met", zero=True), "}},\n")  # fmt: skip
    phase = pl.col("phase").fill_null("")
    inner = _line('{"ph":"b",', common, number, '","name":"', phase, '","ts":', begin, ',"args":{"replica":',
                  pl.col("replica").fill_null(0), _given("reason", text=True), _given("start_iteration", zero=True),
                  '}},\n{"ph":"e",',
                  common, number, '","name":"', phase, '","ts":', end, "},\n")  # fmt: skip
    last = _line('{"ph":"e",', common, number, '","name":', label, ',"ts":', end, "},\n")
    return pl.when(pl.col("kind") == 0).then(first).when(pl.col("kind") == 1).then(inner).otherwise(last)


def _instants(rows: pl.DataFrame) -> pl.Expr:
    """A preemption: whom, how many tokens were lost, and what became of its KV."""
    import polars as pl

    return _line('{"ph":"i","s":"t","pid":', pl.col("pid"), f',"tid":{PREEMPTIONS_TID},"name":"preempt","ts":',
                 _us("preempted_ns"), ',"args":{"request":', pl.col("request"), ',"lost_tokens":', pl.col("lost_tokens"),
                 _given("kind", text=True), "}},\n")  # fmt: skip


def _moves(rows: pl.DataFrame) -> pl.Expr:
    """A transfer of KV between engines: several run at a time, so each is a track of its own."""
    import polars as pl

    common = _line(f'"pid":{TRANSFERS_PID},"tid":0,"cat":"transfer","id":"', pl.col("id"), '","name":"transfer","ts":')
    return _line('{"ph":"b",', common, _us("begin_ns"), ',"args":{"request":', pl.col("request"), ',"source":', pl.col("source"),
                 ',"target":', pl.col("target"), ',"bytes":', pl.col("bytes"), _given("ended", text=True), '}},\n{"ph":"e",',
                 common, _us("end_ns"), "},\n")  # fmt: skip

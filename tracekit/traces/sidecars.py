"""What lies beside a request file and belongs to it, by the name's stem: settings, and series that a server logged over time.

``NAME.requests.jsonl`` (or ``.csv``, gzipped or not, with or without ``.requests``) goes with ``NAME.meta.json``,
``NAME.timeseries.csv`` and ``NAME.server_metrics.csv``. One that cannot be read is named in a warning; the trace loads all
the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from tracekit.errors import shown

if TYPE_CHECKING:
    import duckdb

__all__ = ["SIDECAR_SUFFIXES", "attach_sidecars", "sidecars_of"]

SIDECAR_SUFFIXES = {"meta": ".meta.json", "timeseries": ".timeseries.csv", "server_metrics": ".server_metrics.csv"}
LONGEST = 64 << 20
_ENDS = re.compile(r"(\.requests)?(\.(jsonl|json|csv|tsv|ndjson|parquet))?(\.gz)?$")
_TIMES = {"timestamp_sec": True, "timestamp": True, "t": False, "relative_time_sec": False}
"""Columns that tell the time in seconds, in order of choice, and whether they count from 1970."""

_KNOWN = ("schema_version", "model", "vllm_version", "num_requests", "started_at", "finished_at", "tick_seconds")
_KNOWN_TABLES = ("engine_kwargs", "kv_cache", "hardware")
_RESOLVED = ("scheduler_config", "cache_config", "parallel_config")


def sidecars_of(request_file: Path) -> list[tuple[str, Path]]:
    """The files that go with ``request_file``, as (kind, path)."""
    stem = _ENDS.sub("", request_file.name)
    found = [(kind, request_file.with_name(stem + suffix)) for kind, suffix in SIDECAR_SUFFIXES.items()]
    return [(kind, path) for kind, path in found if path.is_file() and path != request_file]


def attach_sidecars(con: duckdb.DuckDBPyConnection, trace: int, request_files: Iterable[str], t0_ns: int | None,
                    warn: Callable[[str], None]) -> None:  # fmt: skip
    """Store what lies beside the files of ``trace``: settings as JSON, series in ns from trace start.

    ``t0_ns`` is the trace's start since 1970; series that count from a start of their own are taken to start with the trace.
    """
    seen: set[Path] = set()
    for name in request_files:
        for kind, path in sidecars_of(Path(name)):
            if path in seen:
                continue
            seen.add(path)
            try:
                _attach(con, trace, kind, path, t0_ns)
            except Exception as error:
                warn(f"{path.name}: lies beside the trace, but cannot be read: {shown(str(error).splitlines()[0], 120)}")


def _attach(con: duckdb.DuckDBPyConnection, trace: int, kind: str, path: Path, t0_ns: int | None) -> None:
    settings: str | None = None
    series = points = 0
    if path.stat().st_size > LONGEST:
        raise ValueError(f"longer than {LONGEST >> 20} MiB")
    if kind == "meta":
        settings = orjson.dumps(_known_settings(orjson.loads(path.read_bytes()))).decode()
    else:
        series, points = _series(con, trace, path, t0_ns)
    con.execute("INSERT INTO sidecars VALUES (?, ?, ?, ?, ?, ?)", [trace, path.name, kind, settings, series, points])


def _scalars(table: Any) -> dict[str, Any]:
    if not isinstance(table, dict):
        return {}
    return {key: value for key, value in table.items()
            if value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 200)}  # fmt: skip


def _known_settings(document: Any) -> dict[str, Any]:
    """The settings that are known by name; nothing else of the file is kept."""
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    known = _scalars({key: document[key] for key in _KNOWN if key in document})
    known |= {key: _scalars(document[key]) for key in _KNOWN_TABLES if isinstance(document.get(key), dict)}
    resolved = document.get("resolved_config")
    if isinstance(resolved, dict):
        known |= {key: _scalars(resolved[key]) for key in _RESOLVED if isinstance(resolved.get(key), dict)}
    return known


def _series(con: duckdb.DuckDBPyConnection, trace: int, path: Path, t0_ns: int | None) -> tuple[int, int]:
    """Every numeric column as a series. Returns how many series and points."""
    import duckdb

    name = str(path).replace("'", "''")
    scan = f"read_csv('{name}', header = true, all_varchar = true, delim = ',', quote = '\"')"
    # apart: a failed query would end the transaction that the trace is loaded in
    with duckdb.connect() as own:
        columns = [row[0] for row in own.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()]
        clock = next((column for column in _TIMES if column in columns), None)
        if clock is None:
            raise ValueError(f"no column of time; expected one of {', '.join(_TIMES)}")
        begin = t0_ns if _TIMES[clock] and t0_ns is not None else 0
        listed = ", ".join('"' + column.replace('"', '""') + '"' for column in columns if column not in _TIMES)
        moment = f"TRY_CAST({clock} AS DECIMAL(38, 9))"
        points = own.sql(
            f"SELECT {trace}::UINTEGER AS trace, ? AS name, metric, TRY_CAST({moment} * 1000000000 AS BIGINT) - {begin} AS t_ns,"
            f" TRY_CAST(value AS DOUBLE) AS value FROM (UNPIVOT {scan} ON {listed} INTO NAME metric VALUE value)"
            f" WHERE t_ns IS NOT NULL AND TRY_CAST(value AS DOUBLE) IS NOT NULL", params=[path.name],
        ).to_arrow_table()  # fmt: skip
    con.register("sidecar_points", points)
    con.execute("INSERT INTO sidecar_series BY NAME SELECT * FROM sidecar_points")
    con.unregister("sidecar_points")
    return len(points["metric"].unique()), points.num_rows

"""The tables a trace is stored in, all keyed by ``trace``. Times are ns from trace start, NULL is unknown.

What every request has stands in ``arrivals``; what few traces know stands in ``request_extras``, with a row only where there
is something to say: a column that is NULL in five million rows still costs time to write. The view ``requests`` is both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.traces.columns import EXTRA, Column

if TYPE_CHECKING:
    import duckdb

__all__ = ["STATUS", "TABLES", "create_requests_view", "create_tables"]


def _columns(columns: tuple[Column, ...]) -> str:
    return ", ".join(f'"{column.stored}" {column.sql_type}' for column in columns)


TABLES: dict[str, str] = {
    "traces": (
        "trace UINTEGER PRIMARY KEY, name VARCHAR NOT NULL, digest VARCHAR NOT NULL, source_format VARCHAR NOT NULL,"
        " source_files STRUCT(name VARCHAR, sha256 VARCHAR, bytes UBIGINT)[], t0_ns BIGINT, t0_zone_assumed BOOLEAN,"
        " span_ns BIGINT, time_resolution_ns BIGINT, arrival_kind VARCHAR, block_tokens UINTEGER, hash_scope VARCHAR,"
        " hash_rounding VARCHAR, obs_clock VARCHAR, rows_read UBIGINT, rows_kept UBIGINT, rows_dropped MAP(VARCHAR, UBIGINT),"
        " warnings VARCHAR[], loader_version VARCHAR, loaded_at TIMESTAMP"
    ),
    "arrivals": (
        "trace UINTEGER NOT NULL, req_idx UINTEGER NOT NULL, source_file USMALLINT, source_line UBIGINT,"
        " arrival_ns BIGINT NOT NULL, input_tokens UINTEGER NOT NULL, output_tokens UINTEGER NOT NULL, shared_blocks UINTEGER"
    ),
    "request_extras": f"trace UINTEGER NOT NULL, req_idx UINTEGER NOT NULL, {_columns(EXTRA)}",
    "blocks": (
        "trace UINTEGER NOT NULL, req_idx UINTEGER NOT NULL, pos_start UINTEGER NOT NULL, first_id UBIGINT NOT NULL,"
        " len UINTEGER NOT NULL"
    ),
    "sidecars": "trace UINTEGER NOT NULL, name VARCHAR NOT NULL, kind VARCHAR NOT NULL, settings JSON, series UINTEGER,"
    " points UBIGINT",
    "sidecar_series": "trace UINTEGER NOT NULL, name VARCHAR NOT NULL, metric VARCHAR NOT NULL, t_ns BIGINT NOT NULL,"
    " value DOUBLE",
    "quarantine": 'trace UINTEGER NOT NULL, file VARCHAR, line UBIGINT, "column" VARCHAR, value VARCHAR, reason VARCHAR',
}

STATUS = (
    "CASE WHEN e.status IN ('error', 'cancelled', 'timeout', 'rejected') THEN e.status"
    " WHEN a.input_tokens = 0 AND a.output_tokens = 0 THEN 'error'"
    " WHEN a.input_tokens = 0 OR a.output_tokens = 0 THEN 'unknown' ELSE e.status END AS status"
)
"""A request without tokens failed in the trace, even where its status says that all was well."""

RELEASE = "CASE WHEN e.parent_idx IS NULL THEN 'at_arrival' ELSE 'after_parent' END AS release"
"""What brings a request: its recorded arrival, or the completion of its parent and the think time after it."""


def _requests_view() -> str:
    extras = ", ".join(f'e."{column.stored}"' for column in EXTRA if column.name != "status")
    return (
        f"SELECT a.*, {STATUS}, {extras}, {RELEASE} FROM arrivals a LEFT JOIN request_extras e"
        " ON a.trace = e.trace AND a.req_idx = e.req_idx"
    )


def create_tables(con: duckdb.DuckDBPyConnection) -> None:
    """Create the trace tables and the view ``requests`` where they are not there yet."""
    for name, columns in TABLES.items():
        con.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
    found = con.execute("SELECT column_name FROM duckdb_columns() WHERE table_name = 'request_extras'").fetchall()
    there = {row[0] for row in found}
    for column in EXTRA:
        if column.stored not in there:  # a database of an older version
            con.execute(f'ALTER TABLE request_extras ADD COLUMN "{column.stored}" {column.sql_type}')
    con.execute(f"CREATE OR REPLACE VIEW requests AS {_requests_view()}")


def create_requests_view(con: duckdb.DuckDBPyConnection) -> None:
    """The view ``requests`` for this connection only, over tables that it has by whatever means."""
    con.execute(f"CREATE OR REPLACE TEMP VIEW requests AS {_requests_view()}")

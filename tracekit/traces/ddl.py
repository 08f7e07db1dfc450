"""The tables a trace is stored in, all keyed by ``trace``. Times are ns from trace start, NULL is unknown.

``requests`` is narrow on purpose: a column that is NULL in five million rows still costs time to write, so what few traces
have stands in ``request_extras`` (a row only where there is something to say).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.traces.columns import CORE, EXTRA, Column

if TYPE_CHECKING:
    import duckdb

__all__ = ["TABLES", "create_tables"]

_REQUIRED = {"arrival_ns", "input_tokens", "output_tokens"}


def _columns(columns: tuple[Column, ...]) -> str:
    parts = []
    for column in columns:
        stored, sql_type = column.stored, column.sql_type
        parts.append(f'"{stored}" {sql_type}{" NOT NULL" if stored in _REQUIRED else ""}')
    return ", ".join(parts)


TABLES: dict[str, str] = {
    "traces": (
        "trace UINTEGER PRIMARY KEY, name VARCHAR NOT NULL, digest VARCHAR NOT NULL, source_format VARCHAR NOT NULL,"
        " source_files STRUCT(name VARCHAR, sha256 VARCHAR, bytes UBIGINT)[], t0_ns BIGINT, t0_zone_assumed BOOLEAN,"
        " span_ns BIGINT, time_resolution_ns BIGINT, arrival_kind VARCHAR, block_tokens UINTEGER, hash_scope VARCHAR,"
        " hash_rounding VARCHAR, obs_clock VARCHAR, rows_read UBIGINT, rows_kept UBIGINT, rows_dropped MAP(VARCHAR, UBIGINT),"
        " warnings VARCHAR[], loader_version VARCHAR, loaded_at TIMESTAMP"
    ),
    "requests": (
        "trace UINTEGER NOT NULL, req_idx UINTEGER NOT NULL, source_file USMALLINT, source_line UBIGINT, "
        f"{_columns(CORE)}, shared_blocks UINTEGER"
    ),
    "request_extras": f"trace UINTEGER NOT NULL, req_idx UINTEGER NOT NULL, {_columns(EXTRA)}",
    "blocks": (
        "trace UINTEGER NOT NULL, req_idx UINTEGER NOT NULL, pos_start UINTEGER NOT NULL, first_id UBIGINT NOT NULL,"
        " len UINTEGER NOT NULL"
    ),
    "quarantine": 'trace UINTEGER NOT NULL, file VARCHAR, line UBIGINT, "column" VARCHAR, value VARCHAR, reason VARCHAR',
}


def create_tables(con: duckdb.DuckDBPyConnection) -> None:
    """Create the trace tables that are not there yet."""
    for name, columns in TABLES.items():
        con.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")

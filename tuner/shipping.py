"""The tables of traces in memory, to be sent to a worker that does not see the database file.

They are Arrow tables: in a cluster's object store they lie once on each machine, and its workers read them where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tracekit.store import Store
from tracekit.traces.ddl import create_requests_view

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["ShippedTraces", "pack_traces"]

PACKED = {
    "traces": "trace, name, digest, block_tokens, time_resolution_ns, arrival_kind",
    "arrivals": "*",
    "request_extras": "*",
    "blocks": "*",
}
"""What is sent of each table: all that deciding and replaying a window reads."""


def pack_traces(store: Store, traces: Sequence[int]) -> dict[str, Any]:
    """Arrow tables by name, with the rows of ``traces`` (their numbers in the database)."""
    chosen = ", ".join(str(int(trace)) for trace in sorted(set(traces)))
    orders = {"traces": "trace", "arrivals": "trace, req_idx", "request_extras": "trace, req_idx"}
    with store.read() as con:
        return {
            name: con.sql(f"SELECT {columns} FROM {name} WHERE trace IN ({chosen}) ORDER BY"
                          f" {orders.get(name, 'trace, req_idx, pos_start')}").to_arrow_table()
            for name, columns in PACKED.items()
        }  # fmt: skip


class ShippedTraces:
    """Read like a ``Store``: ``read()`` yields a connection that has the tables. Nothing is copied or written."""

    def __init__(self, tables: dict[str, Any]) -> None:
        self._tables = tables

    @contextmanager
    def read(self) -> Iterator[DuckDBPyConnection]:
        import duckdb

        with duckdb.connect() as con:
            for name, table in self._tables.items():
                con.register(name, table)
            create_requests_view(con)
            yield con

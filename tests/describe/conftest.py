from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection

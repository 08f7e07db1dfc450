from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

SHARED = Path(__file__).parents[3] / "shared" / "traces"


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write bytes or text to a file of the test's own folder."""

    def write_file(data: bytes | str, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    return write_file


@pytest.fixture
def shared() -> Callable[[str], Path]:
    """A public trace beside the repository; skips where there is none."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"{name} is not beside the repository")
        return path

    return find

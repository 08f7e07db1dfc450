"""A store of the test's own, and the cases as runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dashboards.cases import Cases, record_cases
from tracekit.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "t.duckdb")


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """Every case, replayed once for all tests."""
    return record_cases(tmp_path_factory.mktemp("cases"))

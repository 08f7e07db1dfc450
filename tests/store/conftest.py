"""A store in a fresh folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracekit.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "t.duckdb", wait_s=20.0)

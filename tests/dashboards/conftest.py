"""A store of the test's own, and a browser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboards.browser import ARGUMENTS, chromium
from tests.dashboards.cases import Cases, record_cases
from tracekit.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "t.duckdb")


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """Every case, replayed once for all tests."""
    return record_cases(tmp_path_factory.mktemp("cases"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One Chromium for all tests. Where there is none they are skipped, but not where one is required, as by ``.ci/run``."""
    path = chromium()
    if path is None:
        why = "no Chromium: `make browser` installs one, or TRACEKIT_CHROMIUM names one"
        if os.environ.get("TRACEKIT_BROWSER") == "required":
            pytest.fail(why)
        pytest.skip(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield launched
        launched.close()

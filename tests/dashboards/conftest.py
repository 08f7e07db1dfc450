"""A store of the test's own, the cases as runs, and pages that are watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboards.queries import RunBook
from tests.dashboards.cases import Cases, record_cases, record_tight
from tests.dashboards.shared import made_once
from tests.dashboards.watched import Watched
from tracekit.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "t.duckdb")


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """Every case, replayed once for all tests."""
    return Cases(made_once(tmp_path_factory, "cases", record_cases))


@pytest.fixture(scope="session")
def tight(tmp_path_factory: pytest.TempPathFactory) -> RunBook:
    """The runs of ``record_tight``, to be read only."""
    return RunBook(made_once(tmp_path_factory, "tight", record_tight) / "tight.duckdb")


@pytest.fixture
def watch(browser: Any) -> Iterator[Callable[..., Watched]]:
    """Opens pages; when the test ends none of them may have met an error or asked the network for anything."""
    opened: list[Watched] = []

    def open_page(home: str, **settings: Any) -> Watched:
        context = browser.new_context(viewport={"width": 1400, "height": 1100}, **settings)
        opened.append(Watched(context.new_page(), home))
        return opened[-1]

    yield open_page
    for each in opened:
        each.page.context.close()
    assert [each.wrong for each in opened] == [[]] * len(opened)

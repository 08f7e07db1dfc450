"""One answer per commit: property tests draw the same examples every time, unless ``TRACEKIT_EXPLORE`` asks for new ones.

A landing must not depend on the draw. Looking for what no draw has met yet is its own command: ``make explore``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine, not about the code.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _UNTIMED, derandomize=True, database=None)
settings.register_profile("explore", _UNTIMED, derandomize=False, print_blob=True)
settings.load_profile("explore" if os.environ.get("TRACEKIT_EXPLORE") else "same")


_HERE = Path(__file__).parent
_FOLDERS = {
    "benchmarks", "calibration", "dashboards", "diagnosis", "examples", "experiments", "exports", "fleet", "gate", "kernels",
    "store", "torch_engine", "tuner",
}  # fmt: skip
_FILES = {
    "cli/test_diagnose_cmd.py", "cli/test_replay_cmd.py", "describe/test_describe.py", "engine/test_coasting.py",
    "engine/test_front_door.py", "engine/test_policies.py", "engine/test_two_walks.py", "traces/test_fuzz.py",
    "traces/test_giving_away.py", "traces/test_logs.py", "traces/test_nasty_rows.py",
}  # fmt: skip
"""What ``make test-fast`` leaves out so that it takes under two minutes: it is the scheduler, the readers, the metrics and the
command line."""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        place = item.path.relative_to(_HERE)
        if place.parts[0] in _FOLDERS or place.as_posix() in _FILES:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One Chromium for all tests of a process: a second one cannot be driven from it. Where there is none they are skipped, but
    not where one is required, as by ``.ci/run``."""
    from benchmarks.pages import ARGUMENTS, chromium

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

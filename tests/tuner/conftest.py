"""One trace on which the token budget decides: long prompts in bursts among short requests, in a database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tuner.servers import running_postgres
from tracekit.cli.main import main

BURSTS = ["--requests", "300", "--arrival", "gamma:rate=8,cv=2", "--input", "lognormal:median=2500,sigma=0.8", "--output",
          "lognormal:median=60,sigma=0.5", "--seed", "2"]  # fmt: skip
LIGHT = ["--requests", "240", "--arrival", "poisson:rate=6", "--input", "lognormal:median=300,sigma=0.6", "--output",
         "lognormal:median=40,sigma=0.5", "--seed", "1"]  # fmt: skip


@pytest.fixture(scope="session")
def bursts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A trace whose decodes stall behind long prompts under the default budget."""
    path: Path = tmp_path_factory.mktemp("traces") / "bursts.jsonl"
    assert main(["synth", str(path), *BURSTS]) == 0
    return str(path)


@pytest.fixture(scope="session")
def light(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A trace that any setting serves."""
    path: Path = tmp_path_factory.mktemp("traces") / "light.jsonl"
    assert main(["synth", str(path), *LIGHT]) == 0
    return str(path)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server of its own."""
    with running_postgres() as url:
        yield url

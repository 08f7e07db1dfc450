"""Two small traces in one database: steady short requests, and long prompts in bursts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracekit.cli.main import main

LIGHT = ["--requests", "240", "--arrival", "poisson:rate=6", "--input", "lognormal:median=300,sigma=0.6", "--output",
         "lognormal:median=40,sigma=0.5", "--seed", "1"]  # fmt: skip
BURSTS = ["--requests", "200", "--arrival", "gamma:rate=5,cv=2", "--input", "lognormal:median=2500,sigma=0.8", "--output",
          "lognormal:median=60,sigma=0.5", "--seed", "2"]  # fmt: skip


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Paths of the two traces."""
    folder: Path = tmp_path_factory.mktemp("traces")
    paths = []
    for name, options in (("light", LIGHT), ("bursts", BURSTS)):
        paths.append(str(folder / f"{name}.jsonl"))
        assert main(["synth", paths[-1], *options]) == 0
    return paths

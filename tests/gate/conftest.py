"""A small trace, a profile that is twice as slow, and a baseline of the trace: made once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from replay_engine.profile import DEFAULT_PROFILE, load_profile
from tracekit.cli.main import main

STEADY = ["--requests", "320", "--arrival", "poisson:rate=8", "--input", "lognormal:median=300,sigma=0.6", "--output",
          "lognormal:median=40,sigma=0.5", "--seed", "5"]  # fmt: skip
SLO = ["--slo", "ttft=500ms,tpot=50ms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Paths of what the tests share."""

    folder: Path
    trace: str
    db: str
    base: str
    doubled: str

    def gate(self, *words: str, trace: str | None = None) -> int:
        """One gate of the trace, its files in the folder."""
        return main(["gate", trace or self.trace, "--db", self.db, "--gate-file", str(self.folder / "gate.json"), *SLO, *words])


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("gate")
    trace = str(folder / "steady.jsonl")
    assert main(["synth", trace, *STEADY]) == 0
    profile = load_profile(DEFAULT_PROFILE)
    doubled = folder / "doubled.toml"
    doubled.write_text(replace(profile, name="doubled", latency=profile.latency.times(2)).to_toml())
    here = Place(folder=folder, trace=trace, db=str(folder / "gate.duckdb"), base=str(folder / "base.json"), doubled=str(doubled))
    assert here.gate("--gate", "ttft_p95<=500ms", "--write-baseline", here.base, "--seeds", "3") == 0
    return here

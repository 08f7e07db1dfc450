"""A database with one run of each kind: preempting, several replicas behind a front door, separate pools, tight seats."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from tracekit.diagnosis.run import diagnose
from tracekit.replay import replay
from tracekit.store import Store

DEMO = Path(__file__).parents[2] / "examples" / "demo_trace.jsonl.gz"
HOSTILE = 'a"b\\,</script>\n=1+1\u202e'
"""A tenant's name that breaks whatever does not escape it."""


class Runs(NamedTuple):
    """``path``: the database; the rest are numbers of runs."""

    path: Path
    tight: int
    preempting: int
    fleet: int
    pools: int
    outcomes_only: int

    @property
    def store(self) -> Store:
        return Store(self.path)


def demo_rows(limit: int) -> list[dict[str, object]]:
    with gzip.open(DEMO, "rt") as lines:
        return [json.loads(line) for _, line in zip(range(limit), lines, strict=False)]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("exports")
    rows = demo_rows(160)
    for row in rows[::7]:
        row |= {"tenant": HOSTILE, "class": HOSTILE}
    trace = folder / "small.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    db = str(folder / "t.duckdb")
    slo = "ttft=500ms,tpot=50ms"
    tight = replay(str(trace), sets=["max_num_seqs=4"], slo=slo, db=db, name="tight", diagnose=False).run
    diagnose(str(tight), prove_iterations=200_000, workers=1, db=db)
    short = ["num_gpu_blocks=600", "max_model_len=4096", "max_num_seqs=64"]
    preempting = replay("small", sets=short, slo=slo, limit=120, rate_scale=8.0, db=db, diagnose=False).run
    door = ["front_door.max_queued_reqs=3", "max_num_seqs=8"]
    fleet = replay("small", sets=door, slo=slo, limit=120, rate_scale=8.0, replicas=2, db=db, diagnose=False).run
    pools = replay("small", sets=["pools.decode.max_num_seqs=16"], slo=slo, limit=60, pd="1:1", db=db, diagnose=False).run
    few = replay("small", limit=40, events="outcomes", db=db, diagnose=False).run
    return Runs(Path(db), tight, preempting, fleet, pools, few)

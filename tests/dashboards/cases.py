"""The retold cases of trouble as recorded runs, for the pages: one database, each replayed once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dashboards.queries import RunBook
from tests.dashboards.browser import ROOT
from tracekit.generators.recipe import build_case
from tracekit.replay import replay

__all__ = ["CASES", "TIGHT", "Cases", "record_cases", "record_tight"]

CASES = tuple(sorted(path.stem for path in (ROOT / "tests" / "data" / "cases").glob("D*.yaml")))


EXAMPLE = ROOT / "examples" / "demo_trace.jsonl.gz"
TIGHT = ("num_gpu_blocks=1300", "max_num_batched_tokens=1024", "max_num_seqs=16", "max_model_len=20000")
SLO = "ttft=500ms,tpot=50ms"


class Cases:
    """What ``record_cases`` has left in a folder: a run of each case, one of the example under an SLO, and one that kept no
    iterations, by name."""

    def __init__(self, folder: Path) -> None:
        self.db = folder / "cases.duckdb"
        self.book = RunBook(self.db)
        self.runs: dict[str, int] = json.loads((folder / "runs.json").read_text(encoding="utf-8"))


def record_cases(folder: Path) -> None:
    """Build and replay them: some 15 s of one core."""
    runs: dict[str, int] = {}

    def record(name: str, trace: Path, **settings: Any) -> None:
        db = str(folder / "cases.duckdb")
        runs[name] = replay(str(trace), engine="sim", db=db, name=name, diagnose=False, **settings).run

    for name in CASES:
        built = build_case(ROOT / "tests" / "data" / "cases" / f"{name}.yaml", folder / name)
        record(name, built.trace, policy=str(built.policy), profile=str(built.profile))
    record("slo", EXAMPLE, limit=250, slo=SLO, sets=TIGHT)
    record("lean", EXAMPLE, limit=60, events="outcomes")
    (folder / "runs.json").write_text(json.dumps(runs), encoding="utf-8")


def record_tight(folder: Path) -> None:
    """Runs of the example in ``tight.duckdb``. 1: tight; 2: the same requests with twice the seats; 3: no SLO, outcomes only,
    another number of requests; 4: tight, with a watermark."""
    common: dict[str, Any] = {"db": str(folder / "tight.duckdb"), "engine": "sim"}
    replay(str(EXAMPLE), limit=250, slo=SLO, sets=TIGHT, name="tight", **common)
    replay(str(EXAMPLE), limit=250, slo=SLO, sets=(*TIGHT[:2], "max_num_seqs=32", TIGHT[3]), diagnose=False, **common)
    replay(str(EXAMPLE), limit=40, events="outcomes", **common)
    replay(str(EXAMPLE), limit=250, slo=SLO, sets=(*TIGHT, "watermark=0.02"), diagnose=False, **common)

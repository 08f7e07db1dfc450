"""The retold cases of trouble as recorded runs, for the pages: one database, each replayed once."""

from __future__ import annotations

from pathlib import Path

from dashboards.queries import RunBook
from tests.dashboards.browser import ROOT
from tracekit.generators.recipe import build_case
from tracekit.replay import replay

__all__ = ["CASES", "Cases", "record_cases"]

CASES = tuple(sorted(path.stem for path in (ROOT / "tests" / "data" / "cases").glob("D*.yaml")))


class Cases:
    """``db`` has a run of each case, one of the example under an SLO, and one that kept no iterations, by name."""

    def __init__(self, db: Path) -> None:
        self.db = db
        self.book = RunBook(db)
        self.runs: dict[str, int] = {}

    def record(self, name: str, trace: Path, **settings: object) -> None:
        self.runs[name] = replay(str(trace), engine="sim", db=str(self.db), name=name, diagnose=False, **settings).run  # type: ignore[arg-type]


def record_cases(folder: Path) -> Cases:
    """Built and replayed in ``folder``: some 15 s of one core."""
    cases = Cases(folder / "cases.duckdb")
    for name in CASES:
        built = build_case(ROOT / "tests" / "data" / "cases" / f"{name}.yaml", folder / name)
        cases.record(name, built.trace, policy=str(built.policy), profile=str(built.profile))
    example = ROOT / "examples" / "demo_trace.jsonl.gz"
    tight = ("num_gpu_blocks=1300", "max_num_batched_tokens=1024", "max_num_seqs=16", "max_model_len=20000")
    cases.record("slo", example, limit=250, slo="ttft=500ms,tpot=50ms", sets=tight)
    cases.record("lean", example, limit=60, events="outcomes")
    return cases

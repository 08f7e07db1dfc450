"""Where no scheduler knob can help, nothing is searched: recipes of trouble, and the same traffic under a plain name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tracekit.cli.main import main
from tuner import tune

CASES = Path(__file__).resolve().parents[1] / "data" / "cases"
OUTSIDE = {"D14": "OVERLOAD", "D09": "CLIENT_LIMIT", "D11": "KV_TRANSFER"}


@pytest.mark.parametrize("case", OUTSIDE)
def test_overload_client_and_link_are_said_and_no_trial_runs(case: str, tmp_path: Path) -> None:
    assert main(["synth", "--recipe", str(CASES / f"{case}.yaml"), "--out", str(tmp_path / case)]) == 0
    plain = tmp_path / "monday.jsonl.gz"
    shutil.copy(tmp_path / case / "trace.jsonl.gz", plain)
    texts = []
    for trace in (tmp_path / case / "trace.jsonl.gz", plain):
        found = tune(str(trace), slo="ttft=5s", profile=str(tmp_path / case / "profile.toml"), windows=2, holdout=2, workers=1,
                     policy=str(tmp_path / case / "policy.toml"), db=tmp_path / f"{trace.stem}.duckdb").document  # fmt: skip
        assert OUTSIDE[case] in found["no_search"] and not found["recommended"]
        assert sum(found["trials"][state] for state in ("complete", "pruned", "failed")) == 0
        texts.append(found["no_search"])
    assert texts[0] == texts[1]


def test_what_a_knob_can_help_is_searched_and_the_finding_is_named(bursts: str, tmp_path: Path) -> None:
    document = tune(bursts, slo="stall=60ms", windows=2, holdout=2, trials=3, workers=1, db=tmp_path / "a.duckdb").document
    assert document["no_search"] is None
    assert document["findings"] and {"id", "what", "share", "confidence"} <= set(document["findings"][0])

"""Where no scheduler knob can help, nothing is searched: recipes of trouble, and the same traffic under a plain name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.cli.main import main
from tuner import tune
from tuner.diagnosed import between_alone

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


BUSY = ["--requests", "1600", "--arrival", "poisson:rate=36", "--input", "uniform:min=300,max=2200", "--output",
        "uniform:min=60,max=160", "--seed", "3"]  # fmt: skip


@pytest.mark.parametrize(("slo", "searched"), [("tpot=25ms", True), ("ttft=1s,tpot=25ms", True), ("ttft=1s", False)])
def test_overload_stops_a_search_only_where_requests_miss_their_slo_by_it(slo: str, searched: bool, tmp_path: Path) -> None:
    """More is offered than the engine can do, whatever the SLO asks for; a lower budget still has tokens come in time."""
    trace = tmp_path / "busy.jsonl"
    assert main(["synth", str(trace), *BUSY]) == 0
    document = tune(str(trace), slo=slo, windows=3, holdout=1, length="8s", trials=4, workers=1,
                    db=tmp_path / "a.duckdb").document  # fmt: skip
    assert [finding["id"] for finding in document["findings"]] == ["OVERLOAD"]
    assert (document["no_search"] is None) is searched
    if slo == "tpot=25ms":
        assert (document["gain"]["base_attainment"] < 0.2, document["gain"]["level_attainment"]) == (True, 1.0)


parts = st.dictionaries(st.sampled_from(["ttft", "e2e", "tpot", "itl", "stall", "not_finished"]), st.integers(0, 50), max_size=6)


@given(st.lists(parts, min_size=1, max_size=4), st.integers(0, 50))
def test_what_only_time_between_tokens_explains_is_what_no_other_part_does(missed: list[dict[str, int]], more: int) -> None:
    """Of every way in which requests may miss several parts at once the share is the highest."""
    lost = [min(sum(each.values()), max(each.values(), default=0) + more) for each in missed]
    share = between_alone([{"n": 400, "met": 400 - n, "missed": each} for n, each in zip(lost, missed, strict=True)])
    assert 0 <= share <= 1
    for part in ("ttft", "e2e", "not_finished"):
        assert share * sum(lost) <= sum(lost) - sum(each.get(part, 0) for each in missed) + 1e-9
        assert share * sum(lost) <= sum(each.get(name, 0) for each in missed for name in ("tpot", "itl", "stall")) + 1e-9


@pytest.mark.parametrize(
    ("windows", "share"),
    [
        ([(100, {"ttft": 50, "e2e": 60})], 0.0),  # no limit between tokens at all
        ([(100, {"ttft": 100, "tpot": 0}), (100, {"e2e": 100, "tpot": 0})], 0.0),  # another part in each window
        ([(100, {})], 0.0),  # degraded: they miss none of the parts
        ([(100, {"tpot": 100})], 1.0),
        ([(100, {"tpot": 80, "ttft": 40})], 0.6),
        ([(100, {"stall": 30}), (100, {"ttft": 100, "stall": 100})], 0.15),
    ],
)
def test_misses_of_no_limit_between_tokens_are_not_counted(windows: list[tuple[int, dict[str, int]]], share: float) -> None:
    found = between_alone([{"n": 200, "met": 200 - lost, "missed": missed} for lost, missed in windows])
    assert found == pytest.approx(share)

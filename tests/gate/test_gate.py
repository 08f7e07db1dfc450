"""Gates from outside: a gate that cannot turn red guards nothing, so what must turn it red is what is tested first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.gate.conftest import Place
from tracekit.cli.main import main

THREE = ["--seeds", "3"]


def verdict(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place.folder / "gate.json").read_text())
    return found


def test_unchanged_code_passes_and_says_what_it_rests_on(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--gate", "tpot_p95<=+5%", "--gate", "ttft_p95<=2s", "--gate", "no:PREEMPTION_STORM", "--baseline", place.base]
    assert place.gate(*words, *THREE) == 0
    out = capfd.readouterr().out
    assert out.startswith("gate: passed (5 passed)")
    found = verdict(place)
    assert (found["verdict"], found["exit_code"]) == ("passed", 0)
    by_gate = {row["gate"]: row for row in found["gates"]}
    assert [row["implied"] for row in found["gates"]] == [False, False, False, True, True]
    assert by_gate["tpot_p95<=+5%"]["low"] <= by_gate["tpot_p95<=+5%"]["change"] <= by_gate["tpot_p95<=+5%"]["high"]
    assert by_gate["requests<=+1%"]["value"] == by_gate["requests<=+1%"]["base"] == 320


@pytest.mark.parametrize("limit", ["ttft_p95<=+20%", "tpot_p95<=+20%", "e2e_p50<=+20%", "tpot_p50<=+2ms"])
def test_a_doubled_latency_is_red(place: Place, limit: str) -> None:
    slow = ["--profile", place.doubled, "--baseline", place.base, *THREE]
    assert place.gate("--gate", limit, *slow) == 2, "another profile than the baseline's must be said"
    assert verdict(place)["verdict"] == "error"
    assert place.gate("--gate", limit, "--allow-mismatch", *slow) == 1
    row = verdict(place)["gates"][0]
    assert row["status"] == "failed"
    assert row["first"]["status"] == row["again"]["status"] == "failed", "a failing change is judged once more on other seeds"
    assert row["draws"] == 6
    assert row["first"]["draws"] == row["again"]["draws"] == 3


def with_changes(place: Place, path: Path, changes: list[float]) -> Path:
    """The baseline with the TPOT of its draws such that unchanged code has changed by so much in each of them."""
    document = json.loads(Path(place.base).read_text())
    row = document["figures"]["tpot_p50"]
    assert len(row["draws"]) == len(changes) == 24
    row["draws"] = [value / (1 + change) for value, change in zip(row["draws"], changes, strict=True)]
    path.write_text(json.dumps(document))
    return path


def test_a_change_that_few_draws_show_is_not_missed_and_one_that_few_enlarge_is_no_failure(place: Place, tmp_path: Path) -> None:
    seldom = with_changes(place, tmp_path / "seldom.json", [0.03, 0.06, 0.035] * 2 + [0.3, 0.05, 0.04] * 6)
    assert place.gate("--gate", "tpot_p50<=+5%", "--baseline", str(seldom), *THREE) == 1
    row = verdict(place)["gates"][0]
    assert max(row["first"]["change"], row["again"]["change"]) < 0.05
    assert row["change"] == pytest.approx(0.1, abs=0.03)
    assert 6 < row["draws"] <= 24
    burst = with_changes(place, tmp_path / "burst.json", [0.1, 0.02, 0.05] * 2 + [0.01, 0.0, 0.02] * 6)
    assert place.gate("--gate", "tpot_p50<=+5%", "--baseline", str(burst), *THREE) == 0
    row = verdict(place)["gates"][0]
    assert row["first"]["change"] > 0.05
    assert row["again"]["change"] > 0.05
    assert row["high"] <= 0.05
    assert 6 < row["draws"] <= 24


def test_draws_end_where_the_baseline_has_no_more(place: Place, tmp_path: Path) -> None:
    at_the_limit = with_changes(place, tmp_path / "limit.json", [0.02, 0.08, 0.05] * 8)
    assert place.gate("--gate", "tpot_p50<=+5%", "--baseline", str(at_the_limit), *THREE) in (0, 1)
    assert verdict(place)["gates"][0]["draws"] == 24
    document = json.loads(at_the_limit.read_text())
    document["seeds"] = document["seeds"][:12]
    at_the_limit.write_text(json.dumps(document))
    assert place.gate("--gate", "tpot_p50<=+5%", "--baseline", str(at_the_limit), *THREE) in (0, 1)
    assert verdict(place)["gates"][0]["draws"] == 12


def test_a_doubled_latency_is_red_without_a_baseline(place: Place) -> None:
    assert place.gate("--gate", "tpot_p50<=9ms", *THREE) == 0
    assert place.gate("--gate", "tpot_p50<=9ms", "--profile", place.doubled, *THREE) == 1


@pytest.fixture(scope="module")
def one_token(place: Place) -> str:
    """The trace with one output token per request: there is no TPOT in it."""
    rows = [json.loads(line) for line in Path(place.trace).read_text().splitlines()]
    path = place.folder / "one_token.jsonl"
    path.write_text("".join(json.dumps(row | {"output_tokens": 1}) + "\n" for row in rows))
    return str(path)


def test_a_lost_metric_is_red(place: Place, one_token: str) -> None:
    assert place.gate("--gate", "tpot_p99<=50ms", *THREE, trace=one_token) == 1
    assert "no tpot_p99" in verdict(place)["gates"][0]["why"]
    words = ["--gate", "tpot_p50<=+50%", "--baseline", place.base, "--allow-mismatch", *THREE]
    assert place.gate(*words, trace=one_token) == 1
    assert place.gate("--gate", "tpot_p50>=-50%", *words[2:], trace=one_token) == 1, "nothing measured is not faster"


def test_a_metric_that_the_baseline_lost_is_red(place: Place, tmp_path: Path) -> None:
    document = json.loads(Path(place.base).read_text())
    document["figures"]["tpot_p50"] |= {"value": None, "reason": "lost"}
    (tmp_path / "base.json").write_text(json.dumps(document))
    assert place.gate("--gate", "tpot_p50<=+50%", "--baseline", str(tmp_path / "base.json"), *THREE) == 1
    assert "the baseline has no tpot_p50: lost" in verdict(place)["gates"][0]["why"]


def test_counts_are_held_from_both_sides(place: Place, tmp_path: Path) -> None:
    for change in (0.9, 1.1):
        document = json.loads(Path(place.base).read_text())
        document["figures"]["tokens"]["value"] *= change
        (tmp_path / "base.json").write_text(json.dumps(document))
        assert place.gate("--gate", "e2e_p50<=+50%", "--baseline", str(tmp_path / "base.json"), *THREE) == 1
        rows = {row["gate"]: row["status"] for row in verdict(place)["gates"]}
        assert rows == {"e2e_p50<=+50%": "passed", "requests<=+1%": "passed", "tokens<=+1%": "failed"}


def test_too_few_requests_are_inconclusive(place: Place) -> None:
    assert place.gate("--gate", "ttft_p99<=2s", "--limit", "200", *THREE) == 4
    found = verdict(place)
    assert found["exit_code"] == 4
    assert "nobody's percentile" in found["gates"][0]["why"]
    assert place.gate("--gate", "ttft_p50<=1ms", "--gate", "ttft_p99<=2s", "--limit", "200", *THREE) == 1, "a failure outweighs"


def test_a_finding_that_is_there_is_red(place: Place) -> None:
    tight = ["--set", "max_num_seqs=2", "--gate", "no:QUEUE_SEATS", *THREE]
    assert place.gate(*tight) == 1
    row = verdict(place)["gates"][0]
    assert row["status"] == "failed"
    assert row["value"] > 0.5
    assert place.gate("--gate", "no:QUEUE_SEATS", *THREE) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gate", "ttft_p98<=2s"], "ttft_p99"),
        (["--gate", "ttft_p99=2s"], "expected METRIC<=LIMIT"),
        (["--gate", "ttft_p99<=5%"], "as +5%"),
        (["--gate", "ttft_p99<=2"], "with its unit"),
        (["--gate", "throughput>=nan"], "finite"),
        (["--gate", "no:PREEMPTION"], "PREEMPTION_STORM"),
        (["--gate", "tpot_p50<=+5%"], "--baseline FILE"),
        ([], "no --gate is given"),
        (["--gate", "ttft_p50<=2s", "--junit", "no/such/folder/j.xml"], "no such folder"),
        (["--gate", "ttft_p50<=2s", "--baseline", "nowhere.json"], "no such file"),
    ],
)
def test_slips_are_told_in_a_line(place: Place, words: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert place.gate(*words) == 2
    err = capfd.readouterr().err.strip().splitlines()
    assert said in err[-1]


def test_a_verdict_of_an_earlier_gate_does_not_stay(place: Place) -> None:
    assert place.gate("--gate", "ttft_p50<=2s", *THREE) == 0
    assert place.gate("--gate", "ttft_p50<=2s", trace=str(place.folder / "nowhere.jsonl")) in (2, 3)
    found = verdict(place)
    assert found["verdict"] == "error"
    assert found["exit_code"] in (2, 3)
    assert "nowhere" in found["error"]


def test_a_baseline_that_is_none_is_refused(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "base.json"
    for text in ("{", '{"schema": "tracekit.gate/1"}', '{"schema": "tracekit.baseline/1", "figures": {}}'):
        other.write_text(text)
        assert place.gate("--gate", "tpot_p50<=+5%", "--baseline", str(other)) == 3


@pytest.mark.parametrize("words", [["--set", "max_num_seqs=64"], ["--limit", "310"], ["--seeds", "30"], ["--slo", "ttft=1s"]])
def test_another_baseline_is_refused_by_what_differs(place: Place, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    base = ["--gate", "tpot_p50<=+5%", "--baseline", place.base]
    assert place.gate(*base, *(words if "--seeds" in words else [*words, *THREE])) == 2
    said = {"--set": "policy max_num_seqs", "--limit": "trace", "--seeds": "seeds", "--slo": "slo"}[words[0]]
    assert said in capfd.readouterr().err.strip().splitlines()[-1]


def test_a_baseline_is_not_written_over_limits_that_were_not_kept(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    assert place.gate("--gate", "ttft_p50<=1ms", "--write-baseline", str(path), *THREE) == 1
    assert not path.exists()


def test_a_red_table_goes_to_build_servers(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary, junit = tmp_path / "summary.md", tmp_path / "junit.xml"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    words = ["--gate", "ttft_p50<=1ms", "--gate", "tpot_p50<=1s", "--junit", str(junit), "--github-summary", *THREE]
    assert place.gate(*words) == 1
    text = summary.read_text()
    assert "gate: failed (1 failed, 1 passed)" in text
    assert "ttft_p50&lt;=1ms" in text
    suite = ElementTree.parse(junit).getroot()[0]
    cases = {case.get("name"): [child.tag for child in case] for case in suite if case.get("classname") == "gate"}
    assert cases == {"ttft_p50<=1ms": ["failure"], "tpot_p50<=1s": []}
    assert (suite.get("failures"), suite.get("errors")) == ("1", "0")


def test_a_recorded_run_is_gated_as_its_trace_is(place: Place) -> None:
    assert main(["replay", place.trace, "--db", place.db, "--slo", "ttft=500ms,tpot=50ms", "--name", "nightly"]) == 0
    words = ["--gate", "tpot_p50<=+1%", "--baseline", place.base, "--db", place.db, *THREE, "--gate-file",
             str(place.folder / "gate.json")]  # fmt: skip
    assert main(["gate", "nightly", *words]) == 0
    first = verdict(place)["figures"]
    assert main(["gate", "last", *words]) == 0
    assert verdict(place)["figures"] == first
    assert main(["gate", "nightly", "--limit", "3", *words]) == 2


def test_the_same_gate_gives_the_same_bytes(place: Place) -> None:
    words = ["--gate", "tpot_p50<=+5%", "--baseline", place.base, *THREE]
    assert place.gate(*words) == 0
    first = (place.folder / "gate.json").read_bytes()
    assert place.gate(*words) == 0
    assert (place.folder / "gate.json").read_bytes() == first


def test_json_is_one_document(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert place.gate("--gate", "ttft_p50<=2s", "--json", *THREE) == 0
    assert json.loads(capfd.readouterr().out) == verdict(place)

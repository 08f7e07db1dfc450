"""The verdict: one document, the same bytes for the same inputs, and nothing refuted in it as advice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.diagnosis.loads import CHAT, setup_of_recipe
from tests.diagnosis.test_proof import change, diagnosis, finding
from tracekit.diagnosis import RunData
from tracekit.diagnosis.finding import Diagnosis, Evidence
from tracekit.diagnosis.proof import prove
from tracekit.diagnosis.text import render_diagnosis, three_lines
from tracekit.diagnosis.verdict import build_verdict
from tracekit.diagnosis.wording import headline, recommended

GOOD, BAD = change("max_num_seqs=24"), change("max_num_batched_tokens=16384")


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return RunData.replayed(setup_of_recipe(CHAT, tmp_path_factory.mktemp("chat"), slo="ttft=500ms,tpot=50ms"))


def said(data: RunData, *proposed: str) -> Diagnosis:
    known = {"good": GOOD, "bad": BAD}
    one = finding(data, *(known[name] for name in proposed))
    number = Evidence(metric="block[seats]", value=0.98123456789, unit="share", threshold=0.5, sql="SELECT 1 WHERE {run} > 0")
    return diagnosis(replace(one, what="seats are short", evidence=(number,), is_not=("QUEUE_KV: there is room",)))


def test_the_same_inputs_give_the_same_bytes(chat: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = RunData.replayed(setup_of_recipe(CHAT, tmp_path, slo="ttft=500ms,tpot=50ms"))
    again.run = 17
    one = json.dumps(build_verdict(chat, prove(chat, said(chat, "bad", "good"), workers=1), budget=10**6))
    monkeypatch.setattr("tracekit.diagnosis.trial_crew.WORTH_A_WORKER", 0)
    other = json.dumps(build_verdict(again, prove(again, said(again, "bad", "good"), workers=2), budget=10**6))
    assert one == other
    assert one == json.dumps(json.loads(one), sort_keys=True)


def test_what_stands_in_it(chat: RunData) -> None:
    document = build_verdict(chat, prove(chat, said(chat, "good")), budget=10**6)
    assert document["schema"] == "tracekit.verdict/1"
    assert document["trace"]["requests"] == 360 and len(document["trace"]["digest"]) == 64
    assert document["config"]["max_num_seqs"] == 4
    assert document["slo"]["default"] == {"tpot_ns": 50_000_000, "ttft_ns": 500_000_000}
    assert document["metrics"]["ttft_s"]["n"] == 360 and document["metrics"]["slo"]["n"] == 360
    assert document["excess_s"] > 0 and document["unexplained"]["share"] == 0
    one, = document["findings"]
    assert one["evidence"][0]["value"] == 0.981235 and "{run}" in one["evidence"][0]["sql"]
    advice, = one["recommend"]
    assert one["confirmed_by_replay"] is True and advice["replayed"]["outcome"] == "confirmed"
    assert advice["flags"]["vllm"] == ["--max-num-seqs 24"] and advice["replayed"]["cured"]["mid"] > 0.9
    assert {each["metric"] for each in advice["replayed"]["figures"]} >= {"ttft p50", "ttft p99", "longest gap", "output"}


def test_what_was_refuted_is_no_advice(chat: RunData) -> None:
    proved = prove(chat, said(chat, "bad"))
    assert recommended(proved.findings[0]) is None
    one, = build_verdict(chat, proved, budget=10**6)["findings"]
    assert one["recommend"] == [] and one["confirmed_by_replay"] is False
    assert one["tried"][0]["replayed"]["outcome"] == "refuted" and one["tried"][0]["proposed"] is True
    text = render_diagnosis(chat, proved, replayed=True)
    assert "none: what was proposed did not hold when it was replayed" in text
    assert not [line for line in text.splitlines() if line.strip().startswith("change") and "max_num_batched_tokens" in line]


def test_what_was_not_replayed_is_a_proposal(chat: RunData) -> None:
    found = said(chat, "good")
    one, = build_verdict(chat, found, budget=None)["findings"]
    assert one["confirmed_by_replay"] is None and one["recommend"][0]["replayed"] is None
    lines = three_lines(found, "tracekit diagnose 1 shows more")
    assert len(lines) == 3 and "seats are short" in lines[0] and "is proposed, not replayed yet" in lines[1]
    assert lines[2].endswith("tracekit diagnose 1 shows more")
    short = prove(chat, found, budget=1)
    assert build_verdict(chat, short, budget=1)["findings"][0]["recommend"][0]["replayed"] is None
    assert "the budget is used up" in render_diagnosis(chat, short, replayed=True)


def test_a_person_reads_all_of_it(chat: RunData) -> None:
    text = render_diagnosis(chat, prove(chat, said(chat, "bad", "good")), replayed=True)
    for part in ("seats are short", "block[seats] 98.1 %", "held against 50.0 %", "QUEUE_KV: there is room", "--max-num-seqs 24",
                 "confirmed:", "ttft p99", "tried      max_num_batched_tokens"):  # fmt: skip
        assert part in text, part


def test_nothing_and_the_unexplained_are_answers(chat: RunData) -> None:
    calm = Diagnosis(findings=(), excess_ns=0, unexplained_ns=0, basis="", remarks=("nothing is wrong: 0 of 360 requests",))
    assert headline(calm) == "nothing is wrong: 0 of 360 requests"
    odd = Diagnosis(findings=(), excess_ns=10**12, unexplained_ns=10**12, basis="")
    assert "not explained" in headline(odd)
    assert three_lines(calm, "x")[1] == "change:  none is proposed"

"""The proof decides: a change that cures is confirmed, one that only looks right is refuted, whoever replays it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.diagnosis.loads import CHAT, setup_of_recipe
from tracekit.diagnosis import RunData
from tracekit.diagnosis.finding import Change, Diagnosis, Finding, Measure, Where, confirmed
from tracekit.diagnosis.proof import prove
from tracekit.diagnosis.trial_budget import Bench
from tracekit.diagnosis.yardstick import Yardstick


def change(*sets: str, tolerated: float = 0.1) -> Change:
    return Change(knob=sets[0].partition("=")[0], old="", new=sets[0].partition("=")[2], sets=sets, why="", tolerated=tolerated)


def finding(data: RunData, *changes: Change, tempting: tuple[Change, ...] = (), share: float = 1.0, measure: Measure = "ttft",
            name: str = "QUEUE_SEATS") -> Finding:  # fmt: skip
    excess = float(np.nansum(Yardstick.of(data).excess(data.outcomes, measure)))
    return Finding(
        id=name, what="", excess_ns=round(excess * share), share=share, confidence="high", because="by hand", evidence=(),
        where=Where(t0_ns=0, t1_ns=0), changes=changes, tempting=tempting, measure=measure,
    )  # fmt: skip


def diagnosis(*findings: Finding) -> Diagnosis:
    return Diagnosis(findings=findings, excess_ns=sum(each.excess_ns for each in findings), unexplained_ns=0, basis="")


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return RunData.replayed(setup_of_recipe(CHAT, tmp_path_factory.mktemp("chat")))


def test_what_cures_is_confirmed_and_what_tempts_is_refuted(chat: RunData) -> None:
    more_budget = change("max_num_batched_tokens=16384")
    proved = prove(chat, diagnosis(finding(chat, change("max_num_seqs=24"), tempting=(more_budget,)))).findings[0]
    good, bad = proved.proofs
    assert good.outcome == "confirmed" and good.change.sets == ("max_num_seqs=24",)
    assert good.cured is not None and good.low is not None and good.cured > 0.9 and 0.5 < good.low <= good.cured
    assert good.n == len(chat.outcomes) and good.iterations > 0 and not good.worse
    assert bad.outcome in ("refuted", "within noise") and bad.change == more_budget
    assert bad.cured is not None and bad.cured < 0.1
    figures = {name: (before, after) for name, _, before, after in good.figures}
    assert figures["ttft p50"][0] == float(np.percentile(chat.outcomes["ttft_ns"], 50))
    assert figures["ttft p50"][1] is not None and figures["ttft p50"][1] < figures["ttft p50"][0]
    assert confirmed(proved) == good


def test_a_second_choice_is_tried_where_the_first_does_not_hold(chat: RunData) -> None:
    three = (change("max_num_batched_tokens=16384"), change("max_num_seqs=24"), change("max_num_seqs=32"))
    proved = prove(chat, diagnosis(finding(chat, *three))).findings[0]
    assert [proof.change for proof in proved.proofs] == list(three[:2])
    assert confirmed(proved) == proved.proofs[1]


def test_a_cause_whose_change_holds_comes_first(chat: RunData) -> None:
    wrong = finding(chat, change("max_num_batched_tokens=16384"), name="QUEUE_BUDGET")
    right = finding(chat, change("max_num_seqs=24"))
    proved = prove(chat, diagnosis(wrong, right)).findings
    assert [each.id for each in proved] == ["QUEUE_SEATS", "QUEUE_BUDGET"]
    assert (proved[0].confidence, proved[1].confidence) == ("high", "low")


BOOKS = {
    **CHAT,
    "engine": {"cost": "S80", "budget": 4096, "seats": 64, "kv_tokens": 400000, "step": "mixed", "admit": "chunk"},
    "load": [
        {"cls": "chat", "n": 600, "arrive": "poisson(5.0)", "isl": "u(100,400)", "osl": "u(60,100)"},
        {"cls": "book", "n": 30, "arrive": "every(4,1)", "isl": "u(50000,60000)", "osl": "u(30,50)"},
    ],
}
"""Short prompts behind long ones."""


def test_who_pays_is_not_passed_over(tmp_path: Path) -> None:
    """A cap on one request's share of an iteration helps the many and costs the long ones a quarter: the price must say so."""
    data = RunData.replayed(setup_of_recipe(BOOKS, tmp_path))
    cap = "long_prefill_token_threshold=512"
    found = [replace(finding(data, change(*sets, tolerated=price)), classes=("chat",))
             for sets, price in (((cap,), 0.1), ((cap,), 0.5), (("front_door.max_prompt_tokens=5000",), 0.0))]  # fmt: skip
    dear, priced, refusing = (prove(data, diagnosis(each)).findings[0].proofs[0] for each in found)
    assert dear.outcome == "refuted" and dear.worse[0].startswith("class book: mean time to the last token")
    assert "worse beyond the price" in dear.reason
    assert priced.outcome == "confirmed" and not priced.worse and priced.n == 600
    assert refusing.outcome == "refuted" and refusing.worse == ("30 of 630 requests do not finish any more",)


def test_trouble_that_only_moves_is_seen(tmp_path: Path) -> None:
    """Prefill first shortens the wait of the long ones, and all running streams stand still for them."""
    data = RunData.replayed(setup_of_recipe(BOOKS, tmp_path, slo="ttft=2s,stall=250ms"))
    proof = prove(data, diagnosis(finding(data, change("batching.step=prefill_first")))).findings[0].proofs[0]
    assert proof.outcome == "refuted"
    assert any("in the longest gaps" in each for each in proof.worse) or any("met the SLO" in each for each in proof.worse)


def test_the_budget_is_kept(chat: RunData) -> None:
    own = len(chat.iterations)
    asked = finding(chat, change("max_num_seqs=24"), tempting=(change("max_num_seqs=2"), change("max_num_seqs=1")))
    none = prove(chat, diagnosis(asked), budget=own - 1).findings[0].proofs
    assert {proof.outcome for proof in none} == {"not replayed"} and "--prove" in none[0].reason
    two = prove(chat, diagnosis(asked), budget=2 * own + 1).findings[0].proofs
    assert two[0].outcome == "confirmed"
    assert "the budget is used up" in two[2].reason


def test_what_cannot_be_replayed_is_said(chat: RunData) -> None:
    odd = (change("max_num_seqs=4"), change("no_such_knob=1"), change("max_num_seqs=none"))
    proved = [prove(chat, diagnosis(finding(chat, each))).findings[0].proofs[0] for each in odd]
    assert {proof.outcome for proof in proved} == {"not replayed"}
    assert "changes nothing" in proved[0].reason and "unknown knob" in proved[1].reason and proved[2].reason


def test_workers_change_nothing(chat: RunData, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = diagnosis(
        finding(chat, change("max_num_batched_tokens=16384"), change("max_num_seqs=24"), tempting=(change("max_num_seqs=2"),)),
        finding(chat, change("batching.step=prefill_first"), measure="gap", name="PREFILL_STALLS_DECODE"),
    )  # fmt: skip
    alone = prove(chat, asked, workers=1)
    monkeypatch.setattr("tracekit.diagnosis.trial_crew.WORTH_A_WORKER", 0)
    told: list[tuple[int, int]] = []
    several = prove(chat, asked, workers=2, progress=lambda done, planned: told.append((done, planned)))
    assert alone == several
    assert [done for done, _ in told] == [1, 2, 3, 4] and told[-1] == (4, 4)


def test_it_can_be_stopped(chat: RunData, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = diagnosis(finding(chat, change("max_num_seqs=24"), tempting=(change("max_num_seqs=2"),)))
    for least in (10**9, 0):
        monkeypatch.setattr("tracekit.diagnosis.trial_crew.WORTH_A_WORKER", least)
        with pytest.raises(KeyboardInterrupt):
            prove(chat, asked, cancelled=lambda: True)


def test_what_does_not_matter_is_left_out_of_a_change(chat: RunData) -> None:
    """Seats cure; the budget beside them does nothing: the recommendation is the seats alone, and says why."""
    both = change("max_num_batched_tokens=8192", "max_num_seqs=24")
    proved = prove(chat, diagnosis(finding(chat, both))).findings[0]
    full, lean = proved.proofs
    assert full.change == both and full.outcome == "confirmed" and full.ablated
    assert "without max_num_batched_tokens 100 % of it is gone; without max_num_seqs 0 % of it is gone" in full.reason
    assert (lean.change.sets, lean.change.knob, lean.change.old, lean.change.new) == (
        ("max_num_seqs=24",), "max_num_seqs", "4", "24")  # fmt: skip
    assert confirmed(proved) == lean and proved.changes == (lean.change, both)
    three = change("max_num_seqs=24", "max_num_batched_tokens=8192", "long_prefill_token_threshold=4000")
    assert confirmed(prove(chat, diagnosis(finding(chat, three))).findings[0]).change.sets == ("max_num_seqs=24",)  # type: ignore[union-attr]


def test_what_matters_stays_in_a_change(chat: RunData, tmp_path: Path) -> None:
    """Both the seats and the budget are too few: without either the cure is smaller, so both are kept."""
    short = {**CHAT["engine"], "seats": 5, "budget": 28}  # type: ignore[dict-item]
    data = RunData.replayed(setup_of_recipe({**CHAT, "engine": short}, tmp_path, slo="ttft=1s"))
    both = change("max_num_batched_tokens=4096", "max_num_seqs=20")
    proved = prove(data, diagnosis(finding(data, both))).findings[0]
    assert [proof.change for proof in proved.proofs] == [both] and proved.proofs[0].ablated
    assert "without max_num_batched_tokens 98 % of it is gone; without max_num_seqs 98 % of it is gone" in proved.proofs[0].reason
    assert confirmed(proved) == proved.proofs[0]


def test_an_overloaded_engine_leaves_room_to_replay_more_of_them(tmp_path: Path) -> None:
    """Its iterations are few and long; those of engines that cope are many and short, and the proof waits for them."""
    load = [{"cls": "c", "n": 300, "arrive": "poisson(1.6)", "isl": 8192, "osl": 250}]
    cost = {"c0": 0.016, "c1": 1 / 9800, "c2": 0.0001, "c3": 6e-8, "c4": 0}
    engine = {"cost": cost, "budget": 8192, "seats": 128, "kv_tokens": 1200000, "step": "mixed", "admit": "chunk"}
    data = RunData.replayed(setup_of_recipe({"seed": 3, "engine": engine, "load": load}, tmp_path))
    more = change("fleet.replicas=3", "fleet.router=least_tokens")
    proof = prove(data, diagnosis(finding(data, more, name="OVERLOAD"))).findings[0].proofs[0]
    assert proof.outcome == "confirmed" and proof.iterations > 5 * len(data.iterations)
    bench = Bench(data, 10_000_000)
    assert bench.most(more.sets) == 3 * bench.most(("max_num_seqs=64",)) >= proof.iterations
    shares = Bench(data, 5 * len(data.iterations)).affordable([("max_num_seqs=64",), more.sets])
    assert sum(shares.values()) <= 5 * len(data.iterations)

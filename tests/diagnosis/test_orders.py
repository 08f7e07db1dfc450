"""Whom an order passes over: the urgent under one that knows no priorities, the long and the less urgent where nothing ages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.diagnosis.loads import setup_of_recipe
from tracekit.diagnosis import RunData
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.finding import Diagnosis, Finding, confirmed
from tracekit.diagnosis.proof import prove

ENGINE = {"cost": "S80", "budget": 2048, "seats": 16, "kv_tokens": 400000, "step": "mixed", "admit": "chunk"}
JOBS = {"cls": "batch", "n": 300, "arrive": "at(0)", "isl": "u(400,600)", "osl": "u(100,200)", "priority": 10}
ASKED = {"cls": "inter", "n": 60, "arrive": "poisson(2.0) from 1", "isl": "u(100,300)", "osl": "u(20,40)", "priority": 0}
SHORT = {"cls": "short", "n": 1000, "arrive": "poisson(28)", "isl": "u(300,600)", "osl": "u(10,20)"}
LONG = {"cls": "long", "n": 40, "arrive": "poisson(1.2)", "isl": "u(3000,4000)", "osl": "u(10,20)"}
SHORTEST = ("order.by=shortest_first",)
FLOOD = {"cls": "paid", "n": 900, "arrive": "poisson(19)", "isl": "u(700,1100)", "osl": "u(60,100)", "priority": 0}
FREE = {"cls": "free", "n": 150, "arrive": "poisson(2.6)", "isl": "u(300,600)", "osl": "u(20,40)", "priority": 5}


def told(folder: Path, load: list[dict[str, Any]], slo: str, *sets: str, **engine: Any) -> tuple[RunData, Diagnosis]:
    recipe = {"seed": 9, "engine": {**ENGINE, **engine}, "load": load}
    data = RunData.replayed(setup_of_recipe(recipe, folder, slo=slo, sets=sets))
    return data, diagnose(data)


def evidence(finding: Finding, metric: str) -> float:
    return next(each.value for each in finding.evidence if each.metric == metric)  # type: ignore[return-value]


def test_priorities_that_the_order_ignores(tmp_path: Path) -> None:
    data, found = told(tmp_path, [JOBS, ASKED], "ttft=2s")
    first = found.findings[0]
    assert first.id == "STARVATION" and first.classes == ("inter",)
    assert evidence(first, "behind less urgent") > 0.9
    assert (first.changes[0].sets, first.changes[0].old) == (("policy=priority",), "fcfs")
    proof = confirmed(prove(data, found, workers=1).findings[0])
    assert proof is not None and proof.change.sets[0] == "policy=priority"


def test_who_is_urgent_and_gets_through_is_left_alone(tmp_path: Path) -> None:
    _, met = told(tmp_path, [JOBS, ASKED], "ttft=200s")
    assert met.findings == ()
    level = [{**each, "priority": 3} for each in (JOBS, ASKED)]
    for load, sets in ((level, ()), ([JOBS, ASKED], ("policy=priority", "preemption.to_admit=true"))):
        (tmp_path / f"{len(sets)}").mkdir()
        _, found = told(tmp_path / f"{len(sets)}", load, "ttft=2s", *sets)
        assert "STARVATION" not in [each.id for each in found.findings]


def test_long_requests_under_shortest_first(tmp_path: Path) -> None:
    data, found = told(tmp_path, [SHORT, LONG], "ttft=4s", *SHORTEST, budget=256)
    first = found.findings[0]
    assert first.id == "STARVATION" and first.share > 0.9
    assert (data.source.prompt_tokens[list(first.where.requests)] >= 3000).all() and len(first.where.requests) >= 10
    victims = data.outcomes["ttft_ns"] > 4e9
    assert evidence(first, "longest wait") == float(data.outcomes["queue_ns"][victims].max()) / 1e9
    assert evidence(first, "overtaken") > 0.5
    aging, arrival = first.changes
    assert aging.knob == "order.aging_s" and 0 < float(aging.new) < 5 and arrival.sets == ("order.by=fcfs",)
    proof = confirmed(prove(data, found, workers=1).findings[0])
    assert proof is not None and proof.change == aging


def test_less_urgent_requests_behind_a_flood(tmp_path: Path) -> None:
    data, found = told(tmp_path, [FLOOD, FREE], "ttft=3s", "policy=priority", seats=400, budget=512)
    first = found.findings[0]
    assert first.id == "STARVATION" and first.classes == ("free",)
    assert evidence(first, "overtaken") > 0.5
    assert first.changes[0].knob == "order.aging_s" and len(first.changes) == 1
    proof = confirmed(prove(data, found, workers=1).findings[0])
    assert proof is not None and proof.change == first.changes[0]
    late = data.outcomes["ttft_ns"] > 3e9
    assert evidence(first, "passed over") == late[data.source.priority[data.outcomes["request"]] > 0].sum()  # type: ignore[index]


@pytest.mark.parametrize("sets", [SHORTEST, ("order.by=fcfs",), (*SHORTEST, "order.aging_s=0.05")])
def test_an_order_that_harms_nobody_is_not_spoken_of(sets: tuple[str, ...], tmp_path: Path) -> None:
    load = [{**SHORT, "n": 500, "arrive": "poisson(8)"}, {**LONG, "n": 20, "arrive": "poisson(0.3)"}]
    data, found = told(tmp_path, load, "ttft=1500ms", *sets)
    assert found.findings == ()
    assert float(np.quantile(data.outcomes["ttft_ns"], 0.99)) < 1.5e9

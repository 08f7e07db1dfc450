"""What detectors look at is the attribution itself: no second split, and nothing lost on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from replay_engine.types import Refusal
from tests.diagnosis.loads import CHAT, setup_of_recipe
from tracekit.diagnosis import RunData
from tracekit.diagnosis.attribution import attribute
from tracekit.diagnosis.parts import FAMILIES, KINDS, Parts
from tracekit.diagnosis.view import View

TIGHT = {"cost": "S80", "budget": 4096, "seats": 16, "kv_tokens": 6000, "step": "mixed", "admit": "chunk"}
LOADS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "seats": ({}, ()),
    "asynchronous": ({}, ("async_scheduling=true",)),
    "short KV": ({"engine": TIGHT}, ()),
    "swapped": ({"engine": TIGHT}, ("preemption.mode=swap", "preemption.host_blocks=4000")),
    "prefill first": ({}, ("batching.step=prefill_first", "max_num_seqs=7", "max_num_batched_tokens=512")),
    "a fleet that fails": ({"fleet": {"replicas": 2, "route": "round_robin"}}, ("fleet.fail=replica1@60s:20s",)),
    "a client's slots": ({"client": {"max_in_flight": 3}}, ()),
}


@pytest.fixture(scope="module", params=LOADS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunData:
    changed, sets = LOADS[request.param]
    return RunData.replayed(setup_of_recipe({**CHAT, **changed}, tmp_path_factory.mktemp("parts"), sets=sets))


def test_kinds_sum_to_the_nanosecond(run: RunData) -> None:
    parts, rows = Parts(run), run.outcomes
    assert tuple(parts.first) == tuple(parts.later) == KINDS
    done = rows["e2e_ns"] >= 0
    assert done.any()
    assert np.array_equal(sum(parts.first.values())[done], rows["ttft_ns"][done])  # type: ignore[index]
    assert np.array_equal(sum(parts.later.values())[done], (rows["e2e_ns"] - rows["ttft_ns"])[done])  # type: ignore[index]
    assert not parts.first["not_explained"].any() and not parts.later["not_explained"].any()
    whole = attribute(run)
    for name, reasons in FAMILIES.items():
        assert np.array_equal(parts.first[name], sum(whole.of(f"queue.{each.name}", "first") for each in reasons))
    assert set().union(*FAMILIES.values()) == set(Refusal) - {Refusal.none}


def test_a_weighed_wait_is_the_same_time_seen_from_the_iterations(run: RunData) -> None:
    parts = Parts(run)
    total = np.zeros(len(run.outcomes), np.int64)
    for name in FAMILIES:
        found = parts.waited(parts.refused(name))
        assert np.array_equal(found, parts.first[name]), name
        total += found
    everything = parts.waited(np.ones(len(run.iterations)))
    assert np.array_equal(everything, total + parts.first["unrefused"])
    half = parts.waited(np.full(len(run.iterations), 0.5))
    assert np.allclose(half, everything / 2, atol=len(run.iterations))


def test_all_excess_stands_somewhere(run: RunData) -> None:
    view = View(run)
    assert view.excess_ns > 0
    for shared, excess in ((view.first, view.first_excess), (view.later, view.later_excess)):
        assert set(shared) == set(KINDS)
        assert np.allclose(sum(shared.values()), excess) and all(each.min() >= 0 for each in shared.values())
    waits = sum(each for name, each in view.first.items() if name not in ("prefill", "first_step", "decode"))
    spent = sum(each for name, each in Parts(run).first.items() if name not in ("prefill", "first_step", "decode"))
    assert (waits <= spent + 1.0).all()  # type: ignore[operator]

"""What a request is held to: the SLO where there is one, else a multiple of what it takes alone, as a replay shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.diagnosis.loads import CHAT, setup_of_recipe
from tracekit.diagnosis import RunData
from tracekit.diagnosis.yardstick import GRACE_NS, MEASURES, SLACK, Yardstick, alone_ns

ALONE = {**CHAT, "load": [{"cls": "c", "n": 12, "arrive": "every(300,0)", "isl": "u(100,20000)", "osl": "u(1,300)"}]}


@pytest.mark.parametrize("sets", [(), ("long_prefill_token_threshold=512",), ("async_scheduling=true",)])
def test_alone_is_what_a_lone_request_takes(tmp_path: Path, sets: tuple[str, ...]) -> None:
    data = RunData.replayed(setup_of_recipe(ALONE, tmp_path, sets=sets))
    first, later, _ = alone_ns(data)
    rows = data.outcomes
    assert np.allclose(rows["ttft_ns"], first, rtol=1e-3)
    assert np.allclose(rows["e2e_ns"] - rows["ttft_ns"], later, rtol=1e-3, atol=1e3)
    yardstick = Yardstick.of(data)
    for measure in MEASURES:
        assert np.nansum(yardstick.excess(rows, measure)) == 0


def test_excess_is_what_is_beyond_the_limit(tmp_path: Path) -> None:
    data = RunData.replayed(setup_of_recipe(CHAT, tmp_path))
    first, _, _ = alone_ns(data)
    free = Yardstick.of(data)
    assert free.basis == "no SLO: 3 times what a request takes alone on the idle engine, and 50 ms"
    beyond = np.maximum(data.outcomes["ttft_ns"] - SLACK * first - GRACE_NS, 0)
    assert np.allclose(free.excess(data.outcomes, "ttft"), beyond)
    assert beyond.sum() > 0


def test_an_slo_beats_it_part_by_part(tmp_path: Path) -> None:
    data = RunData.replayed(setup_of_recipe(CHAT, tmp_path, slo="ttft=2s,tpot=20ms"))
    held = Yardstick.of(data)
    assert held.basis.startswith("the SLO (ttft, tpot); elsewhere 3 times")
    rows = data.outcomes
    assert np.allclose(held.excess(rows, "ttft"), np.maximum(rows["ttft_ns"] - 2e9, 0))
    later = np.maximum(rows["e2e_ns"] - rows["ttft_ns"] - 20e6 * (rows["output_tokens"] - 1), 0)
    assert np.allclose(np.nan_to_num(held.excess(rows, "tpot")), later, atol=1e3)
    assert np.allclose(held.limits["e2e"], held.limits["ttft"] + held.limits["tpot"])

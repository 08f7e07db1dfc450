"""The benchmark of a calibrated simulator, with a simulator in the engine's place: what it compares, by value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.unseen import Unseen, compared, predicted, settled, simulated
from replay_engine.profile import Latency

COSTS = Latency(floor_ns=4e6, a_ns=4e6, b_ns=8e4, c_ns=90.0, d_ns=1e5, e_ns=1e3, h0_ns=2e5)
SOURCE = Unseen(total=40, gap_ns=3e7)


def test_the_same_costs_differ_in_nothing() -> None:
    one = simulated(COSTS, SOURCE)
    assert set(compared(one, simulated(COSTS, SOURCE)).values()) == {0.0}
    assert predicted(COSTS, one.iterations).tolist() == one.iterations["duration_ns"].tolist()


def test_other_costs_show_by_as_much_as_they_differ() -> None:
    """Everything, arrivals too, half as long again: so are TTFT and TPOT."""
    slower = Latency(**{name: 1.5 * getattr(COSTS, name) for name in COSTS.__slots__})
    source = replace(SOURCE, gap_ns=1.5 * SOURCE.gap_ns)
    found = compared(simulated(slower, source), simulated(COSTS, SOURCE))
    assert list(found) == ["ttft_p50", "ttft_p90", "tpot_p50", "tpot_p90"]
    assert list(found.values()) == pytest.approx([0.5] * 4, rel=0.01)
    rows = simulated(COSTS, SOURCE).iterations
    assert np.median(predicted(slower, rows) / rows["duration_ns"]) == pytest.approx(1.5, rel=0.01)


def test_the_rate_meets_the_utilisation() -> None:
    assert simulated(COSTS, settled(COSTS, 60, 0.6)).utilisation == pytest.approx(0.6, abs=0.05)

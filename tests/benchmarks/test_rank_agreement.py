"""The benchmark of rank agreement, with a simulator in the engine's place: what it compares, by value."""

from __future__ import annotations

import pytest

from benchmarks.rank_agreement import OBJECTIVES, agreement, held_out_regret, middle, objectives, redrawn, settings
from benchmarks.unseen import Unseen, simulated
from replay_engine.profile import Latency

COSTS = Latency(floor_ns=4e6, a_ns=4e6, b_ns=8e4, c_ns=90.0, d_ns=1e5, e_ns=1e3, h0_ns=2e5)
SOURCE = Unseen(total=60, gap_ns=2.2e7)


def test_there_are_twenty_four_settings_and_none_twice() -> None:
    found = settings()
    assert len(found) == len(set(found.values())) == 24
    assert len(settings(quick=True)) == 6


def test_an_engine_of_other_speed_is_ranked_alike_and_one_of_another_make_is_not() -> None:
    slower = Latency(**{name: 1.1 * getattr(COSTS, name) for name in COSTS.__slots__})
    # prompts for nothing, and each further sequence as dear as an iteration: few seats win
    other = Latency(floor_ns=1e5, a_ns=1e5, b_ns=1.0, d_ns=2e7)
    rows = {}
    for name, costs in (("true", COSTS), ("slower", slower), ("other", other)):
        rows[name] = [objectives(simulated(costs, SOURCE, each)) for each in settings().values()]
    for name in OBJECTIVES:
        assert agreement(rows["true"], rows["true"], name) == (1.0, 0.0)
    tau, regret = agreement(rows["slower"], rows["true"], OBJECTIVES[0])
    assert tau > 0.8
    assert regret < 0.03
    assert agreement(rows["other"], rows["true"], "e2e_mean")[0] < tau


def test_a_regret_is_held_out_of_the_rounds_that_chose_the_best() -> None:
    """Of two settings that are alike but for noise, the one that was less lucky costs something in the mean of all rounds."""
    pairs = ((100.0, 90.0), (90.0, 100.0), (100.0, 96.0), (96.0, 100.0))
    noisy = [[{"e2e_mean": one}, {"e2e_mean": other}] for one, other in pairs]
    first = [{"e2e_mean": 1.0}, {"e2e_mean": 2.0}]
    found = held_out_regret(first, noisy, "e2e_mean")
    # medians of the other three: 96, 100 -> the first, 100, 96 -> the second, and so on
    assert found == (0 + (90 / 100 - 1) + 0 + (96 / 100 - 1)) / 4
    worse = [[{"e2e_mean": 110.0}, {"e2e_mean": 100.0}]] * 3
    assert round(held_out_regret(first, worse, "e2e_mean"), 9) == 0.1


def test_rounds_drawn_again_say_how_far_a_regret_can_be_trusted() -> None:
    predicted = [{"e2e_mean": value} for value in (1.0, 2.0, 3.0)]
    sure = [[{"e2e_mean": value} for value in (104.0, 100.0, 150.0)]] * 4
    tau, regret = redrawn(predicted, sure, "e2e_mean")
    assert tau[0] == tau[1]
    assert regret[0] == regret[1] == 104 / 100 - 1
    torn = [[{"e2e_mean": first}, {"e2e_mean": 100.0}, {"e2e_mean": 150.0}] for first in (90.0, 120.0, 95.0, 130.0)]
    tau, regret = redrawn(predicted, torn, "e2e_mean")
    assert regret[0] == 0.0
    assert 0.15 < regret[1] <= 0.3
    assert tau[0] < tau[1] == 1.0


def test_a_slower_minute_of_the_machine_does_not_choose_between_settings() -> None:
    """Of two settings one is 10 % better in two rounds of three; medians as they stand say the other, 190 to 200."""
    rounds = [[{"e2e_mean": one}, {"e2e_mean": other}] for one, other in ((100.0, 110.0), (200.0, 190.0), (400.0, 440.0))]
    first, second = (each["e2e_mean"] for each in middle(rounds))
    assert second / first == pytest.approx(1.1)
    assert first * second == pytest.approx(200 * 190)
    assert middle([[{"e2e_mean": 0.0}], [{"e2e_mean": 3.0}], [{"e2e_mean": 5.0}]]) == [{"e2e_mean": 3.0}]

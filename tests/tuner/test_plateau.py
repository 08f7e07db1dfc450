"""Which configuration is taken, on landscapes that are known: a plateau, cliffs, changes that bring nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import create_trial

from tuner.objective import OBJECTIVES, goodput
from tuner.plateau import choose
from tuner.proposing import distributions_of
from tuner.space import Knob, Point, Space

SPACE = Space(knobs=tuple(Knob(name=name, levels=tuple(range(8))) for name in "abc"))
CURRENT = {"a": 7, "b": 7, "c": 7}
Height = Callable[[Point], float]


class Field:
    """What configurations come to, known without a replay: two windows, the second twice as good."""

    def __init__(self, height: Height) -> None:
        self.plan = SimpleNamespace(space=SPACE, current=CURRENT, objectives=(OBJECTIVES["goodput"],))
        self._height = height

    def need(self, wants: Any) -> None:
        pass

    def wants(self, points: Iterable[Point], side: str) -> list[Any]:
        return list(points)

    def results(self, point: Point, side: str) -> list[dict[str, float]]:
        return [{"met": self._height(point) * times, "window_s": 1.0} for times in (1, 2)]

    def value(self, results: Sequence[Any]) -> float:
        return goodput(results)

    def derivable(self, point: Point) -> bool:
        return True


def taken(height: Height, tried: Sequence[Point]) -> tuple[Point, str, int]:
    """Of trials at some points: the one that is taken, why, and how many others come to the same."""
    field: Any = Field(height)
    trials = [create_trial(params=point, distributions=distributions_of(SPACE), value=1.5 * height(point)) for point in tried]
    for number, trial in enumerate(trials):
        trial.number = number
    winner, alike = choose(field, trials)
    return winner.point, winner.why, len(alike) - 1


def edge(point: Point) -> float:
    """Only ``a`` matters: best at 3, and half of it is lost at 4."""
    return 100 - 3 * abs(3 - point["a"]) - 50 * (point["a"] > 3)


def test_beside_a_cliff_that_all_have_only_what_matters_is_changed() -> None:
    """However steep the cliff is beside the one or the other."""
    for steeper in (0.0, 3.0, -3.0):

        def height(point: Point, steeper: float = steeper) -> float:
            return edge(point) - steeper * (point["a"] > 3) * (point["b"] < 7)

        tried = [CURRENT, {"a": 3, "b": 2, "c": 5}, {"a": 3, "b": 4, "c": 1}]
        assert taken(height, tried)[:2] == ({"a": 3, "b": 7, "c": 7}, "is nearest to the current policy"), steeper


def test_a_step_back_from_a_cliff_is_taken_where_it_costs_little() -> None:
    def height(point: Point) -> float:
        return 100 - (3 - point["a"]) if point["a"] <= 3 else 50

    point, why, _ = taken(height, [CURRENT, {"a": 3, "b": 7, "c": 7}])
    assert (point, why) == ({"a": 2, "b": 7, "c": 7}, "is one step back from a cliff")


def test_one_without_a_cliff_is_preferred_to_a_nearer_one_and_not_called_the_nearest() -> None:
    def height(point: Point) -> float:
        return 100 if point["b"] <= 4 or point["a"] == 3 else 30

    point, why, others = taken(height, [CURRENT, {"a": 3, "b": 7, "c": 7}, {"a": 3, "b": 3, "c": 7}])
    assert (point, why) == ({"a": 3, "b": 3, "c": 7}, "is nearest to the current policy of those without a cliff beside them")
    assert others == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=6), st.sampled_from([0.0, 50.0]),
       st.integers(1, 6))
def test_a_knob_that_does_not_matter_is_never_changed(others: list[tuple[int, int]], cliff: float, best: int) -> None:
    def height(point: Point) -> float:
        return 100 - 3 * abs(best - point["a"]) - cliff * (point["a"] > best)

    tried = [CURRENT, *({"a": best, "b": b, "c": c} for b, c in others)]
    point, _, _ = taken(height, tried)
    assert {name: point[name] for name in "bc"} == {"b": 7, "c": 7}


@pytest.mark.parametrize("flat", [0.0, 0.5])
def test_what_cannot_be_told_from_the_current_policy_is_the_current_policy(flat: float) -> None:
    def height(point: Point) -> float:
        return 100 - flat * (point["a"] != 3)

    assert taken(height, [CURRENT, {"a": 3, "b": 2, "c": 7}])[0] == CURRENT

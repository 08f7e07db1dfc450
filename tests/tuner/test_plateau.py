"""Which configuration is taken, on landscapes that are known: a plateau, cliffs, changes that bring nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from optuna.trial import create_trial

from tuner.estimate import neighbours_at_most, steps_back_at_most
from tuner.objective import OBJECTIVES, goodput
from tuner.plateau import LOOKED_AT, choose
from tuner.proposing import distributions_of
from tuner.space import Knob, Point, Space

SPACE = Space(knobs=tuple(Knob(name=name, levels=tuple(range(8))) for name in "abc"))
CURRENT = {"a": 7, "b": 7, "c": 7}
Height = Callable[[Point], float]


class Field:
    """What configurations come to, known without a replay: two windows, the second twice as good."""

    def __init__(self, height: Height, space: Space = SPACE, current: Point = CURRENT) -> None:
        self.plan = SimpleNamespace(space=space, current=current, objectives=(OBJECTIVES["goodput"],))
        self._height = height
        self.replayed: set[tuple[Any, ...]] = set()

    def need(self, wants: Any) -> None:
        self.replayed |= {tuple(point.items()) for point in wants}

    def wants(self, points: Iterable[Point], side: str) -> list[Any]:
        return list(points)

    def results(self, point: Point, side: str) -> list[dict[str, float]]:
        self.replayed.add(tuple(point.items()))
        return [{"met": self._height(point) * times, "window_s": 1.0} for times in (1, 2)]

    def value(self, results: Sequence[Any]) -> float:
        return goodput(results)

    def derivable(self, point: Point) -> bool:
        return True


def taken(height: Height, tried: Sequence[Point], field: Any = None) -> tuple[Point, str, int]:
    """Of trials at some points: the one that is taken, why, and how many others come to the same."""
    field = field or Field(height)
    space = field.plan.space
    known = distributions_of(space)
    trials = [create_trial(params=point, distributions={name: known[name] for name in point}, value=1.5 * height(point))
              for point in tried]  # fmt: skip
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


MIXED = Space(knobs=(Knob(name="a", levels=tuple(range(5))), Knob(name="b", levels=tuple(range(4))),
                     Knob(name="c", levels=("x", "y", "z", "w"), ordered=False),
                     Knob(name="d", levels=(1, 2, 3), when=("c", ("y", "w")))))  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_looking_for_a_plateau_takes_no_more_replays_than_a_dry_run_counts(data: st.DataObject) -> None:
    """On mesas: within drawn levels of each knob a hundred or hardly less, one step beyond them a tenth."""
    points = list(MIXED.points())
    within = {knob.name: data.draw(st.sets(st.sampled_from(knob.levels), min_size=1)) for knob in MIXED.knobs}
    less = data.draw(st.sampled_from([0.0, 0.3, 3.0]))

    def height(point: Point) -> float:
        if any(level not in within[name] for name, level in point.items()):
            return 10.0
        return 100.0 - less * sum(MIXED.knob(name).index(level) for name, level in point.items())

    top = [point for point in points if height(point) > 50] or points
    tried = data.draw(st.lists(st.sampled_from(top), min_size=1, max_size=6, unique_by=lambda point: tuple(point.items())))
    field = Field(height, MIXED, points[0])
    _, why, _ = taken(height, tried, field)
    asked = len(field.replayed - {tuple(point.items()) for point in tried})
    without = LOOKED_AT * neighbours_at_most(MIXED) + len(MIXED.knobs)
    assert asked <= without + steps_back_at_most(MIXED) * neighbours_at_most(MIXED)
    event(why)


def test_steps_back_from_cliffs_are_counted() -> None:
    """The first stands beside a cliff of each knob, and each step back is looked at: of six neighbours five are new."""
    cliffs = Field(lambda point: 10.0 if any(level > 3 for level in point.values()) else 100.0)
    taken(cliffs._height, [{"a": 3, "b": 3, "c": 3}], cliffs)
    smooth = Field(lambda point: 100.0)
    taken(smooth._height, [{"a": 3, "b": 3, "c": 3}], smooth)
    first = {(a, b, c) for a in range(2, 5) for b in range(2, 5) for c in range(2, 5) if (a, b, c).count(3) >= 2}
    asked = {tuple(level for _, level in point) for point in cliffs.replayed}
    assert first <= asked
    assert {(1, 3, 3), (2, 2, 3), (2, 4, 3), (3, 3, 1)} <= asked
    assert steps_back_at_most(SPACE) == 3 and neighbours_at_most(SPACE) == 6
    assert steps_back_at_most(MIXED) == 1 + 1 + 2 + 1 and neighbours_at_most(MIXED) == 2 + 2 + 3 + 2

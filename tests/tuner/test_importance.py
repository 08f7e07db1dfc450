"""Which knobs matter: by value where trials tell it, and nothing where they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuner.importance import Importance, importance_of
from tuner.proposing import FULL, distributions_of
from tuner.space import BUDGET, SEQS, Knob, Point, Space
from tuner.surrogate import Surrogate

SPACE = Space(knobs=(Knob(name="a", levels=tuple(range(8))), Knob(name="b", levels=tuple(range(8))),
                     Knob(name="c", levels=("x", "y", "z"), ordered=False)))  # fmt: skip


def trials_of(n: int, seed: int, value: Callable[[Point, np.random.Generator], float], **attributes: Any) -> list[FrozenTrial]:
    rng, found = np.random.default_rng(seed), []
    for number, at in enumerate(rng.permutation(192)[:n]):
        point = list(SPACE.points())[int(at)]
        pruned = number % 3 == 2 and attributes.get("pruned", False)
        told: dict[str, Any] = {"state": TrialState.PRUNED, "user_attrs": {FULL: value(point, rng)}} if pruned else {
            "value": value(point, rng)}  # fmt: skip
        found.append(create_trial(params=point, distributions=distributions_of(SPACE), **told))
        found[-1].number = number
    return found


@pytest.mark.parametrize("pruned", [False, True])
def test_shares_are_those_of_the_variance(pruned: bool) -> None:
    """Of 3 a + [c = y] 10 over the space: a's variance is 9 x 5.25, c's 100 x 2 / 9. Pruned trials count too."""
    trials = trials_of(48, 1, lambda point, rng: 3 * point["a"] + 10 * (point["c"] == "y"), pruned=pruned)
    found = importance_of(SPACE, trials, 0)
    whole = 9 * 5.25 + 100 * 2 / 9
    assert found.n == 48 and found.why is None and found.r2 is not None and found.r2 > 0.95
    assert found.shares == pytest.approx({"a": 9 * 5.25 / whole, "c": 100 * 2 / 9 / whole, "b": 0.0}, abs=0.06)
    assert list(found.shares)[:2] == ["a", "c"]
    assert found == importance_of(SPACE, trials, 0)


def test_trials_that_differ_by_luck_alone_tell_of_no_knob() -> None:
    told = 0
    for seed in range(60):
        n = (12, 16, 24, 48)[seed % 4]
        found = importance_of(SPACE, trials_of(n, seed, lambda point, rng: float(rng.normal(10, 1))), seed)
        assert found.n == n and bool(found.shares) is (found.why is None)
        told += found.why is None
    assert told <= 2, told


@pytest.mark.parametrize(("n", "value", "expected"), [
    (0, 1.0, "0 trials are too few for 3 knobs"), (11, 1.0, "11 trials are too few for 3 knobs"),
    (13, 7.5, "all 13 trials come to the same"),
])  # fmt: skip
def test_why_nothing_is_told(n: int, value: float, expected: str) -> None:
    found = importance_of(SPACE, trials_of(n, 2, lambda point, rng: value), 0)
    assert found == Importance(n=n, why=expected)


@pytest.mark.parametrize(("seats", "expected"), [
    ((256, 512), "hardly any configuration of the space is possible"),  # each has more seats than its budget
    ((128, 256), "no knob alone changes what is predicted"),  # one has not, and a step of either knob from it has
])  # fmt: skip
def test_where_no_knob_can_be_turned_nothing_is_told_though_trials_predict_one_another(seats: tuple[int, int],
                                                                                       expected: str) -> None:  # fmt: skip
    space = Space(knobs=(Knob(name=BUDGET, levels=(64, 128)), Knob(name=SEQS, levels=seats)))
    known, trials = distributions_of(space), []
    for budget in (64, 128):
        for count in (*seats, *seats, *seats):
            point = {BUDGET: budget, SEQS: count}
            trials.append(create_trial(params=point, distributions=known, value=budget / 64 + 3.0 * (count == seats[0])))
            trials[-1].number = len(trials) - 1
    found = importance_of(space, trials, 0)
    assert (found.n, found.why, found.shares) == (12, expected, {})
    assert found.r2 is not None and found.r2 > 0.95


def test_a_trial_is_predicted_from_the_others_as_if_it_were_not_there() -> None:
    """By the textbook: the kernel of the others, for values whose mean is 0."""
    rng, lengths, noise = np.random.default_rng(4), np.array([0.6, 0.9]), 1e-3
    x = rng.random((9, 2))
    y = np.sin(3 * x[:, 0]) + x[:, 1]
    y -= y.mean()

    def kernel(a: Any, b: Any) -> Any:
        far = np.sqrt(5 * (((a[:, None] - b[None]) / lengths) ** 2).sum(-1))
        return (1 + far + far**2 / 3) * np.exp(-far)

    model = Surrogate.given(x, y, np.log([*lengths, noise]))
    for at, expected in enumerate(model.left_out(y)):
        rest = np.delete(np.arange(9), at)
        solved = np.linalg.solve(kernel(x[rest], x[rest]) + (noise + 1e-8) * np.eye(8), y[rest])
        assert expected == pytest.approx(float((kernel(x[at : at + 1], x[rest]) @ solved)[0]), abs=1e-9)

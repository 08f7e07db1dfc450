"""What an answer comes to by each objective where no trial says it: by value, and unknown where a replay cannot say it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from replay_engine.config import ConfigError
from replay_engine.policy import Policy, default_policy
from replay_engine.profile import DEFAULT_PROFILE, load_profile
from tracekit.errors import InputError, TracekitError, UsageError
from tuner.answer import _reached
from tuner.objective import OBJECTIVES
from tuner.plateau import Candidate

PROFILE = load_profile(DEFAULT_PROFILE)
POLICY = default_policy(PROFILE)
Served = Callable[[Policy, float], int]


def reached(names: str, served: Served, trials: list[Any] | None = None, trial: int | None = None) -> list[float | None]:
    """By each objective: of two windows of 100 s and 1,000 requests, so many of each ``served`` at a policy and a rate."""

    def result(cell: Any) -> dict[str, Any]:
        met = served(cell.policy, cell.rate)
        return {"met": met, "n": 1000, "met_tokens": 100 * met, "window_s": 100.0}

    plan = SimpleNamespace(
        objectives=tuple(OBJECTIVES[name] for name in names.split(",")), target=0.9, price=2.0, cards=3, profile=PROFILE,
        trace=SimpleNamespace(search=("early", "late")),
        cell=lambda policy, window, rate=1.0: SimpleNamespace(policy=policy, rate=rate, window=window),
    )  # fmt: skip
    study: Any = SimpleNamespace(plan=plan, trials=lambda: trials or [])
    lookup: Any = SimpleNamespace(replays=SimpleNamespace(result=result))
    return _reached(study, lookup, Candidate(point={}, value=1.0, trial=trial), POLICY)


def test_what_no_trial_says_is_replayed() -> None:
    """Up to twice the rate 950 of a thousand are served on one engine, above it 500; four engines serve everybody."""

    def served(policy: Policy, rate: float) -> int:
        return 1000 if policy.rules.fleet.replicas >= 4 else 950 if rate <= 2 else 500

    assert reached("goodput,cost,capacity", served) == [
        pytest.approx(1900 / 200), pytest.approx(2.0 * 3 * 200 / 3600 / 190_000 * 1e6), pytest.approx(2.0, rel=1e-9),
    ]  # fmt: skip
    assert reached("replicas", lambda policy, rate: 1000 if policy.rules.fleet.replicas >= 3 else 10) == [3.0]


def test_a_trial_of_its_own_says_it_and_nothing_is_replayed() -> None:
    def never(policy: Policy, rate: float) -> int:
        raise AssertionError("replayed")

    trials = [SimpleNamespace(number=3, values=[9.0, 8.0]), SimpleNamespace(number=4, values=[7.0, 2.5])]
    assert reached("goodput,replicas", never, trials, trial=4) == [7.0, 2.5]


@pytest.mark.parametrize("error", [
    TracekitError("the database is lost"), UsageError("no such model"), InputError("cut short"), ConfigError("KV does not fit"),
    ZeroDivisionError(), OverflowError(),
], ids=lambda error: type(error).__name__)  # fmt: skip
def test_what_cannot_be_replayed_is_unknown_and_the_others_are_said(error: Exception) -> None:
    def served(policy: Policy, rate: float) -> int:
        if rate > 4:
            raise error
        return 900

    assert reached("capacity,goodput", served) == [None, pytest.approx(9.0)]


def test_where_no_number_of_replicas_serves_enough_it_is_unknown() -> None:
    assert reached("replicas,goodput", lambda policy, rate: 899) == [None, pytest.approx(8.99)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), KeyError("met")], ids=lambda error: type(error).__name__)
def test_an_interrupt_and_an_error_of_the_program_are_raised(error: BaseException) -> None:
    def served(policy: Policy, rate: float) -> int:
        raise error

    with pytest.raises(type(error)):
        reached("goodput", served)

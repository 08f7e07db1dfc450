"""The gain on windows held out: its interval holds for new windows, whatever the policies meet, and what it rests on by value."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.gains import Gain, gain_of
from tuner.plan import TunedTrace
from tuner.windows import StudyWindow, split_windows

Ints = npt.NDArray[np.int64]
Pair = tuple[Ints, Ints]
Pairs = list[tuple[int, int]]


def result(met: int, n: int = 200, window_s: float = 10.0) -> dict[str, Any]:
    return {"met": met, "n": n, "window_s": window_s}


def results(counts: Any) -> list[dict[str, Any]]:
    return [result(int(met)) for met in counts]


def ends_of(gain: Gain) -> list[float]:
    assert gain.low is not None and gain.high is not None
    return [gain.low, gain.high]


def plain(rng: np.random.Generator, n: int) -> Pair:
    """As many more in every window."""
    base = rng.poisson(60, n)
    return base, rng.poisson(base + 25)


def swinging(rng: np.random.Generator, n: int) -> Pair:
    """The current policy meets few of the SLOs, and of some windows hardly any."""
    return rng.poisson(rng.uniform(2, 14, n)), rng.poisson(90, n)


def crowded(rng: np.random.Generator, n: int) -> Pair:
    """The more requests there are, the fewer the current policy serves, and the more the new one."""
    load = rng.gamma(36, 1 / 36, n)
    return rng.poisson(9 * np.exp(-1.5 * (load - 1)) * rng.gamma(6, 1 / 6, n)), rng.poisson(80 * load)


def alike(rng: np.random.Generator, n: int) -> Pair:
    """Both fall and rise with the traffic; the gain is small and steady."""
    load = rng.gamma(30, 90 / 30, n)
    return rng.poisson(load), rng.poisson(1.1 * load)


def coverage(kind: Any, searched: int, held: int, repeated: int = 600) -> tuple[float, float]:
    """How often as many new windows lie inside, and the median width (as a ratio of both ends)."""
    rng = np.random.default_rng(len(kind.__name__) + 10 * searched + held)
    inside, widths = 0, []
    for _ in range(repeated):
        base, level = kind(rng, searched + 2 * held)
        sides = [(base[:searched], level[:searched]), (base[searched:-held], level[searched:-held])]
        seen = (results(sides[0][0]), results(sides[0][1])) if searched else None
        gain = gain_of(results(sides[1][0]), results(sides[1][1]), seen)
        assert gain.low is not None and gain.high is not None
        inside += gain.low <= level[-held:].mean() / base[-held:].mean() - 1 <= gain.high
        widths.append((1 + gain.high) / (1 + gain.low))
    return inside / repeated, float(np.median(widths))


@pytest.mark.parametrize("kind", [plain, swinging, crowded, alike])
def test_nine_in_ten_sets_of_new_windows_lie_inside(kind: Any) -> None:
    for searched, held in ((0, 3), (0, 4), (0, 8), (4, 4), (4, 5), (2, 6), (8, 8)):
        share, _ = coverage(kind, searched, held)
        assert 0.85 <= share <= 0.96, (searched, held, share)


@pytest.mark.parametrize("kind", [plain, swinging, crowded, alike])
def test_windows_searched_make_it_narrower(kind: Any) -> None:
    """Their spread is told from more windows; where before and after do not go together, so is what there was before."""
    (_, alone), (_, together) = coverage(kind, 0, 4), coverage(kind, 4, 4)
    assert math.log(together) < (0.85 if kind in (swinging, crowded) else 0.9) * math.log(alone)


def test_a_winner_chosen_on_the_windows_searched_does_not_bend_it() -> None:
    """The best of twenty that are equal looks better where it was chosen; the interval is of what the others show."""
    rng = np.random.default_rng(5)
    inside = above = 0
    for _ in range(500):
        load = rng.gamma(30, 2, 14)
        base = rng.poisson(load)
        rivals = rng.poisson(np.tile(1.2 * load[:4], (20, 1)))
        best = rivals[rivals.sum(1).argmax()]
        held, new = rng.poisson(1.2 * load[4:9]), rng.poisson(1.2 * load[9:])
        gain = gain_of(results(base[4:9]), results(held), (results(base[:4]), results(best)))
        assert gain.low is not None and gain.high is not None
        true = new.mean() / base[9:].mean() - 1
        inside += gain.low <= true <= gain.high
        above += true < gain.low
    assert 0.85 <= inside / 500 <= 0.97 and above / 500 < 0.09


counts = st.integers(1, 150)
pairs = st.tuples(counts, counts)


@pytest.mark.parametrize("spread", [0.0, 0.3, 0.8])
def test_where_there_is_no_gain_hardly_one_is_found(spread: float) -> None:
    """Both policies serve the same share of whatever comes: 'better' and 'worse' are said by chance, a twentieth each or so."""
    rng = np.random.default_rng(11)
    for searched, held in ((0, 3), (0, 6), (3, 3), (4, 4), (8, 8)):
        said = {"better": 0, "worse": 0}
        for _ in range(800):
            load = 60 * np.exp(rng.normal(0, spread, searched + held))
            base, level = rng.poisson(load), rng.poisson(load)
            seen = (results(base[:searched]), results(level[:searched])) if searched else None
            verdict = gain_of(results(base[searched:]), results(level[searched:]), seen).verdict
            said[verdict] = said.get(verdict, 0) + 1
        assert max(said["better"], said["worse"]) <= 0.05 * 800 * 1.25, (searched, held, said)


@settings(max_examples=150, deadline=None)
@given(st.lists(pairs, min_size=2, max_size=8), st.lists(pairs, min_size=0, max_size=8))
def test_a_verdict_does_not_contradict_the_interval_beside_it(held: Pairs, seen: Pairs) -> None:
    """Where new windows would show a gain, or a loss, there is one."""
    sides = [[results([pair[at] for pair in side]) for at in (0, 1)] for side in (held, seen)]
    gain = gain_of(sides[0][0], sides[0][1], (sides[1][0], sides[1][1]))
    low, high = ends_of(gain)
    assert gain.estimate is not None
    assert gain.verdict != "better" or (high >= 0 and gain.estimate >= 0)
    assert gain.verdict != "worse" or (low <= 0 and gain.estimate <= 0)
    if gain.verdict == "within noise" and low > 0:
        assert gain.estimate <= 0  # the windows held out say the opposite
    if gain.verdict == "within noise" and high < 0:
        assert gain.estimate >= 0


def test_what_the_mean_and_the_interval_say_opposite_things_of_is_not_told() -> None:
    held, seen = ([8, 40, 29], [3, 36, 23]), ([84, 90], [93, 100])
    gain = gain_of(results(held[0]), results(held[1]), (results(seen[0]), results(seen[1])))
    assert ends_of(gain)[0] > 0 > (gain.estimate or 0.0) and gain.verdict == "within noise"
    gain = gain_of(results([28, 27, 30]), results([41, 99, 56]), (results([87]), results([68])))
    assert ends_of(gain)[1] < 0 < (gain.estimate or 0.0) and gain.verdict == "within noise"


def test_a_gain_of_every_window_is_one_however_much_the_windows_differ() -> None:
    """Twice as many in each of three windows, one of which is six times as busy as the others: the mean of the differences
    cannot be told from none, the gain of new windows can."""
    busy, calm = ([12, 70, 13], [25, 138, 26]), ([11, 40, 64], [22, 83, 126])
    gain = gain_of(results(busy[0]), results(busy[1]), (results(calm[0]), results(calm[1])))
    assert gain.verdict == "better" and ends_of(gain)[0] > 0.5


def text_of(gain: Gain) -> dict[str, Any]:
    return {name: value for name, value in gain.to_dict().items() if name not in ("low", "high", "verdict")}


@settings(max_examples=60, deadline=None)
@given(st.lists(pairs, min_size=2, max_size=8), st.lists(pairs, min_size=1, max_size=8), st.integers(2, 5))
def test_only_the_interval_rests_on_windows_searched(held: Pairs, seen: Pairs, times: int) -> None:
    """And of the new policy there only how windows differ: not how much it meets, for which it was chosen."""
    base, level = ([pair[at] for pair in held] for at in (0, 1))
    before, after = ([pair[at] for pair in seen] for at in (0, 1))
    alone = gain_of(results(base), results(level))
    gain = gain_of(results(base), results(level), (results(before), results(after)))
    assert text_of(gain) == text_of(alone)
    assert gain.low is not None and gain.high is not None and -1 <= gain.low <= gain.high
    luckier = gain_of(results(base), results(level), (results(before), results([times * met for met in after])))
    assert ends_of(luckier) == pytest.approx(ends_of(gain))
    empty = gain_of(results(base), results(level), ([], []))
    assert empty == alone


@settings(max_examples=60, deadline=None)
@given(st.lists(pairs, min_size=2, max_size=8), st.lists(pairs, min_size=0, max_size=5), st.floats(0.1, 50))
def test_a_gain_has_no_unit(held: Pairs, seen: Pairs, seconds: float) -> None:
    """Rates in other units, windows in another order: the same gain."""

    def gain(length: float, step: int) -> Gain:
        sides = [[[result(pair[at], window_s=length) for pair in side[::step]] for at in (0, 1)] for side in (held, seen)]
        return gain_of(sides[0][0], sides[0][1], (sides[1][0], sides[1][1]))

    one, other = gain(10.0, 1), gain(seconds, -1)
    for name in ("estimate", "low", "high"):
        assert getattr(one, name) == pytest.approx(getattr(other, name)), name


def test_gains_by_value() -> None:
    gain = gain_of([result(40, 100), result(60, 100)], [result(50, 100), result(90, 100)])
    assert gain.estimate == pytest.approx(0.4)
    assert (gain.base, gain.level) == (5.0, 7.0)
    assert (gain.base_attainment, gain.level_attainment, gain.n, gain.requests) == (0.5, 0.7, 2, 200)
    # u = -+2/7, v = -+1/5: their difference has a standard deviation of sqrt(2) x 3/35; t(1) at 90 %, two windows, two new ones
    half = 6.3138 * math.sqrt(2) * 3 / 35 * math.sqrt(2 / 2)
    ends = [1.4 * math.exp(-half) - 1, 1.4 * math.exp(half) - 1]
    assert ends_of(gain) == pytest.approx(ends, rel=1e-4)


def test_a_gain_with_windows_searched_by_value() -> None:
    """Where the new policy meets the same in all windows, only what there was before is uncertain."""
    gain = gain_of(results([8, 12]), results([40, 40]), (results([6, 14, 10]), results([50, 50, 50])))
    spread = math.sqrt((4 + 4 + 16 + 16) / 3) / 10  # relative, three degrees of freedom; of 5 windows, for 2 new ones
    half = 2.3534 * spread * math.sqrt(1 / 5 + 1 / 2)
    assert gain.estimate == pytest.approx(3.0)
    ends = [4 * math.exp(-half) - 1, 4 * math.exp(half) - 1]
    assert ends_of(gain) == pytest.approx(ends, rel=1e-4)
    fewer = gain_of(results([8, 12]), results([40, 40]), (results([3, 7, 5]), results([50, 50, 50])))
    assert ends_of(fewer)[0] > ends_of(gain)[0], "less before in all windows together: more to gain on new ones"


@settings(max_examples=60, deadline=None)
@given(st.lists(counts, min_size=2, max_size=8), st.lists(counts, max_size=8))
def test_what_changes_nothing_gains_nothing(held: list[int], seen: list[int]) -> None:
    """However much the windows differ: a policy held against itself, or against one that comes to the same."""
    gain = gain_of(results(held), results(held), (results(seen), results(seen)))
    assert (gain.estimate, gain.low, gain.high, gain.verdict) == (0.0, 0.0, 0.0, "same")


def test_where_there_is_no_interval() -> None:
    alone = gain_of([result(50)], [result(60)], ([result(50), result(40)], [result(60), result(70)]))
    assert alone.estimate == pytest.approx(0.2) and alone.low is None and alone.verdict == "cannot tell"
    nothing = gain_of(results([0, 0]), results([5, 5]))
    assert nothing.estimate is None and nothing.level == 0.5 and nothing.low is None
    lost = gain_of(results([5, 7]), results([0, 0]))
    assert lost.estimate == -1.0 and lost.low is None and lost.high is None
    wild = gain_of(results([1, 199]), results([199, 1]))
    assert wild.low is not None and wild.high is not None and math.isfinite(wild.high) and wild.low >= -1.0


def test_sides_take_turns_unless_the_later_windows_are_held_out() -> None:
    part: dict[str, Any] = {"where": None}
    window = StudyWindow(trace=1, name="t", digest="", begin_ns=0, end_ns=10, lead_in_ns=0, requests=9, part=part)
    windows = [replace(window, begin_ns=10 * at, end_ns=10 * at + 10) for at in range(8)]
    for held in (1, 2, 4, 7):
        for split, turns in (("alternate", True), ("past", False)):
            search, proof = split_windows(windows, held, split)
            trace = TunedTrace(name="t", digest="", search=tuple(search), held=tuple(proof), lines=())
            assert trace.turns is turns, (held, split)
    assert not TunedTrace(name="t", digest="", search=tuple(windows), held=(), lines=()).turns

"""Replays that an answer needs: listed first, then replayed together by however many workers, then read.

A want is plain data, so that it can be told to another process; the results lie in the file of cells that all share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from replay_engine.config import ConfigError
from replay_engine.policy import Policy
from replay_engine.profile import Profile
from tuner.cells import Cell, Replays, Result
from tuner.objective import value_of
from tuner.plan import TunePlan
from tuner.questions import Question, answer_to
from tuner.space import Point
from tuner.watched import Watched
from tuner.windows import StudyWindow

__all__ = ["SIDES", "Carry", "Lookup", "Side", "Want", "cell_of", "slower_profile"]

Side = Literal["search", "held"]
SIDES: tuple[Side, ...] = ("search", "held")
Carry = Callable[[Sequence["Want"], Sequence[Question]], list[Any]]
"""Replays wants and answers questions, wherever: the answers, in the order of the questions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """``point`` (``None``: the current policy) on a window. ``trace`` 0 is the study's own, then those of ``also``.

    ``rate``: times as fast; ``slower``: every cost of the profile so many times as high.
    """

    point: Point | None
    side: Side
    window: int
    trace: int = 0
    rate: float = 1.0
    slower: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def cell_of(plan: TunePlan, want: Want) -> Cell:
    """The replay that a want names. ``ConfigError`` where its point is no configuration."""
    trace = (plan.trace, *plan.also)[want.trace]
    windows = trace.search if want.side == "search" else trace.held
    policy: Policy = plan.policy if want.point is None else plan.policy_at(want.point)
    profile = plan.profile if want.slower == 1.0 else slower_profile(plan.profile, want.slower)
    return plan.cell(policy, windows[want.window], rate=want.rate, profile=profile)


def slower_profile(profile: Profile, factor: float) -> Profile:
    """Every cost of an iteration times ``factor``; what the silicon could do is not asked again."""
    return replace(profile, latency=profile.latency.times(factor), synthetic=True, name=f"{profile.name} x{factor:g}")


class Lookup:
    """Results of wants. ``carry`` has others replay them; without it they are replayed here, and ``watched`` is told of each."""

    def __init__(self, plan: TunePlan, replays: Replays, carry: Carry | None = None, watched: Watched | None = None) -> None:
        self.plan = plan
        self.replays = replays
        self._carry = carry
        self._watched = watched

    def stage(self, what: str) -> None:
        """What is wanted from here on, in a few words, for whoever watches."""
        if self._watched is not None:
            self._watched.stage(what)

    def windows(self, side: Side, trace: int = 0) -> Sequence[StudyWindow]:
        """The windows of a trace."""
        chosen = (self.plan.trace, *self.plan.also)[trace]
        return chosen.search if side == "search" else chosen.held

    def wants(self, points: Iterable[Point | None], side: Side, **where: Any) -> list[Want]:
        """Every window of ``side`` for each point."""
        n = len(self.windows(side, where.get("trace", 0)))
        return [Want(point=point, side=side, window=at, **where) for point in points for at in range(n)]

    def need(self, wants: Sequence[Want], questions: Sequence[Question] = ()) -> list[Any]:
        """Replay what is not there yet; the answers to ``questions``, in their order."""
        missing = self.missing(wants)
        if self._carry is not None and len(missing) + len(questions) > 1:
            return self._carry(missing, questions)
        if self._watched is not None and missing:
            self._watched.begin("replays")
            for at, want in enumerate(missing, 1):
                self.replays.result(cell_of(self.plan, want))
                self._watched.tell(at, len(missing))
                self._watched.stop()
        return [answer_to(question, self.plan, self.replays) for question in questions]

    def derivable(self, point: Point) -> bool:
        """Whether the point is a configuration."""
        try:
            self.plan.policy_at(point)
        except ConfigError:
            return False
        return True

    def missing(self, wants: Sequence[Want]) -> list[Want]:
        """Those of ``wants`` that nobody has replayed yet."""
        by_key = {cell_of(self.plan, want).key(): want for want in wants}  # points may come to the same configuration
        return [want for key, want in by_key.items() if self.replays.file.get(key) is None]

    def results(self, point: Point | None, side: Side, **where: Any) -> list[Result]:
        """One result per window, in time order."""
        return [self.replays.result(cell_of(self.plan, want)) for want in self.wants([point], side, **where)]

    def value(self, results: Sequence[Result]) -> float:
        """What windows come to together by the study's first objective; by goodput where that needs more than these windows."""
        objective = self.plan.objectives[0]
        name = "goodput" if objective.rates else objective.name
        return value_of(name, results, price=self.plan.price, cards=self.plan.cards)

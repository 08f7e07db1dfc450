"""The proof on an engine: the best configurations and the current policy, replayed by a model that computes what the simulator
predicted. What it says is in which order they come, and what the recommended one gains, on windows that were not searched.

Rank agreement is Kendall's tau-b over these configurations by the study's objective. The engine's times are those of the model
and the machine at hand: where they are not the profile's, the order may agree though no time does; the report says which it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from optuna.trial import TrialState

from replay_engine.policy import Policy, apply_set
from replay_engine.profile import Profile
from replay_engine.totals import RunTotals
from tracekit.engines import TorchEngine, device_blocks, loaded_engine
from tracekit.errors import UsageError, shown
from tracekit.trust import kendall_tau
from tuner.cells import Cell, Result, replay_cell
from tuner.engine_pace import Pace, measure_pace
from tuner.gains import gain_of
from tuner.lookup import Lookup, Side
from tuner.objective import attainment
from tuner.plan import TunePlan
from tuner.proposing import point_of_trial
from tuner.space import Point, configuration_key
from tuner.watched import Watched
from tuner.windows import StudyWindow, WindowSources

if TYPE_CHECKING:
    from tuner.answer import Answer
    from tuner.study import TuneStudy

__all__ = ["VerifyEngine", "check_verify", "load_engine", "pace_of", "verify"]

ENGINES = ("torch",)
SMALL = 1 << 28
"""Bytes of weights below which a model is computed by one thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyEngine:
    """A loaded model, what it runs on as a profile without costs, and both in words."""

    torch: TorchEngine
    profile: Profile
    what: str


def check_verify(engine: str | None, model: str | None, top: int) -> None:
    """Refuse before the search what cannot be done after it. Errors: ``UsageError``, ``ConfigError``."""
    if engine is None:
        if model is not None:
            raise UsageError(f"--model {shown(model)}: of the engine that proves an answer; expected --verify torch with it")
        return
    if engine not in ENGINES:
        raise UsageError(f"--verify {shown(engine)}: expected {' or '.join(ENGINES)}")
    if top < 1:
        raise UsageError(f"--top {top}: expected at least 1")
    if find_spec("torch") is None:
        raise UsageError("--verify torch: torch is not installed; expected pip install 'tracekit-llm[engine]'")
    if model is not None:
        from replay_engine.torch_engine.shapes import find_shape

        find_shape(model)


def load_engine(model: str | None, seed: int) -> VerifyEngine:
    """The model on this machine's device. Errors: ``ConfigError``."""
    torch, profile = loaded_engine(model, seed)
    assert profile.model is not None and profile.hardware is not None
    what = f"torch, {profile.model.name} ({profile.model.dtype}) on {profile.hardware.name}"
    return VerifyEngine(torch=torch, profile=profile, what=what)


def verify(study: TuneStudy, answer: Answer, lookup: Lookup, engine: VerifyEngine, top: int, watched: Watched) -> dict[str, Any]:
    """``candidates`` (the current policy first, then the recommended one, then the best trials: at most ``top`` of them), each
    with what it comes to as simulated and on the engine; ``tau`` (``None``: ties only) over ``n`` configurations; ``gain`` on the
    engine of the recommended one, beside the ``predicted`` one; ``confirmed``: whether the engine gains too."""
    plan = lookup.plan
    side: Side = "held" if plan.trace.held else "search"
    points: list[Point | None] = [None, *_candidates(study, answer, top)]
    lookup.need(lookup.wants(points, side))
    blocks = _kv_blocks(engine, [plan.policy if point is None else plan.policy_at(point) for point in points])
    rows: list[dict[str, Any]] = []
    far = _Far(lookup, engine, points, side, watched)
    measured: list[list[Result]] = []
    for at, point in enumerate(points):
        results = far.replayed(at, blocks)
        predicted = lookup.results(point, side)
        rows.append({"point": plan.current if point is None else point, "current": point is None,
                     "simulated": _figures(lookup, predicted), "engine": _figures(lookup, results)})  # fmt: skip
        measured.append(results)
    tau = kendall_tau([row["simulated"]["value"] for row in rows], [row["engine"]["value"] for row in rows])
    gain = predicted_gain = None
    if len(points) > 1:
        gain = gain_of(measured[0], measured[1]).to_dict()
        predicted_gain = gain_of(lookup.results(None, side), lookup.results(points[1], side)).to_dict()
    return {"engine": engine.what, "same_model": _same(plan.profile, engine.profile), "windows": side, "blocks": blocks,
            "unit": plan.objectives[0].unit if not plan.objectives[0].rates else "requests/s", "candidates": rows,
            "n": len(rows), "tau": None if math.isnan(tau) else tau, "gain": gain, "predicted": predicted_gain,
            "confirmed": None if gain is None else gain["level"] > gain["base"]}  # fmt: skip


@contextmanager
def _threads_for(engine: VerifyEngine) -> Iterator[None]:
    """One thread for a small model: what its layers compute is less than what handing it to others takes."""
    import torch

    model, threads = engine.profile.model, torch.get_num_threads()
    if model is not None and model.weight_bytes < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _candidates(study: TuneStudy, answer: Answer, top: int) -> list[Point]:
    """Different configurations, none of them the current policy's: the recommended one, then trials, the best first."""
    plan = study.plan
    sign = 1 if plan.objectives[0].direction == "maximize" else -1
    ended = [t for t in study.trials() if t.state == TrialState.COMPLETE and t.values]
    done = [t for t in ended if all(value <= 0 for value in t.constraints.values())]
    done.sort(key=lambda t: (-sign * t.values[0], t.number))
    seen = {configuration_key(plan.policy)}
    found: list[Point] = []
    for point in (answer.winner.point, *(point_of_trial(t) for t in done)):
        key = configuration_key(plan.policy_at(point))
        if key not in seen and len(found) < top:
            seen.add(key)
            found.append(point)
    return found


def _kv_blocks(engine: VerifyEngine, policies: Sequence[Policy]) -> int | None:
    """KV blocks of all configurations where a policy does not give them: what the engine has for the most demanding of them."""
    if not any(policy.estimated for policy in policies):
        return None
    return min(device_blocks(engine.torch, policy) for policy in policies)


def pace_of(plan: TunePlan, engine: VerifyEngine, sources: WindowSources) -> Pace:
    """How fast the engine replays the current policy, measured on the longest window (``engine_pace``)."""
    longest = max(plan.trace.held or plan.trace.search, key=lambda window: window.requests)
    with _threads_for(engine):
        cell = _engine_cell(plan, engine, plan.policy, longest, _kv_blocks(engine, [plan.policy]))
        return measure_pace(cell, sources, engine.torch)


class _Far:
    """Configurations on the engine, one after the other, and how many requests of them all have ended."""

    def __init__(self, lookup: Lookup, engine: VerifyEngine, points: Sequence[Point | None], side: Side,
                 watched: Watched) -> None:  # fmt: skip
        self._lookup, self._engine, self._points, self._watched = lookup, engine, points, watched
        self._windows = lookup.windows(side)
        self._done = 0
        each = [lookup.replays.sources.get(window).total for window in self._windows]
        self._total = sum(each) * len(points)
        watched.begin("requests")

    def replayed(self, at: int, blocks: int | None) -> list[Result]:
        """The results of one of the points, by window. ``KeyboardInterrupt`` where somebody asked the job to stop."""
        what = f"verify: {at + 1} of {len(self._points)} on {self._engine.what}"
        self._watched.say(what)
        plan, sources, point = self._lookup.plan, self._lookup.replays.sources, self._points[at]
        found = []

        def told(totals: RunTotals) -> None:
            self._watched.tell(min(self._done + totals.finished, self._total), self._total, what)
            self._watched.stop()

        with _threads_for(self._engine):
            for window in self._windows:
                cell = _engine_cell(plan, self._engine, plan.policy if point is None else plan.policy_at(point), window, blocks)
                found.append(replay_cell(cell, sources, torch=self._engine.torch, on_chunk=told))
                self._done += sources.get(window).total
                self._watched.tell(self._done, self._total, what)
        return found


def _engine_cell(plan: TunePlan, engine: VerifyEngine, policy: Policy, window: StudyWindow, blocks: int | None) -> Cell:
    """A policy on a window, on what the engine runs on, with its KV blocks (``_kv_blocks``)."""
    if blocks is not None and policy.estimated:
        policy = apply_set(policy, [f"num_gpu_blocks={blocks}"], plan.profile)
    return replace(plan.cell(policy, window), profile=engine.profile)


def _figures(lookup: Lookup, results: Sequence[Result]) -> dict[str, float]:
    return {"value": lookup.value(results), "attainment": attainment(results)}


def _same(one: Profile, other: Profile) -> bool:
    """Whether a profile is of the model that the engine computes."""
    return one.model is not None and other.model is not None and one.model.name.lower() == other.model.name.lower()

"""A user's own order, admission and victim functions, found by entry point and checked at every call.

A package registers them in the group ``tracekit.policies``, each under its kind and name::

    [project.entry-points."tracekit.policies"]
    "order.least_work" = "own_policy:least_work"
    "admit.half_full" = "own_policy:half_full"
    "victim.youngest" = "own_policy:youngest"

and a policy names them: ``order.by = "plugin:least_work"``, ``batching.admit = "plugin:half_full"``,
``preemption.victim = "plugin:youngest"``. The functions must be deterministic and must not change what they are given: a replay
with the same inputs takes the same decisions.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, NamedTuple, Protocol, cast, overload

from replay_engine.config import ConfigError
from replay_engine.rules import Rules
from replay_engine.settings_file import nearest, one_line
from replay_engine.types import Request

__all__ = [
    "GROUP",
    "KINDS",
    "PREFIX",
    "Admit",
    "EngineView",
    "Kind",
    "OrderKey",
    "PluginError",
    "RunningView",
    "SortKey",
    "Victim",
    "available",
    "check_plugins",
    "load_plugin",
    "plugin_name",
]

GROUP = "tracekit.policies"
PREFIX = "plugin:"
Kind = Literal["order", "admit", "victim"]
SortKey = float | tuple[float, ...]

KINDS: dict[str, tuple[str, int]] = {
    "order": ("order.by", 1),
    "admit": ("batching.admit", 2),
    "victim": ("preemption.victim", 1),
}
"""Per kind: the knob that names it and how many arguments it is called with."""


class PluginError(ConfigError):
    """A plugin cannot be loaded, failed, or answered something that is no answer. One line; names the plugin."""


class EngineView(NamedTuple):
    """What an admission test may look at: the engine as the head of the queue meets it."""

    now_ns: int
    running: int
    seats: int
    waiting: int
    free_blocks: int
    usable_blocks: int
    block_size: int
    budget_left: int
    """Tokens of this iteration nobody took yet."""


class RunningView(NamedTuple):
    """A running sequence as a victim function sees it; tokens and blocks."""

    request: Request
    computed_tokens: int
    output_tokens: int
    """Output tokens made so far."""
    blocks: int
    preemptions: int


class OrderKey(Protocol):
    """Key of the waiting queue: smallest first, ties by arrival.

    Called whenever the request is queued: it may not depend on time. Waiting is weighed in by the arrival, as in
    ``key + arrival_ns / aging_ns``. One number, or a tuple of numbers of the same length for every request.
    """

    def __call__(self, request: Request, /) -> SortKey: ...


class Admit(Protocol):
    """Whether the head of the queue may be admitted now; ``False`` defers it, and nobody overtakes it.

    Asked after the engine's own tests (seats, budget, KV) let the head in, and only while something runs: an empty engine admits.
    """

    def __call__(self, request: Request, view: EngineView, /) -> bool: ...


class Victim(Protocol):
    """Which of ``running`` (in running order, never empty) is preempted: an index of it."""

    def __call__(self, running: SequenceOf[RunningView], /) -> int: ...


def plugin_name(value: object) -> str | None:
    """``NAME`` of ``plugin:NAME``; ``None`` for any other value of a knob."""
    return value[len(PREFIX) :] if isinstance(value, str) and value.startswith(PREFIX) else None


def check_plugins(rules: Rules) -> None:
    """``PluginError`` when a plugin that ``rules`` name cannot be loaded."""
    if (own := plugin_name(rules.order.by)) is not None:
        load_plugin("order", own)
    if (own := plugin_name(rules.batching.admit)) is not None:
        load_plugin("admit", own)
    if (own := plugin_name(rules.preemption.victim)) is not None:
        load_plugin("victim", own)


def available(kind: Kind) -> tuple[str, ...]:
    """Names of the installed plugins of a kind, sorted."""
    return tuple(sorted({each.name.partition(".")[2] for each in _points(kind)}))


@overload
def load_plugin(kind: Literal["order"], name: str) -> OrderKey: ...
@overload
def load_plugin(kind: Literal["admit"], name: str) -> Admit: ...
@overload
def load_plugin(kind: Literal["victim"], name: str) -> Victim: ...
def load_plugin(kind: Kind, name: str) -> OrderKey | Admit | Victim:
    """The installed plugin, wrapped so that a wrong answer is a ``PluginError`` and never a wrong replay.

    ``name`` is with or without ``plugin:``. ``PluginError`` when there is none, when there are two, or when it cannot be loaded.
    """
    bare = plugin_name(name) or name
    function = _load(kind, bare)
    where = f"{KINDS[kind][0]} = {PREFIX}{one_line(bare)}"
    _check_arguments(function, KINDS[kind][1], where)
    if kind == "order":
        return _ordered(cast(OrderKey, function), where)
    if kind == "admit":
        return _admitted(cast(Admit, function), where)
    return _picked(cast(Victim, function), where)


def _points(kind: str) -> list[EntryPoint]:
    return [each for each in entry_points(group=GROUP) if each.name.startswith(f"{kind}.")]


def _load(kind: Kind, name: str) -> Callable[..., Any]:
    knob = KINDS[kind][0]
    found = {each.value: each for each in _points(kind) if each.name == f"{kind}.{name}"}
    if not found:
        known = available(kind)
        hint = nearest(name, known) if known else f"no installed package registers {kind}.NAME in the entry point group {GROUP}"
        raise PluginError(f"{knob} = {PREFIX}{one_line(name)}: no such plugin; {hint}")
    if len(found) > 1:
        both = " and ".join(one_line(value) for value in sorted(found))
        raise PluginError(f"{knob} = {PREFIX}{one_line(name)}: registered twice, as {both}; expected one")
    point = next(iter(found.values()))
    try:
        function = point.load()
    except Exception as error:  # a user's module may fail in any way when it is imported
        raise PluginError(f"{knob} = {PREFIX}{one_line(name)}: {one_line(point.value)}: {_said(error)}") from error
    if not callable(function):
        raise PluginError(f"{knob} = {PREFIX}{one_line(name)}: {one_line(point.value)} is no function; expected one")
    return cast("Callable[..., Any]", function)


def _check_arguments(function: Callable[..., Any], count: int, where: str) -> None:
    try:
        inspect.signature(function).bind(*([None] * count))
    except TypeError as error:
        wanted = "one argument" if count == 1 else f"{count} arguments"
        raise PluginError(f"{where}: {one_line(error)}; expected a function of {wanted}") from None
    except ValueError:  # a builtin without a signature: the first call tells
        return


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error, 200)}"


def _ordered(function: OrderKey, where: str) -> OrderKey:
    shape: list[int] = []

    def key(request: Request, /) -> SortKey:
        try:
            answer: object = function(request)
        except Exception as error:
            raise PluginError(f"{where}: {_said(error)}, for request {one_line(request.request_id)}") from error
        parts = answer if isinstance(answer, tuple) else (answer,)
        if not parts or not all(isinstance(p, int | float) and not math.isnan(p) for p in parts):
            raise PluginError(f"{where}: answered {one_line(answer)}; expected a number, or a tuple of numbers")
        size = len(parts) if isinstance(answer, tuple) else 0
        if not shape:
            shape.append(size)
        elif shape[0] != size:
            raise PluginError(f"{where}: answered {one_line(answer)}; expected as many numbers for every request")
        return cast(SortKey, answer)

    return key


def _admitted(function: Admit, where: str) -> Admit:
    def admit(request: Request, view: EngineView, /) -> bool:
        try:
            answer: object = function(request, view)
        except Exception as error:
            raise PluginError(f"{where}: {_said(error)}, for request {one_line(request.request_id)}") from error
        if not isinstance(answer, bool):
            raise PluginError(f"{where}: answered {one_line(answer)}; expected True or False")
        return answer

    return admit


def _picked(function: Victim, where: str) -> Victim:
    def pick(running: SequenceOf[RunningView], /) -> int:
        try:
            answer: object = function(running)
        except Exception as error:
            raise PluginError(f"{where}: {_said(error)}") from error
        if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer < len(running):
            raise PluginError(f"{where}: answered {one_line(answer)}; expected an index of the {len(running)} running")
        return answer

    return pick

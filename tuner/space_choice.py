"""Which space is searched: ``scheduler`` (three knobs), ``policy`` (all that bears on the trace), or a TOML file.

A file gives the levels of each knob under the name that ``--set`` takes, and for one that depends on another where it counts::

    [space]
    max_num_batched_tokens = [1024, 2048, 4096, 8192]
    "order.by" = { levels = ["engine", "shortest_first"], ordered = false }
    "order.aging_s" = { levels = [1, 10, 100], when = { "order.by" = ["shortest_first"] } }
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replay_engine.config import ConfigError
from replay_engine.policy import Policy, apply_set
from replay_engine.profile import Profile
from tracekit.errors import UsageError, shown, shown_path
from tracekit.experiments.knobs import knob_text
from tracekit.traces.source import TraceSource
from tuner.space import BUDGET, CHUNK, POOLS, SEQS, Knob, Space

__all__ = ["SPACES", "choose_space"]

SPACES = ("scheduler", "policy")
_SCHEDULER = (
    Knob(name=BUDGET, levels=(256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)),
    Knob(name=SEQS, levels=(8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)),
    Knob(name=CHUNK, levels=(64, 128, 256, 512, 1024, 2048, 4096, 0)),  # 0, no cap, is the largest of them
)
_AGED = ("priority", "deadline", "shortest_first", "fair")


def choose_space(text: str | None, policy: Policy, profile: Profile, source: TraceSource) -> Space:
    """The space that ``text`` names (left out: ``scheduler``), with the current policy's and the defaults' values as levels.

    Errors: ``UsageError`` for a name that is neither and no file, or a file that cannot be used.
    """
    engines = policy.rules.engine_count
    if text in (None, "scheduler"):
        space = Space(knobs=_SCHEDULER, engines=engines)
    elif text == "policy":
        space = Space(knobs=(*_SCHEDULER, *_policy_knobs(policy, source, engines)), engines=engines)
    else:
        assert text is not None
        space = Space(knobs=_read(text, policy, profile), engines=engines)
    for point in (space.point_of(policy), space.defaults(policy, profile)):
        space = space.holding(point)
    return space


def _policy_knobs(policy: Policy, source: TraceSource, engines: int) -> tuple[Knob, ...]:
    """What the trace can tell apart: no order by tenant, priority or deadline where nobody has one."""
    orders = ["engine", "shortest_first"]
    orders += ["fair"] if len(source.tenant_names) > 1 else []
    orders += ["priority"] if source.priority is not None else []
    orders += ["deadline"] if source.deadline_ns is not None else []
    knobs = [
        Knob(name="order.by", levels=tuple(orders), ordered=False),
        Knob(name="order.aging_s", levels=(1, 10, 60), when=("order.by", tuple(o for o in orders if o in _AGED))),
        Knob(name="batching.decode_reserve", levels=(0, 64, 256)),
        Knob(name="batching.max_partial_prefills", levels=(None, 1, 2, 4), ordered=False),
        Knob(name="batching.output_reserve", levels=("none", "max_tokens"), ordered=False),
        Knob(name="preemption.victim", levels=("engine", "least_progress", "most_kv"), ordered=False),
        Knob(name="watermark", levels=(0.0, 0.01, 0.05)),
        Knob(name="prefill_schedule_interval", levels=(1, 2, 4)),
    ]
    if engines > 1:
        splits = ("0:0", *(f"{prefill}:{engines - prefill}" for prefill in range(1, engines)))
        knobs.append(Knob(name=POOLS, levels=splits))
    return tuple(knobs)


def _read(text: str, policy: Policy, profile: Profile) -> tuple[Knob, ...]:
    where = f"--space {shown_path(text)}"
    if not os.path.exists(text):
        raise UsageError(f"{where}: neither {' nor '.join(SPACES)}, nor a file; expected one of them")
    try:
        document = tomllib.loads(Path(text).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UsageError(f"{where}: {reason}; expected a TOML file with a table [space]") from None
    table = document.get("space")
    if not isinstance(table, Mapping) or not table:
        raise UsageError(f"{where}: has no table [space]; expected one, with the levels of each knob")
    knobs = [_knob(where, name, value) for name, value in table.items()]
    for at, knob in enumerate(knobs):
        if knob.when is not None and knob.when[0] not in [each.name for each in knobs[:at]]:
            raise UsageError(f"{where}: {shown(knob.name)} depends on {shown(knob.when[0])}; expected that one before it")
        _check(where, knob, policy, profile)
    return tuple(knobs)


def _knob(where: str, name: str, value: Any) -> Knob:
    table = value if isinstance(value, Mapping) else {"levels": value}
    levels, when = table.get("levels"), table.get("when")
    if unknown := set(table) - {"levels", "ordered", "when"}:
        raise UsageError(f"{where}: {shown(name)}: {shown(min(unknown))}: unknown; expected levels, ordered, when")
    if not isinstance(levels, list) or len(levels) < 2 or len(set(map(str, levels))) < len(levels):
        raise UsageError(f"{where}: {shown(name)} = {shown(levels)}: expected a list of at least two different levels")
    numbers = all(isinstance(level, int | float) and not isinstance(level, bool) for level in levels)
    if when is not None and not (isinstance(when, Mapping) and len(when) == 1 and isinstance(next(iter(when.values())), list)):
        raise UsageError(f"{where}: {shown(name)}: when = {shown(when)}: expected one other knob and a list of its levels")
    return Knob(
        name=name.removeprefix("scheduler."), levels=tuple(levels), ordered=bool(table.get("ordered", numbers)),
        when=None if when is None else next((other, tuple(values)) for other, values in when.items()),
    )  # fmt: skip


def _check(where: str, knob: Knob, policy: Policy, profile: Profile) -> None:
    """A level by itself may contradict the current policy; a knob of which no level is known is a mistake."""
    if knob.name == POOLS:
        return
    reasons = []
    for level in knob.levels:
        try:
            apply_set(policy, [f"{knob.name}={knob_text(level)}"], profile)
            return
        except ConfigError as error:
            reasons.append(str(error))
    if knob.when is None or "unknown" in reasons[0]:
        raise UsageError(f"{where}: {reasons[0]}")

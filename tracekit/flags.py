"""A change of settings as the flags of the engines that people run: only the knobs that change, and none that a version ignores.

``found = flags_for(changes, "0.30.0")``; ``found.vllm`` and its like are what to add to the command line (TensorRT-LLM: lines of
its configuration), ``found.refused`` says for which engine a knob has no flag, and why.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from replay_engine.config import ENGINE_VERSIONS
from replay_engine.sglang_flags import FIRST_RATIO
from tracekit.errors import UsageError, shown
from tracekit.flag_rows import ENGINES, ROWS, Engine, FlagRow

if TYPE_CHECKING:
    from tracekit.diagnosis.finding import Change

__all__ = ["Flags", "Refused", "flags_for"]

NEWEST = ENGINE_VERSIONS[-1]

_OUTSIDE = {
    "client": "the client's own setting, no engine's",
    "fleet": "set where the replicas are deployed and routed to, no engine's flag",
    "pd": "set where the pools are deployed and routed to, no engine's flag",
    "kv_link": "the transfer connector and its transport, no scheduler's flag",
    "link": "the hardware's, no flag",
    "front_door": "a gateway's in front of the engine, no engine's flag",
}


@dataclass(frozen=True, slots=True)
class Refused:
    """A knob that an engine has no flag for, or ignores, and why. ``already``: it does so in any case, nothing is to be set;
    ``outside``: no engine's setting at all, but a gateway's, a router's, the client's."""

    engine: Engine
    knob: str
    reason: str
    already: bool = False
    outside: bool = False

    @property
    def lacking(self) -> bool:
        """Whether the engine will not do what the change wants."""
        return not self.already and not self.outside


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What to set, by engine, in the order of the changes; what cannot be set, with the reason."""

    vllm: tuple[str, ...] = ()
    sglang: tuple[str, ...] = ()
    tensorrt_llm: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()
    since: str = ""
    """The first version of vLLM that has all of its flags; empty: every one that is known here."""

    def why_not(self, engine: Engine) -> tuple[Refused, ...]:
        """What was refused for one engine."""
        return tuple(each for each in self.refused if each.engine == engine)

    def to_dict(self) -> dict[str, list[str]]:
        """Flags by engine, as plain lists."""
        return {engine: list(getattr(self, engine)) for engine in ENGINES}


def flags_for(changes: Iterable[Change | str], engine_version: str = NEWEST, *, block_size: int = 16) -> Flags:
    """The flags that make ``changes``: a finding's, or ``knob=value`` as ``--set`` takes them. ``engine_version`` is vLLM's;
    ``block_size`` (tokens) turns KV blocks into tokens. ``UsageError``: a text without ``=``."""
    found: dict[Engine, dict[str, None]] = {engine: {} for engine in ENGINES}
    refused, since = [], ""
    for knob, value in _pairs(changes):
        for engine in ENGINES:
            row = _row(knob, value, engine)
            flag, why = _flag(knob, value, row, engine_version, block_size)
            if flag:
                found[engine][flag] = None
                since = max(since, row.since if row is not None else "", key=_number)
            else:
                already = row is not None and row.already
                outside = row is None and knob.partition(".")[0] in _OUTSIDE
                refused.append(Refused(engine, knob, why, already=already, outside=outside))
    return Flags(**{engine: tuple(found[engine]) for engine in ENGINES}, refused=tuple(refused), since=since)


def _pairs(changes: Iterable[Change | str]) -> list[tuple[str, str]]:
    """Knobs with their last value, in order; ``scheduler.`` is left out of a name."""
    sets = [text for change in changes for text in ((change,) if isinstance(change, str) else change.sets)]
    pairs: dict[str, str] = {}
    for text in sets:
        knob, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{shown(text)}: expected knob=value")
        pairs[knob.strip().removeprefix("scheduler.")] = value.strip()
    return list(pairs.items())


def _flag(knob: str, value: str, row: FlagRow | None, version: str, block_size: int) -> tuple[str, str]:
    """The flag, or why there is none."""
    if row is None:
        return "", _OUTSIDE.get(knob.partition(".")[0], "no such knob")
    if not row.flag:
        return "", row.why
    if row.since and row.engine == "vllm" and _number(version) < _number(row.since):
        return "", f"vLLM {version} does not have it; {row.since} does"
    whole = value.isdecimal()
    conservativeness = f"{float(value) / FIRST_RATIO:.3g}" if "{conservativeness}" in row.flag else ""
    tokens = (int(value) - 1) * block_size if whole else value  # one block is the null block
    return row.flag.format(value=value, tokens=tokens, conservativeness=conservativeness), ""


def _row(knob: str, value: str, engine: Engine) -> FlagRow | None:
    word = {"1": "true", "on": "true", "yes": "true", "0": "false", "off": "false", "no": "false"}.get(
        value.lower(), value.lower()
    )
    for row in ROWS:
        if row.knob == knob and row.engine == engine and (not row.values or value in row.values or word in row.values):
            return row
    return None


def _number(version: str) -> tuple[int, ...]:
    if not version:
        return ()
    parts = version.split(".")
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"engine version {shown(version)}: expected one like {NEWEST}")
    return tuple(int(part) for part in parts)

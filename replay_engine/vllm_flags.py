"""vLLM's command line as scheduler settings, and settings as its flags (vLLM 0.33's names)."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.settings_file import one_line

__all__ = [
    "KNOBS",
    "SIZING",
    "ServeCommand",
    "knob_value",
    "looks_like_command",
    "render_flags",
    "split_command",
    "typed_value",
    "with_flags",
]

SIZING = {"gpu_memory_utilization": "float", "kv_cache_memory_bytes": "int"}
"""Settings that decide the number of KV blocks where it is not given. They are vLLM's, but not its scheduler's."""

KNOBS: dict[str, str] = {each.name: str(each.type) for each in fields(SchedulerConfig)} | SIZING
"""Every name ``[scheduler]`` takes, with its type."""

_FLAG_OF = {"policy": "scheduling-policy", "num_gpu_blocks": "num-gpu-blocks-override", "engine_version": None}
_KNOB_OF = {flag: knob for knob in KNOBS if (flag := _FLAG_OF.get(knob, knob.replace("_", "-"))) is not None}
_SWITCHES = frozenset(
    {
        "disable-log-requests",
        "disable-log-stats",
        "enable-auto-tool-choice",
        "enable-expert-parallel",
        "enable-log-requests",
        "enable-logging-iteration-details",
        "enable-lora",
        "enable-sleep-mode",
        "enforce-eager",
        "trust-remote-code",
    }
)
_BOUNDS = {"max-num-queued-reqs": "max_queued_reqs", "max-num-queued-tokens": "max_queued_tokens"}
_SHORT = {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size", "q": "quantization"}
_SUFFIX = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeCommand:
    """What a ``vllm serve`` line says: the scheduler's settings, the model, and flags that change no decision here."""

    settings: dict[str, Any]
    model: str | None
    tensor_parallel: int | None
    notes: tuple[str, ...]
    front_door: dict[str, Any]
    """The queue bounds: in life a 503 before the engine."""


def knob_value(name: str, text: str) -> Any:
    """``text`` as the value of knob ``name``: 8k is 8000, 8K is 8192 (as vLLM reads them). ``ConfigError`` when it is not one."""
    return typed_value(name, KNOBS[name], text)


def typed_value(name: str, kind: str, text: str) -> Any:
    """``text`` as a value of type ``kind`` (an annotation's text), for the knob ``name`` of an error message."""
    word = text.strip()
    if "None" in kind and word.lower() in ("none", "null", "off", ""):
        return None
    if kind.startswith("int"):
        return _whole_number(name, word)
    if kind.startswith("float"):
        try:
            return float(word)
        except ValueError:
            raise ConfigError(f"{name} = {one_line(text)}: expected a number") from None
    if kind == "bool":
        switch = {"true": True, "1": True, "on": True, "yes": True, "false": False, "0": False, "off": False, "no": False}
        if word.lower() not in switch:
            raise ConfigError(f"{name} = {one_line(text)}: expected true or false")
        return switch[word.lower()]
    return word


def _whole_number(name: str, word: str) -> int:
    match = re.fullmatch(r"(-?\d+(?:_\d+)*)(\.\d+)?([kmgtKMGT])?", word)
    expected = f"{name} = {one_line(word)}: expected a whole number, or one like 8k (8000) or 8K (8192)"
    if match is None or (match[2] and (not match[3] or match[3].isupper())):
        raise ConfigError(expected)
    value = float(match[1] + match[2]) if match[2] else int(match[1])
    scaled = value * _SUFFIX.get(match[3] or "", 1)
    if scaled != round(scaled):
        raise ConfigError(expected)
    return round(scaled)


def looks_like_command(text: str) -> bool:
    """Whether ``text`` is a vLLM command line rather than a file's name or TOML."""
    return re.search(r"\bvllm\s+serve\b|\bvllm\.entrypoints\b", text) is not None


def split_command(text: str) -> ServeCommand:
    """Read ``[ENV=x] vllm serve MODEL --flag value ...`` (or the module form). Flags that no scheduling decision depends
    on are listed in ``notes`` as ignored; a known flag with a wrong value raises ``ConfigError``."""
    words, start = _words(text)
    model, settings, ignored = _scan(words[start:])
    bounds = {knob: _whole_number(f"--{flag}", ignored.pop(flag) or "") for flag, knob in _BOUNDS.items() if flag in ignored}
    parallel = ignored.pop("tensor-parallel-size", None)
    model = model or ignored.pop("model", None)
    notes = tuple(f"--{flag} is ignored: no scheduling decision here depends on it" for flag in ignored if flag != "model")
    return ServeCommand(
        settings=settings,
        model=model,
        tensor_parallel=None if parallel is None else _whole_number("--tensor-parallel-size", parallel),
        notes=notes + _suspects(ignored),
        front_door=bounds,
    )


def with_flags(text: str, drop: Collection[str], add: Sequence[str]) -> str:
    """The command without the flags of the knobs ``drop``, and with ``add`` at its end; all else as it was. Knobs by their names
    in ``KNOBS``, or the queue bounds'. Errors as ``split_command``."""
    words, start = _words(text)
    kept = words[:start]
    for piece in _pieces(words[start:]):
        if (piece.knob or _BOUNDS.get(piece.flag)) not in drop or not piece.flag:
            kept += piece.words
    return " ".join([shlex.join(kept), *add])


def _words(text: str) -> tuple[list[str], int]:
    """The words of a command line, and where what follows the verb begins."""
    try:
        words = shlex.split(text.replace("\\\r\n", " ").replace("\\\n", " "))
    except ValueError as error:
        raise ConfigError(f"vllm command: {one_line(error)}; expected balanced quotes") from None
    starts = [i for i, w in enumerate(words) if w == "serve" or w.startswith("vllm.entrypoints")]
    return words, starts[0] + 1 if starts else 0


class _Piece(NamedTuple):
    """A flag with its value, or a word that is none (``flag`` empty); ``given``: it has a value."""

    words: list[str]
    flag: str
    knob: str | None
    negated: bool
    given: bool
    value: str


def _pieces(words: list[str]) -> Iterator[_Piece]:
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not re.match(r"--?[A-Za-z]", word):
            yield _Piece([word], "", None, False, True, word)
            continue
        flag, glued, value = _flag(word)
        knob, negated = _knob(flag)
        own, switch = [word], flag in _SWITCHES or (knob is not None and KNOBS[knob] == "bool")
        if not glued and not switch and at < len(words) and (knob or not words[at].startswith("-")):
            value, glued = words[at], True
            own.append(value)
            at += 1
        yield _Piece(own, flag, knob, negated, glued, value)


def _scan(words: list[str]) -> tuple[str | None, dict[str, Any], dict[str, str | None]]:
    """The model, the scheduler's settings, and the flags (with their values) that are none."""
    settings: dict[str, Any] = {}
    ignored: dict[str, str | None] = {}
    model: str | None = None
    for piece in _pieces(words):
        flag, knob = piece.flag, piece.knob
        if not flag:
            model = model or piece.value
        elif knob is None:
            ignored[flag] = piece.value if piece.given else None
        elif KNOBS[knob] == "bool":
            settings[knob] = (knob_value(knob, piece.value) if piece.given else True) is not piece.negated
        elif not piece.given:
            raise ConfigError(f"--{flag}: no value; expected --{flag} VALUE")
        else:
            _set(settings, knob, flag, piece.value)
    return model, settings, ignored


def _flag(word: str) -> tuple[str, bool, str]:
    name, glued, value = word.partition("=")
    name = name.lstrip("-").replace("_", "-")
    return (_SHORT.get(name, name) if not word.startswith("--") else name), bool(glued), value


def _knob(flag: str) -> tuple[str | None, bool]:
    if flag.startswith("no-") and KNOBS.get(_KNOB_OF.get(flag[3:], "")) == "bool":
        return _KNOB_OF[flag[3:]], True
    return _KNOB_OF.get(flag), False


def _set(settings: dict[str, Any], knob: str, flag: str, value: str) -> None:
    if knob == "max_model_len" and value.lower() in ("auto", "-1"):
        return
    try:
        settings[knob] = knob_value(knob, value)
    except ConfigError as error:
        raise ConfigError(f"--{flag}: {error}") from None


def _suspects(ignored: Mapping[str, str | None]) -> tuple[str, ...]:
    """An ignored flag that is a letter off a known one is worth a second look."""
    close = {flag: difflib.get_close_matches(flag.removeprefix("no-"), _KNOB_OF, n=1, cutoff=0.88) for flag in ignored}
    return tuple(f"--{flag}: did you mean --{names[0]}?" for flag, names in close.items() if names)


def render_flags(scheduler: SchedulerConfig, against: SchedulerConfig | None = None) -> list[str]:
    """The flags that turn ``against`` (all knobs when ``None``) into ``scheduler``, one ``--name value`` a string."""
    flags = []
    for knob in (each.name for each in fields(SchedulerConfig)):
        flag, value = _FLAG_OF.get(knob, knob.replace("_", "-")), getattr(scheduler, knob)
        if flag is None or value is None or (against is not None and getattr(against, knob) == value):
            continue
        flags.append(f"--{'' if value else 'no-'}{flag}" if isinstance(value, bool) else f"--{flag} {value}")
    return flags

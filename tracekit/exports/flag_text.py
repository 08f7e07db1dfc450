"""Settings as text to paste: command lines, vLLM's ``--config`` file, Helm values, an environment file.

Each says in comments whose settings they are, for which versions of the engine, and why each is set. A knob that the engine does
not have, or that the version ignores, is refused: half a change is another change.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from replay_engine.config import ENGINE_VERSIONS
from tracekit.errors import UsageError, shown
from tracekit.exports.wanted import Wanted
from tracekit.flag_rows import CHECKED, Engine
from tracekit.flags import Flags, flags_for

__all__ = ["FLAG_FORMATS", "FlagText", "flag_text"]

FLAG_FORMATS: dict[str, Engine] = {
    "vllm-args": "vllm", "vllm-yaml": "vllm", "sglang-args": "sglang", "helm-values": "vllm", "env": "vllm",
}  # fmt: skip
"""Formats of flags, and the engine that each is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagText:
    """``text``: comments and settings, to paste; ``flags``: the flags alone; ``versions``: of the engine that have them all."""

    text: str
    flags: tuple[str, ...]
    versions: str


def flag_text(wanted: Wanted, kind: str, engine_version: str | None = None) -> FlagText:
    """``wanted`` as ``kind`` (of ``FLAG_FORMATS``), for vLLM ``engine_version`` (left out: the one that was replayed).
    ``UsageError``: a knob that the engine does not have or that the version ignores, with the reason."""
    engine, version = FLAG_FORMATS[kind], engine_version or wanted.engine_version
    if version not in ENGINE_VERSIONS:
        raise UsageError(f"--engine-version {shown(version)}: expected one of {', '.join(ENGINE_VERSIONS)}")
    found = flags_for(wanted.pairs, version, block_size=wanted.block_size)
    lacking = [each for each in found.why_not(engine) if each.lacking]
    if lacking:
        reasons = "; ".join(f"{each.knob}: {each.reason}" for each in lacking)
        raise UsageError(f"--to {kind}: {CHECKED[engine][0]} cannot be set like this: {reasons}")
    flags = tuple(getattr(found, engine))
    versions = _versions(engine, found)
    lines = [f"# {line}" for line in _comments(wanted, found, engine, versions, flags)]
    return FlagText(text="\n".join([*lines, *_BODIES[kind](wanted, flags)]) + "\n", flags=flags, versions=versions)


def _versions(engine: Engine, found: Flags) -> str:
    name, checked = CHECKED[engine]
    if engine != "vllm":
        return f"{name} {checked}"
    since = found.since or ENGINE_VERSIONS[0]
    return f"{name} {since} (older ones lack a flag)" if since == checked else f"{name} {since} to {checked} (the newest checked)"


def _comments(wanted: Wanted, found: Flags, engine: Engine, versions: str, flags: tuple[str, ...]) -> Iterator[str]:
    yield _plain(wanted.title)
    yield f"for {versions}; replayed with the scheduler of vLLM {wanted.engine_version}"
    if not flags:
        yield "nothing to set: the engine's defaults are what is wanted"
    beside = {each.knob: each for each in found.why_not(engine)}
    for setting in wanted.settings:
        why = beside.get(setting.knob)
        told = "" if why is None else f" (no flag: {why.reason})"
        yield _plain(f"{setting.knob} = {setting.value}: {setting.why}{told}")
    yield from map(_plain, wanted.notes)


def _plain(text: str) -> str:
    """One line, so that nothing after a break is taken for a setting."""
    return " ".join(shown(text, 1000).split())


def _words(flags: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Variables of the environment, and words of the command line."""
    variables = [flag for flag in flags if not flag.startswith("-")]
    return variables, [word for flag in flags if flag.startswith("-") for word in flag.split(" ")]


def _args(wanted: Wanted, flags: tuple[str, ...]) -> list[str]:
    variables, words = _words(flags)
    return [" ".join([*variables, *words])] if flags else []


def _yaml(wanted: Wanted, flags: tuple[str, ...]) -> list[str]:
    """Switches that are off under their own ``no-`` name: releases differ in what ``false`` does."""
    lines = []
    for flag in flags:
        name, _, value = flag.removeprefix("--").partition(" ")
        lines.append(f"{name}: {value or 'true'}")
    return lines


def _helm(wanted: Wanted, flags: tuple[str, ...]) -> list[str]:
    name = "model" if wanted.profile is None or wanted.profile.model is None else wanted.profile.model.name.lower()
    lines = ["# merge into the entry of the model that is served: Helm replaces lists as a whole", "servingEngineSpec:",
             "  modelSpec:", f'  - name: "{name}"']  # fmt: skip
    lines += [f"    replicaCount: {wanted.replicas}"] if wanted.replicas > 1 else []
    words = [f'      - "{word}"' for word in _words(flags)[1]]
    return [*lines, "    vllmConfig:", "      extraArgs:" if words else "      extraArgs: []", *words]


def _env(wanted: Wanted, flags: tuple[str, ...]) -> list[str]:
    return [f"VLLM_ARGS={shlex.quote(' '.join(_words(flags)[1]))}"]


_BODIES = {"vllm-args": _args, "sglang-args": _args, "vllm-yaml": _yaml, "helm-values": _helm, "env": _env}

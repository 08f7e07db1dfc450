"""Under which settings the observed engine ran, as far as somebody says so.

``--policy`` is a policy file, a ``vllm serve`` command, or the ``non-default args`` line that vLLM logs at its start; ``--set``
goes on top. ``trace.shared_prefix=N`` says of the trace that all prompts begin with the same N tokens.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from replay_engine.config import ENGINE_VERSIONS
from replay_engine.policy import Policy
from replay_engine.profile import Latency, Profile
from replay_engine.vllm_flags import KNOBS
from tracekit.errors import UsageError, shown
from tracekit.policy_source import policy_from

__all__ = ["Known", "known_settings", "said_of"]

_LINE = re.compile(r"non-default args:\s*(\{.*\})", re.DOTALL)
SHARED_PREFIX = "trace.shared_prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """``policy`` with everything that was said, ``given`` the knobs of ``[scheduler]`` among it; ``notes``: what was assumed.
    ``profile`` only has the facts that settings are derived from."""

    policy: Policy
    given: frozenset[str]
    notes: tuple[str, ...]
    profile: Profile
    shared_prefix: int = 0
    release_assumed: bool = False
    """Whether another release stands for the one that was named, or nobody named one."""


def known_settings(policy: str | None, sets: Sequence[str], prior: Profile | None) -> Known:
    """Read what was said. ``UsageError``, ``ConfigError``: it cannot be understood."""
    profile = prior if prior is not None else Profile(name="unknown", latency=Latency(), synthetic=True)
    line = None if policy is None else _LINE.search(policy)
    if line is not None:
        sets, policy = (*_line_sets(line[1]), *sets), None
    plain, shared, notes = said_of(sets)
    assumed = bool(notes)
    built = policy_from(profile, policy, plain, fitted=False)
    if "engine_version" not in built.settings:
        assumed = True
        notes.append(f"engine_version = {built.scheduler.engine_version} is assumed: nobody said which release it was")
    given, notes = frozenset(built.settings), [*built.notes, *notes]
    return Known(policy=built, given=given, notes=tuple(notes), profile=profile, shared_prefix=shared or 0,
                 release_assumed=assumed)  # fmt: skip


def said_of(sets: Sequence[str]) -> tuple[list[str], int | None, list[str]]:
    """``sets`` that a policy takes: the release as the nearest one that is known, and without ``trace.shared_prefix``, whose
    tokens come second (``None``: it is not among them); then what is assumed. ``UsageError``: no number, or no release."""
    plain, shared, notes = list[str](), None, list[str]()
    for each in sets:
        name, _, value = each.partition("=")
        bare = name.strip().removeprefix("scheduler.")
        if bare == SHARED_PREFIX:
            shared = _tokens(value)
        elif bare == "engine_version":
            release, note = _release(value.strip())
            plain.append(f"engine_version={release}")
            notes += [note] if note else []
        else:
            plain.append(each)
    return plain, shared, notes


def _line_sets(text: str) -> list[str]:
    """The knobs in a ``non-default args`` dict."""
    try:
        values = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        words = "not what vLLM writes as non-default args; expected {'knob': value, ...}"
        raise UsageError(f"--policy {shown(text)}: {words}") from None
    knobs = {knob: value for knob, value in values.items() if knob in KNOBS and value is not None}
    if "scheduling_policy" in values:
        knobs["policy"] = values["scheduling_policy"]
    if "num_gpu_blocks_override" in values:
        knobs["num_gpu_blocks"] = values["num_gpu_blocks_override"]
    return [f"{knob}={str(value).lower() if isinstance(value, bool) else value}" for knob, value in knobs.items()]


def _tokens(text: str) -> int:
    if not text.strip().isdecimal():
        raise UsageError(f"--set {SHARED_PREFIX}={shown(text)}: expected a whole number of tokens")
    return int(text)


def _release(text: str) -> tuple[str, str | None]:
    """The release whose scheduler is taken for ``text``, and what to say where that is another one."""
    if text in ENGINE_VERSIONS:
        return text, None
    numbers = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    if numbers is None:
        raise UsageError(f"--set engine_version={shown(text)}: expected a release of vLLM, as 0.19.0")
    asked = tuple(int(part or 0) for part in numbers.groups())
    releases = [tuple(int(part) for part in each.split(".")) for each in ENGINE_VERSIONS]
    older = [each for each in releases if each <= asked]
    chosen = ".".join(str(part) for part in (max(older) if older else min(releases)))
    words = "the nearest release whose scheduler is known here"
    return chosen, f"engine_version = {chosen} is assumed for vLLM {shown(text)}: {words}"

"""Under which settings the observed engine ran, as far as somebody says so.

``--policy`` is a policy file, a ``vllm serve`` command, or a log of vLLM or its ``non-default args`` line; ``--set`` goes on
top. ``trace.shared_prefix=N`` says of the trace that all prompts begin with the same N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from replay_engine.policy import Policy
from replay_engine.profile import Latency, Profile
from replay_engine.releases import ASSUMED, nearest_release
from tracekit.errors import UsageError, shown
from tracekit.policy_source import policy_from

__all__ = ["SHARED_PREFIX", "Known", "known_settings", "said_of"]

SHARED_PREFIX = "trace.shared_prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """``policy`` with everything that was said, ``given`` the knobs of ``[scheduler]`` among it; ``notes``: what was assumed.
    ``profile`` only has the facts that settings are derived from."""

    policy: Policy
    given: frozenset[str]
    notes: tuple[str, ...]
    profile: Profile
    shared_prefix: int | None = None
    """Tokens that all prompts begin with; ``None``: nobody says."""
    release_assumed: bool = False
    """Whether another release stands for the one that was named, or nobody named one."""


def known_settings(policy: str | None, sets: Sequence[str], prior: Profile | None) -> Known:
    """Read what was said. ``UsageError``, ``ConfigError``: it cannot be understood."""
    profile = prior if prior is not None else Profile(name="unknown", latency=Latency(), synthetic=True)
    plain, shared, notes = said_of(sets)
    built = policy_from(profile, policy, plain, fitted=False)
    assumed = bool(notes) or any(ASSUMED in note for note in built.notes)
    if "engine_version" not in built.settings:
        assumed = True
        notes.append(f"engine_version = {built.scheduler.engine_version} is assumed: nobody said which release it was")
    given, notes = frozenset(built.settings), [*built.notes, *notes]
    return Known(policy=built, given=given, notes=tuple(notes), profile=profile, shared_prefix=shared,
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
            release, note = nearest_release(value.strip())
            plain.append(f"engine_version={release}")
            notes += [note] if note else []
        else:
            plain.append(each)
    return plain, shared, notes


def _tokens(text: str) -> int:
    if not text.strip().isdecimal():
        raise UsageError(f"--set {SHARED_PREFIX}={shown(text)}: expected a whole number of tokens")
    return int(text)

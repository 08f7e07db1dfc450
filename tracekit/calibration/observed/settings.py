"""Under which settings the observed engine ran, as far as somebody says so.

``--policy`` is a policy file, a ``vllm serve`` command, or a log of vLLM or its ``non-default args`` line; ``--set`` goes on
top. Of the trace ``trace.shared_prefix=N`` says that all prompts begin with the same N tokens (``N@K``: that those after the
first K requests share N on average), ``trace.clock=client`` whose clock its latencies are by, where its format does not tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from replay_engine.policy import Policy
from replay_engine.profile import Latency, Profile
from replay_engine.releases import ASSUMED, nearest_release
from tracekit.errors import UsageError, shown
from tracekit.policy_source import policy_from
from tracekit.traces.said_prefix import Beginning

__all__ = ["CLOCK", "SHARED_PREFIX", "Known", "Said", "known_settings", "said_of"]

SHARED_PREFIX, CLOCK = "trace.shared_prefix", "trace.clock"
CLOCKS = ("server", "gateway", "client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """``policy`` with everything that was said, ``given`` the knobs of ``[scheduler]`` among it; ``notes``: what was assumed.
    ``profile`` only has the facts that settings are derived from."""

    policy: Policy
    given: frozenset[str]
    notes: tuple[str, ...]
    profile: Profile
    shared_prefix: Beginning | None = None
    """What prompts begin alike with; ``None``: nobody says."""
    release_assumed: bool = False
    """Whether another release stands for the one that was named, or nobody named one."""
    clock: str | None = None
    """Whose clock latencies are by, as somebody says; ``None``: what the trace's format tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """``plain``: what a policy takes; of the trace ``shared_prefix`` and ``clock``, ``None`` where nobody says;
    ``notes``: what was assumed."""

    plain: list[str]
    shared_prefix: Beginning | None
    clock: str | None
    notes: list[str]


def known_settings(policy: str | None, sets: Sequence[str], prior: Profile | None) -> Known:
    """Read what was said. ``UsageError``, ``ConfigError``: it cannot be understood."""
    profile = prior if prior is not None else Profile(name="unknown", latency=Latency(), synthetic=True)
    said = said_of(sets)
    built, notes = policy_from(profile, policy, said.plain, fitted=False), said.notes
    assumed = bool(notes) or any(ASSUMED in note for note in built.notes)
    if "engine_version" not in built.settings:
        assumed = True
        notes.append(f"engine_version = {built.scheduler.engine_version} is assumed: nobody said which release it was")
    given, notes = frozenset(built.settings), [*built.notes, *notes]
    return Known(policy=built, given=given, notes=tuple(notes), profile=profile, shared_prefix=said.shared_prefix,
                 release_assumed=assumed, clock=said.clock)  # fmt: skip


def said_of(sets: Sequence[str]) -> Said:
    """What is said of the engine, the release as the nearest one that is known, apart from what is said of the trace.
    ``UsageError``: no number, no clock, or no release."""
    plain, shared, clock, notes = list[str](), None, None, list[str]()
    for each in sets:
        name, _, value = each.partition("=")
        bare = name.strip().removeprefix("scheduler.")
        if bare == SHARED_PREFIX:
            shared = Beginning.parse(value, f"--set {SHARED_PREFIX} =")
        elif bare == CLOCK:
            clock = value.strip()
            if clock not in CLOCKS:
                raise UsageError(f"--set {CLOCK}={shown(value)}: expected one of {', '.join(CLOCKS)}")
        elif bare == "engine_version":
            release, note = nearest_release(value.strip())
            plain.append(f"engine_version={release}")
            notes += [note] if note else []
        else:
            plain.append(each)
    return Said(plain=plain, shared_prefix=shared, clock=clock, notes=notes)


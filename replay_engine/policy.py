"""Policies: the settings a service runs with, from a TOML file, a ``vllm serve`` command, ``knob=value`` pairs and defaults.

``build_policy(profile, source, sets)`` does it all. What is not given follows vLLM 0.33's API-server defaults for the
profile's hardware, and what depends on other settings (budget, seats, blocks, length) is derived again after each change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.policy_defaults import derive_scheduler
from replay_engine.profile import Profile
from replay_engine.settings_file import locate, nearest, one_line, parse_toml, render_toml
from replay_engine.vllm_flags import KNOBS, knob_value, looks_like_command, render_flags, split_command

__all__ = [
    "Policy",
    "apply_set",
    "as_vllm_flags",
    "build_policy",
    "default_policy",
    "load_policy",
    "parse_vllm_command",
]

LATER_TABLES = ("batching", "front_door", "order", "preemption", "client", "fleet", "link")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A whole policy. ``settings`` holds the ``[scheduler]`` values that were given, ``scheduler`` all of them, derived.

    ``slo`` is the raw ``[slo]`` table. ``notes`` says, a line each, what is estimated, clipped or ignored.
    """

    name: str
    scheduler: SchedulerConfig
    settings: dict[str, Any] = field(default_factory=dict)
    slo: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def estimated(self) -> tuple[str, ...]:
        """Knobs of ``scheduler`` whose value is our estimate rather than a setting or a vLLM default."""
        return () if "num_gpu_blocks" in self.settings else ("num_gpu_blocks",)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ``from_dict`` reads it back."""
        return {
            "name": self.name,
            "scheduler": asdict(self.scheduler),
            "settings": dict(self.settings),
            "slo": self.slo,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Policy:
        try:
            return cls(
                name=document["name"],
                scheduler=SchedulerConfig(**document["scheduler"]),
                settings=dict(document["settings"]),
                slo=dict(document["slo"]),
                notes=tuple(document["notes"]),
            )
        except (KeyError, TypeError) as error:
            raise ConfigError(f"policy: {one_line(error)}; expected name, scheduler, settings, slo, notes") from None

    def to_toml(self) -> str:
        """A policy file that gives every knob."""
        document: dict[str, Any] = {"name": self.name, "scheduler": asdict(self.scheduler)}
        if self.slo:
            document["slo"] = self.slo
        return render_toml(document)


def default_policy(profile: Profile) -> Policy:
    """vLLM's API-server defaults on the profile's hardware; the number of KV blocks is an estimate and says so."""
    return _derived("vllm-defaults", {}, {}, (), profile)


def load_policy(source: str | Path, profile: Profile) -> Policy:
    """A policy from a TOML file's path, TOML text, or a ``vllm serve`` command; the rest are the profile's defaults."""
    text = str(source)
    if not isinstance(source, Path) and looks_like_command(text):
        return parse_vllm_command(text, profile)
    if not isinstance(source, Path) and ("\n" in text or "=" in text or text.lstrip().startswith("[")):
        return _from_toml(text, "policy", "policy", profile)
    path = Path(source)
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{one_line(text)}: not UTF-8 text; expected a policy in TOML") from None
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise ConfigError(f'policy {one_line(text)}: {reason}; expected a TOML file or "vllm serve ..."') from None
    return _from_toml(content, one_line(text), path.stem, profile)


def parse_vllm_command(text: str, profile: Profile) -> Policy:
    """The policy a ``vllm serve MODEL --flag ...`` line runs with on the profile's hardware."""
    command = split_command(text)
    notes = list(command.notes)
    if profile.model is not None and command.model and not _same_model(command.model, profile.model.name):
        notes.append(f"the command serves {one_line(command.model)}, the profile is of {profile.model.name}")
    cards = profile.hardware.tensor_parallel if profile.hardware else 1
    if command.tensor_parallel not in (None, cards):
        notes.append(f"the command uses tensor parallel {command.tensor_parallel}, the profile {cards}: the profile's stands")
    return _derived("vllm-serve", command.settings, {}, notes, profile)


def apply_set(policy: Policy, sets: Iterable[str], profile: Profile) -> Policy:
    """The policy with ``knob=value`` or ``table.knob=value`` pairs applied, and everything that depends on them derived."""
    settings, slo = dict(policy.settings), dict(policy.slo)
    for pair in sets:
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ConfigError(f"--set {one_line(pair)}: expected knob=value")
        table, _, knob = name.rpartition(".")
        if table == "slo" or table.startswith("slo."):
            slo = _with_slo(slo, [*table.split(".")[1:], knob], value.strip())
        else:
            known = _known_knob(table, knob)
            settings[known] = knob_value(known, value)
    kept = tuple(note for note in policy.notes if " is ignored: " in note or note.startswith("the command "))
    return _derived(policy.name, settings, slo, kept, profile)


def build_policy(profile: Profile, source: str | Path | None = None, sets: Iterable[str] = ()) -> Policy:
    """Defaults, or ``source`` (see ``load_policy``), with ``sets`` on top."""
    policy = default_policy(profile) if source is None else load_policy(source, profile)
    pairs = list(sets)
    return apply_set(policy, pairs, profile) if pairs else policy


def as_vllm_flags(policy: Policy, against: Policy | None = None) -> str:
    """The policy as vLLM flags: those that differ from ``against`` (every one when ``None``), without an estimate of blocks."""
    flags = render_flags(policy.scheduler, None if against is None else against.scheduler)
    return " ".join(f for f in flags if not (policy.estimated and f.startswith("--num-gpu-blocks-override")))


def _from_toml(text: str, where: str, name: str, profile: Profile) -> Policy:
    document = parse_toml(text, where)
    for key, value in document.items():
        spot = locate(text, "", key, where)
        if key in LATER_TABLES:
            raise ConfigError(f"{spot}: [{key}] is not built yet; expected [scheduler] and [slo] only")
        if key not in ("scheduler", "slo", "name"):
            hint = f"did you mean [scheduler] {key}?" if key in KNOBS else nearest(key, ("scheduler", "slo", "name"))
            raise ConfigError(f"{spot}: {one_line(key)}: unknown; {hint}")
        if key != "name" and not isinstance(value, Mapping):
            raise ConfigError(f"{spot}: {key} = {one_line(value)}: expected a table [{key}]")
    settings: dict[str, Any] = {}
    for knob, value in document.get("scheduler", {}).items():
        try:
            known = _known_knob("scheduler", knob)
            settings[known] = knob_value(known, value) if isinstance(value, str) else value
        except ConfigError as error:
            raise ConfigError(f"{locate(text, 'scheduler', knob, where)}: {error}") from None
    try:
        return _derived(str(document.get("name", name)), settings, dict(document.get("slo", {})), (), profile)
    except ConfigError as error:
        knob = str(error).split(" ", 1)[0]
        raise ConfigError(f"{locate(text, 'scheduler', knob, where)}: {error}") from None


def _known_knob(table: str, knob: str) -> str:
    if table in LATER_TABLES:
        raise ConfigError(f"{table}.{one_line(knob)}: [{table}] is not built yet; expected a knob of [scheduler] or [slo]")
    if table not in ("", "scheduler"):
        raise ConfigError(f"{one_line(table)}.{one_line(knob)}: unknown table; {nearest(table, ('scheduler', 'slo'))}")
    if knob not in KNOBS:
        raise ConfigError(f"{one_line(knob)}: unknown knob; {nearest(knob, KNOBS)}")
    return knob


def _with_slo(slo: Mapping[str, Any], path: list[str], value: str) -> dict[str, Any]:
    changed = dict(slo)
    if len(path) == 1:
        changed[path[0]] = value
    else:
        inner = changed.get(path[0], {})
        changed[path[0]] = _with_slo(inner if isinstance(inner, Mapping) else {}, path[1:], value)
    return changed


def _same_model(served: str, known: str) -> bool:
    return known.lower() in served.lower()


def _derived(name: str, settings: dict[str, Any], slo: dict[str, Any], notes: Iterable[str], profile: Profile) -> Policy:
    scheduler, more = derive_scheduler(settings, profile)
    return Policy(name=name, scheduler=scheduler, settings=settings, slo=slo, notes=(*notes, *more))

"""Policies: the settings a service runs with, from a TOML file, a server's command line, ``knob=value`` pairs and defaults.

``build_policy(profile, source, sets)`` does it all. What is not given follows vLLM 0.33's API-server defaults for the
profile's hardware, and what depends on other settings (budget, seats, blocks, length) is derived again after each change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from replay_engine.combinations import check, implied, remarks
from replay_engine.config import ConfigError, SchedulerConfig
from replay_engine.plugins import check_plugins
from replay_engine.policy_defaults import derive_scheduler
from replay_engine.pool_settings import Pools, derive_pools, pool_of, pools_from, with_pool_knob
from replay_engine.profile import Profile
from replay_engine.releases import ASSUMED, with_known_release
from replay_engine.rule_tables import RULE_TABLES, Tables, knob_hint, rules_from, rules_to, with_rule
from replay_engine.rules import Rules
from replay_engine.settings_file import file_name, locate, nearest, one_line, parse_toml, render_toml, with_nested
from replay_engine.sglang_flags import looks_like_sglang, split_sglang
from replay_engine.vllm_flags import KNOBS, knob_value, looks_like_command, render_flags, split_command

__all__ = [
    "Policy",
    "apply_set",
    "as_vllm_flags",
    "build_policy",
    "default_policy",
    "load_policy",
    "parse_sglang_command",
    "parse_vllm_command",
]

KNOWN_TABLES = ("scheduler", *RULE_TABLES, "pools", "slo")
_KEPT = (" is ignored: ", "the command ", "SGLang", ASSUMED)
"""What marks a note of the source, to be kept when settings are derived again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A whole policy. ``settings`` holds the ``[scheduler]`` values that were given, ``scheduler`` all of them, derived.

    ``rules`` are the tables beyond vLLM's knobs, ``slo`` the raw ``[slo]`` table. ``notes`` says, a line each, what is
    estimated, clipped, implied or ignored. With separate ``pools`` (what each sets over ``settings``) ``engines`` has the
    scheduler of each, by pool.
    """

    name: str
    scheduler: SchedulerConfig
    rules: Rules = field(default_factory=Rules)
    settings: dict[str, Any] = field(default_factory=dict)
    slo: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    pools: Pools = field(default_factory=dict)
    engines: dict[str, SchedulerConfig] = field(default_factory=dict)

    @property
    def estimated(self) -> tuple[str, ...]:
        """Knobs of ``scheduler`` whose value is our estimate rather than a setting or a vLLM default."""
        return () if "num_gpu_blocks" in self.settings else ("num_gpu_blocks",)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ``from_dict`` reads it back."""
        return {
            "name": self.name,
            "scheduler": asdict(self.scheduler),
            "rules": rules_to(self.rules),
            "settings": dict(self.settings),
            "slo": self.slo,
            "notes": list(self.notes),
            "pools": {pool: dict(own) for pool, own in self.pools.items()},
            "engines": {pool: asdict(config) for pool, config in self.engines.items()},
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Policy:
        try:
            return cls(
                name=document["name"],
                scheduler=SchedulerConfig(**document["scheduler"]),
                rules=rules_from(document.get("rules", {})),
                settings=dict(document["settings"]),
                slo=dict(document["slo"]),
                notes=tuple(document["notes"]),
                pools={pool: dict(own) for pool, own in document.get("pools", {}).items()},
                engines={pool: SchedulerConfig(**own) for pool, own in document.get("engines", {}).items()},
            )
        except (KeyError, TypeError) as error:
            raise ConfigError(f"policy: {one_line(error)}; expected name, scheduler, rules, settings, slo, notes") from None

    def to_toml(self) -> str:
        """A policy file that gives every knob of ``[scheduler]`` and every other one that is not at its default."""
        document: dict[str, Any] = {"name": self.name, "scheduler": asdict(self.scheduler)}
        document |= rules_to(self.rules, changed_only=True)
        if self.pools:
            document["pools"] = self.pools
        if self.slo:
            document["slo"] = self.slo
        return render_toml(document)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What a source says, before anything is derived from it. ``text`` and ``where``: the file, for error messages."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    rules: Tables = field(default_factory=dict)
    pools: Pools = field(default_factory=dict)
    slo: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    text: str = ""
    where: str = ""
    made: Rules | None = None
    """The rules themselves, while nothing is set over them: then ``rules`` says nothing."""
    changed: frozenset[str] = frozenset()
    """Knobs that were set over the file's: an error about one is not the file's."""


def default_policy(profile: Profile) -> Policy:
    """vLLM's API-server defaults on the profile's hardware; the number of KV blocks is an estimate and says so."""
    return _derived(_Given(name="vllm-defaults"), profile)


def load_policy(source: str | Path, profile: Profile) -> Policy:
    """A policy from a TOML file's path, TOML text, or a ``vllm serve`` or SGLang command; the rest are the profile's defaults."""
    return _derived(_read(source, profile), profile)


def parse_vllm_command(text: str, profile: Profile) -> Policy:
    """The policy a ``vllm serve MODEL --flag ...`` line runs with on the profile's hardware."""
    return _derived(_from_vllm(text, profile), profile)


def parse_sglang_command(text: str, profile: Profile) -> Policy:
    """The nearest policy to what a ``python -m sglang.launch_server ...`` line runs with; ``notes`` say where it differs."""
    return _derived(_from_sglang(text, profile), profile)


def apply_set(policy: Policy, sets: Iterable[str], profile: Profile) -> Policy:
    """The policy with ``knob=value`` or ``table.knob=value`` pairs applied, and everything that depends on them derived."""
    sets = tuple(sets)
    said = any(each.partition("=")[0].strip().removeprefix("scheduler.") == "engine_version" for each in sets)
    kept = tuple(note for note in policy.notes if any(mark in note for mark in _KEPT) and not (said and ASSUMED in note))
    given = _Given(name=policy.name, settings=dict(policy.settings), made=policy.rules, pools=policy.pools, slo=dict(policy.slo),
                   notes=kept)  # fmt: skip
    return _derived(_with_sets(given, sets), profile)


def build_policy(profile: Profile, source: str | Path | None = None, sets: Iterable[str] = ()) -> Policy:
    """Defaults, or ``source`` (see ``load_policy``), with ``sets`` on top. Combinations without a meaning are refused."""
    given = _Given(name="vllm-defaults") if source is None else _read(source, profile)
    return _derived(_with_sets(given, sets), profile)


def as_vllm_flags(policy: Policy, against: Policy | None = None) -> str:
    """The policy as vLLM flags: those that differ from ``against`` (every one when ``None``), without an estimate of blocks.

    Rules that vLLM does not have are left out.
    """
    flags = render_flags(policy.scheduler, None if against is None else against.scheduler)
    door, theirs = policy.rules.front_door, None if against is None else against.rules.front_door
    for flag, knob in (("--max-num-queued-reqs", "max_queued_reqs"), ("--max-num-queued-tokens", "max_queued_tokens")):
        bound = getattr(door, knob)
        if bound is not None and (theirs is None or getattr(theirs, knob) != bound):
            flags.append(f"{flag} {bound}")
    return " ".join(f for f in flags if not (policy.estimated and f.startswith("--num-gpu-blocks-override")))


def _read(source: str | Path, profile: Profile) -> _Given:
    text = str(source)
    if not isinstance(source, Path):
        if looks_like_sglang(text):
            return _from_sglang(text, profile)
        if looks_like_command(text):
            return _from_vllm(text, profile)
        if "\n" in text or "=" in text or text.lstrip().startswith("["):
            return _from_toml(text, "policy", "policy")
    path = Path(source)
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{file_name(text)}: not UTF-8 text; expected a policy in TOML") from None
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise ConfigError(f'policy {file_name(text)}: {reason}; expected a TOML file or "vllm serve ..."') from None
    return _from_toml(content, file_name(text), path.stem)


def _from_vllm(text: str, profile: Profile) -> _Given:
    command = split_command(text)
    notes = (*command.notes, *_other_setup(command.model, command.tensor_parallel, profile))
    rules = {"front_door": command.front_door} if command.front_door else {}
    return _Given(name="vllm-serve", settings=command.settings, rules=rules, notes=notes)


def _from_sglang(text: str, profile: Profile) -> _Given:
    command = split_sglang(text, profile)
    notes = (*command.notes, *_other_setup(command.model, command.tensor_parallel, profile))
    return _Given(name="sglang", settings=command.settings, rules=command.rules, notes=notes)


def _other_setup(model: str | None, parallel: int | None, profile: Profile) -> list[str]:
    notes = []
    if profile.model is not None and model and profile.model.name.lower() not in model.lower():
        notes.append(f"the command serves {one_line(model)}, the profile is of {profile.model.name}")
    cards = profile.hardware.tensor_parallel if profile.hardware else 1
    if parallel not in (None, cards):
        notes.append(f"the command uses tensor parallel {parallel}, the profile {cards}: the profile's stands")
    return notes


def _from_toml(text: str, where: str, name: str) -> _Given:
    document = parse_toml(text, where)
    for key, value in document.items():
        spot = locate(text, "", key, where)
        if key not in (*KNOWN_TABLES, "name"):
            hint = f"did you mean [scheduler] {key}?" if key in KNOBS else nearest(key, (*KNOWN_TABLES, "name"))
            raise ConfigError(f"{spot}: {one_line(key)}: unknown; {hint}")
        if key != "name" and not isinstance(value, Mapping):
            raise ConfigError(f"{spot}: {key} = {one_line(value)}: expected a table [{key}]")
    given = _Given(name=str(document.get("name", name)), text=text, where=where, slo=dict(document.get("slo", {})))
    settings: dict[str, Any] = {}
    try:
        for knob, value in document.get("scheduler", {}).items():
            known = _known_knob(knob)
            settings[known] = knob_value(known, value) if isinstance(value, str) else value
        rules = {table: dict(document[table]) for table in RULE_TABLES if table in document}
        rules_from(rules)
        pools = pools_from(document.get("pools", {}))
    except ConfigError as error:
        raise _located(error, given) from None
    return replace(given, settings=settings, rules=rules, pools=pools)


def _with_sets(given: _Given, sets: Iterable[str]) -> _Given:
    settings, rules, pools, slo, made = dict(given.settings), given.rules, given.pools, dict(given.slo), given.made
    changed = set()
    for pair in sets:
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ConfigError(f"--set {one_line(pair)}: expected knob=value")
        table, _, knob = name.rpartition(".")
        changed.add(name.removeprefix("scheduler."))
        if table == "slo" or table.startswith("slo."):
            slo = with_nested(slo, [*table.split(".")[1:], knob], value.strip())
        elif (pool := pool_of(table)) is not None:
            pools = with_pool_knob(pools, pool, knob, value)
        elif table in ("", "scheduler"):
            known = _known_knob(knob)
            settings[known] = knob_value(known, value)
        else:
            before, made = rules if made is None else rules_to(made, changed_only=True), None
            rules = with_rule(before, table, knob, value)
    return replace(given, settings=settings, rules=rules, pools=pools, slo=slo, made=made, changed=frozenset(changed))


def _known_knob(knob: str) -> str:
    if knob not in KNOBS:
        raise ConfigError(f"{one_line(knob)}: unknown knob; {knob_hint(knob)}")
    return knob


def _derived(given: _Given, profile: Profile) -> Policy:
    """Everything that follows from what is given, checked."""
    try:
        rules = rules_from(given.rules) if given.made is None else given.made
        own, assumed = with_known_release(given.settings)
        settings, implications = implied(own, rules)
        scheduler, derivations = derive_scheduler(settings, profile)
        check(scheduler, rules)
        engines = derive_pools(settings, given.pools, profile, scheduler.max_model_len) if rules.pd.prefill else {}
        for config in engines.values():
            check(config, rules)
            scheduler = replace(scheduler, max_model_len=config.max_model_len)
        check_plugins(rules)
    except ConfigError as error:
        raise _located(error, given) from None
    notes = (*given.notes, *assumed, *implications, *derivations, *remarks(scheduler, rules))
    return Policy(
        name=given.name, scheduler=scheduler, rules=rules, settings=own, slo=given.slo, notes=notes,
        pools=given.pools, engines=engines,
    )  # fmt: skip


def _located(error: ConfigError, given: _Given) -> ConfigError:
    """The error with the file and line of the knob that it begins with."""
    name = str(error).split(" ", 1)[0].rstrip(":")
    if not given.text or name in given.changed:
        return error
    table, _, knob = name.rpartition(".")
    return ConfigError(f"{locate(given.text, table or 'scheduler', knob, given.where)}: {error}")

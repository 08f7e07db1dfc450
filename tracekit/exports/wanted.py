"""What is to be set, and why: a run's policy against the defaults, a finding's confirmed change, or a tuner's recommendation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from replay_engine.config import ConfigError
from replay_engine.policy import Policy, apply_set, build_policy, default_policy
from replay_engine.profile import Profile, load_profile, parse_profile
from replay_engine.rule_tables import rules_to
from tracekit.errors import UsageError, shown, shown_path
from tracekit.experiments.knobs import flat_policy, knob_text

__all__ = ["Setting", "Wanted", "fewest_settings", "read_tuned", "wanted_by_finding", "wanted_by_run", "wanted_by_tuner"]

TUNED = "tracekit.tune/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A knob as ``--set`` names it, its value as ``--set`` takes it, and why it is set."""

    knob: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """``title``: whose settings these are. ``notes``: what else to know, a line each. ``engine_version``: vLLM's, whose scheduler
    was replayed. ``target``: the whole policy that is wanted where another one runs today. ``profile``: ``None`` where only its
    name is known."""

    title: str
    settings: tuple[Setting, ...]
    engine_version: str
    target: Callable[[Policy, Profile], Policy]
    block_size: int = 16
    replicas: int = 1
    profile: Profile | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def pairs(self) -> list[str]:
        """``knob=value`` for each setting."""
        return [f"{each.knob}={each.value}" for each in self.settings]


def fewest_settings(policy: Policy, profile: Profile) -> dict[str, Any]:
    """The settings without which ``policy`` would be another one; the rest was given as it is derived anyway."""
    kept = dict(policy.settings)
    for knob in list(kept):
        fewer = {name: value for name, value in kept.items() if name != knob}
        try:
            without = apply_set(replace(policy, settings=fewer), (), profile)
        except ConfigError:
            continue
        if without.scheduler == policy.scheduler and without.engines == policy.engines:
            kept = fewer
    return kept


def wanted_by_run(row: Mapping[str, Any], pool: str | None = None) -> Wanted:
    """What of a ``runs`` row's policy differs from the engine's defaults on its hardware. ``pool``: ``prefill`` or ``decode`` of
    a run with separate pools. ``UsageError``: the run kept no policy, or the pool is missing or not there."""
    policy, profile = _policy_of(row)
    if bool(policy.rules.pd.prefill) != (pool is not None):
        raise UsageError(f"run {row['run']} has " + ("separate pools; expected --pool prefill or --pool decode" if pool is None
                                                     else "no separate pools; expected no --pool"))  # fmt: skip
    default = default_policy(profile)
    own = policy.pools.get(pool, {}) if pool is not None else {}
    settings = fewest_settings(policy, profile) | dict(own)
    settings.pop("engine_version", None)
    flat, usual = flat_policy(policy.to_dict()), flat_policy(default.to_dict())
    wanted = [Setting(knob=knob, value=knob_text(value), why=_against(usual.get(knob)))
              for knob, value in settings.items()]  # fmt: skip
    changed = flat_policy({"scheduler": {}, "rules": rules_to(policy.rules, changed_only=True)})
    wanted += [Setting(knob=knob, value=knob_text(value), why=_against(usual.get(knob)))
               for knob, value in changed.items() if value != usual.get(knob)]  # fmt: skip
    engine = policy.scheduler if pool is None else policy.engines[pool]
    whose = f"run {row['run']}" + (f", {pool} engines" if pool else "")
    return Wanted(
        title=f"tracekit {whose} ({shown(row['trace_name'])}): what differs from vLLM's defaults on {_hardware(profile)}",
        settings=tuple(wanted), engine_version=engine.engine_version, block_size=engine.block_size,
        replicas=max(1, policy.rules.fleet.replicas), profile=profile,
        notes=tuple(_follows(policy, flat, usual, set(settings))) if pool is None else (),
        target=lambda _, on: policy if pool is None else build_policy(on, None, [f"{each.knob}={each.value}" for each in wanted]),
    )  # fmt: skip


def wanted_by_finding(row: Mapping[str, Any], verdict: Mapping[str, Any] | None, finding: str) -> Wanted:
    """The change that a replay confirmed against one finding (its id, or its rank) of a run's latest diagnosis. ``UsageError``:
    there is no such finding, or nothing was confirmed against it."""
    number = row["run"]
    if verdict is None:
        raise UsageError(f"run {number} has no recorded diagnosis; `tracekit diagnose {number}` makes one with its proofs")
    findings = verdict["findings"]
    ids = [each["id"] for each in findings]
    found = next((each for rank, each in enumerate(findings, 1) if finding in (each["id"], str(rank))), None)
    if found is None:
        there = f"expected one of {', '.join(ids)}" if ids else "nothing was found in it"
        raise UsageError(f"--finding {shown(finding)}: run {number} has no such finding; {there}")
    advice = found["recommend"][0] if found["recommend"] else None
    done = None if advice is None else advice["replayed"]
    if advice is None or done is None or done["outcome"] != "confirmed":
        why = "no change is recommended" if advice is None else "its change has not been replayed"
        raise UsageError(f"--finding {found['id']}: {why}, and what no replay confirmed is not exported;"
                         f" `tracekit diagnose {number}` replays changes")  # fmt: skip
    policy, profile = _policy_of(row)
    reason = "; ".join(each for each in (advice["why"], f"confirmed by replay: {done['reason']}") if each)
    sets = tuple(advice["set"])
    return Wanted(
        title=f"tracekit run {number} ({shown(row['trace_name'])}), {found['id']}: {found['name']}",
        settings=tuple(_split(sets, reason)), engine_version=policy.scheduler.engine_version,
        block_size=policy.scheduler.block_size, profile=profile,
        notes=(f"price: {advice['price']}",) if advice["price"] else (),
        target=lambda current, on: apply_set(current, sets, on),
    )  # fmt: skip


def wanted_by_tuner(document: Mapping[str, Any]) -> Wanted:
    """What a tuner's answer (``tracekit.tune/1``) recommends. ``UsageError``: it recommends nothing."""
    if not document.get("recommended"):
        raise UsageError(f"the tuner recommends no change: {shown(document.get('why'), 400)}")
    sets = tuple(document["sets"])
    old = {change["knob"]: change["old"] for change in document["changes"]}
    gain = _gain(document.get("gain"))
    settings = [Setting(knob=each.knob, value=each.value, why=f"{knob_text(old[each.knob])} today" if each.knob in old else gain)
                for each in _split(sets, gain)]  # fmt: skip
    derived = [f"follows: {each['knob']} = {knob_text(each['new'])} (today {knob_text(each['old'])})"
               for each in document["changes"] if each["derived"]]  # fmt: skip
    return Wanted(
        title=f"tracekit tune, {shown(document['trace'])}: {shown(document['why'], 400)}",
        settings=tuple(settings), engine_version=_version(document), block_size=_block_size(document),
        profile=_profile(document), notes=(f"SLO-goodput on windows that were not searched: {gain}", *derived),
        target=lambda current, on: apply_set(current, sets, on),
    )  # fmt: skip


def read_tuned(path: str | Path) -> dict[str, Any]:
    """A tuner's answer from a file. ``UsageError``: it is none."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not JSON"
        raise UsageError(f"{shown_path(path)}: {reason}; expected what `tracekit tune --json` prints") from None
    if not isinstance(document, dict) or document.get("schema") != TUNED or any(
        document.get(each) for each in ("dry_run", "search_only")
    ):
        raise UsageError(f"{shown_path(path)}: no answer of a tuner ({TUNED}); expected what `tracekit tune --json` prints")
    return _with_plan(document, Path(path).with_name("plan.json"))


def _with_plan(document: dict[str, Any], plan: Path) -> dict[str, Any]:
    """The answer with the profile of the plan beside it, where that is this answer's."""
    try:
        found = json.loads(plan.read_text(encoding="utf-8"))
        text = found["profile_text"]
        if parse_profile(text, str(plan)).name == document["profile"]:
            document["profile_text"] = text
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return document


def _policy_of(row: Mapping[str, Any]) -> tuple[Policy, Profile]:
    number = row["run"]
    if row["policy"] is None or row["setup"] is None:
        raise UsageError(f"run {number} was recorded without its policy or profile; replay again")
    return Policy.from_dict(row["policy"]), parse_profile(row["setup"]["profile"], f"profile of run {number}")


def _hardware(profile: Profile) -> str:
    if profile.hardware is None or profile.model is None:
        return f"profile {profile.name}"
    return f"{profile.hardware.name} with {profile.model.name}"


def _against(usual: Any) -> str:
    return "not set by default" if usual is None else f"default {knob_text(usual)}"


def _follows(policy: Policy, flat: Mapping[str, Any], usual: Mapping[str, Any], given: set[str]) -> Iterator[str]:
    """Knobs that differ too, but only because others do: the engine derives them by itself."""
    for knob in policy.to_dict()["scheduler"]:
        if knob not in given and knob != "engine_version" and flat[knob] != usual[knob]:
            estimate = ", an estimate: the engine prints the real one at start" if knob in policy.estimated else ""
            yield f"follows, not set: {knob} = {knob_text(flat[knob])} (default {knob_text(usual[knob])}){estimate}"


def _split(sets: tuple[str, ...], why: str) -> Iterator[Setting]:
    for each in sets:
        knob, _, value = each.partition("=")
        yield Setting(knob=knob.strip().removeprefix("scheduler."), value=value.strip(), why=why)


def _gain(gain: Mapping[str, Any] | None) -> str:
    if gain is None or gain.get("estimate") is None:
        return "gain unknown"
    interval = "" if gain["low"] is None else f" [{100 * gain['low']:+.1f}, {100 * gain['high']:+.1f}]"
    return f"{100 * gain['estimate']:+.1f} %{interval} (n = {gain['n']} windows, {gain['requests']:,} requests)"


def _version(document: Mapping[str, Any]) -> str:
    from tracekit.flags import NEWEST

    return str(document.get("engine_version", NEWEST))


def _block_size(document: Mapping[str, Any]) -> int:
    return int(document.get("block_size", 16))


def _profile(document: Mapping[str, Any]) -> Profile | None:
    """The profile that was tuned on: its own text, else the one of that name where it is one of ours."""
    if "profile_text" in document:
        return parse_profile(str(document["profile_text"]), "profile of the tuner")
    try:
        return load_profile(str(document["profile"]))
    except ConfigError:
        return None

"""What somebody wants replayed or tuned, as words of the command line, checked before a process is started for it.

For whoever starts work without a shell. Every value stands behind its option's ``=`` and the trace behind ``--``, so that nothing
in them can be taken for another option; a policy is TOML or a server's command line, never the name of a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay_engine.config import ConfigError
from replay_engine.fleet.routers import ROUTERS
from replay_engine.policy import Policy, build_policy
from replay_engine.profile import DEFAULT_PROFILE, list_profiles, load_profile
from tracekit.engines import ENGINES
from tracekit.errors import UsageError, shown
from tracekit.fingerprint import text_digest
from tracekit.metrics import SloTable, parse_slo
from tracekit.profile_files import profile_word
from tracekit.slices import check_slice
from tracekit.store import Store, load_run

__all__ = [
    "DEFAULT_PROFILE", "ENGINES", "LONGEST", "ROUTERS", "ConfigError", "ReplayOrder", "again_words", "checked_policy",
    "policy_notes", "profiles_known", "replay_words", "run_words", "tune_words",
]  # fmt: skip

LONGEST = 20_000
"""Characters of a policy; other values are far shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOrder:
    """``trace``: a path or a loaded trace's name, from somebody who may name files; everything else is as people type it, empty
    where nothing is said. ``profile``: a shipped name, or a file's digest (``tracekit.profile_files``). ``sets``: ``knob=value``,
    one each."""

    trace: str
    engine: str = "auto"
    profile: str = DEFAULT_PROFILE
    policy: str = ""
    sets: tuple[str, ...] = ()
    slo: str = ""
    window: str = ""
    limit: str = ""
    name: str = ""


def profiles_known() -> list[tuple[str, str]]:
    """The shipped profiles: name, and a line that describes it."""
    return [(profile.name, profile.describe()) for profile in list_profiles()]


def replay_words(order: ReplayOrder, *, db: Path) -> list[str]:
    """The command line after ``tracekit``. Errors: ``UsageError`` and ``ConfigError``, as the command itself would say them."""
    if order.engine not in ENGINES:
        raise UsageError(f"engine {shown(order.engine)}: expected one of {', '.join(ENGINES)}")
    profile = profile_word(Store(db), order.profile)
    checked_policy(order.policy, order.sets, profile)
    if order.slo:
        parse_slo(order.slo)
    if order.limit and not (order.limit.isascii() and order.limit.isdigit() and 0 < int(order.limit) < 1 << 31):
        raise UsageError(f"--limit {shown(order.limit)}: expected a number of requests above 0")
    check_slice({"window": order.window or None, "limit": int(order.limit) if order.limit else None})
    if len(order.name) > 100 or not order.name.isprintable():
        raise UsageError("name: expected at most 100 printable characters")
    options = {"engine": order.engine, "profile": profile, "policy": order.policy.strip(), "slo": order.slo,
               "window": order.window, "limit": order.limit, "name": order.name}  # fmt: skip
    words = [f"--{name}={value}" for name, value in options.items() if value]
    return ["replay", *words, *(f"--set={pair}" for pair in order.sets), f"--db={db}", "--", order.trace]


_SCALES = ("burst_scale", "isl_scale", "osl_scale")
"""What ``replay`` or ``capacity`` make of a trace and ``tune`` does not."""


def again_words(run: int, sets: Sequence[str], *, db: Path, name: str = "") -> list[str]:
    """A recorded run once more, with ``sets`` changed, which may be words about the traffic."""
    from tracekit.diagnosis.changes import again_options

    named = [f"--name={name[:100]}"] if name else []
    return ["replay", f"--from-run={int(run)}", *again_options(sets), *named, f"--db={db}"]


def tune_words(store: Store, run: int, *, trials: int, workers: int = 1) -> list[str]:
    """A search for better settings than a recorded run's: its trace, slice, profile, SLO and policy as what is in force today.
    ``UsageError`` where the run has no SLO or kept no setup. A profile that does not ship is written beside the database."""
    trace, words = run_words(store, run)
    row = load_run(store, run)
    if row["slo"] is None:
        raise UsageError(f"run {run} has no SLO to tune for; replay it with one, as --slo ttft=500ms,tpot=50ms")
    scaled = next((name for name in _SCALES if (row["slice"] or {}).get(name, 1.0) != 1.0), None)
    if scaled is not None:
        option = f"--{scaled.replace('_', '-')} {row['slice'][scaled]:g}"
        raise UsageError(f"run {run} has {option}, and a search takes the trace as it is; start it from a run without")
    return ["tune", *words, f"--trials={trials}", f"--workers={workers}", f"--db={store.path.absolute()}", "--", trace]


def run_words(store: Store, run: int) -> tuple[str, list[str]]:
    """A recorded run's trace, and its SLO (if it has one), policy, profile and slice as options of ``tune`` and ``capacity``.
    ``UsageError`` where it kept no setup. A profile that does not ship is written beside the database."""
    row = load_run(store, run)
    if row["setup"] is None or row["policy"] is None:
        raise UsageError(f"run {run} was recorded by an older version, without what it takes to tune from it; replay again")
    policy = Policy.from_dict(row["policy"])
    words = [*(_slo_words(row["slo"]) if row["slo"] is not None else []), f"--policy={policy.to_toml()}",
             f"--profile={_profile(store, row)}", *_slice_words(row["slice"] or {})]  # fmt: skip
    return str(row["trace_name"]), words


def checked_policy(text: str, sets: tuple[str, ...], profile: str, default: str | None = None) -> Policy:
    """What a form asks for, as a policy: TOML or a ``vllm serve`` line (``default`` where there is none) and settings on it.
    Nothing gets through that would be taken for a file's name. ``UsageError`` says what does not serve."""
    text = text.strip()
    if len(text) > LONGEST:
        raise UsageError(f"policy: {len(text):,} characters; expected at most {LONGEST:,}")
    if text and not any(mark in text for mark in ("=", "\n", "vllm serve", "sglang")):
        raise UsageError(f"policy {shown(text)}: expected TOML as max_num_seqs = 128 below [scheduler], or vllm serve ...")
    if any("=" not in pair or len(pair) > 400 for pair in sets):
        raise UsageError("settings: expected KNOB=VALUE, one a line")
    return build_policy(load_profile(profile), text or default, sets)


def policy_notes(text: str, sets: tuple[str, ...], profile: str) -> list[str]:
    """What of a pasted command line is ignored, or is not what the profile has; other remarks come with every policy. Errors:
    those of ``checked_policy``."""
    if not text.strip():
        return []
    found = checked_policy(text, sets, profile).notes
    return [note for note in found if " is ignored: " in note or note.startswith("the command ")]


def _slo_words(slo: Mapping[str, Any]) -> list[str]:
    """What holds for everybody; what classes and tenants ask for stands in the policy."""
    default = SloTable.from_dict(slo).default
    return [f"--slo={default.text()}"] if default.given() else []


def _profile(store: Store, row: Mapping[str, Any]) -> str:
    """The run's profile: the name of a shipped one where it is that to the letter, else a file."""
    text = str(row["setup"]["profile"])
    try:
        if load_profile(row["profile"] or "").to_toml() == text:
            return str(row["profile"])
    except ConfigError:
        pass
    path = store.folder / "profiles" / f"{text_digest(text)}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path.absolute())


def _slice_words(part: Mapping[str, Any]) -> list[str]:
    """The part of the trace that the run replayed, as options of tune and capacity. A limit on requests is left out."""
    words = []
    if part.get("window_ns"):
        begin, end = part["window_ns"]
        words.append(f"--window={f'{begin}ns' if begin else '0'}:{end}ns")
    scaled = [name for name in ("rate_scale", *_SCALES) if part.get(name, 1.0) != 1.0]
    words += [f"--{name.replace('_', '-')}={part[name]!r}" for name in scaled]
    if part.get("where"):
        words.append(f"--where={part['where']}")
    if part.get("thin"):
        words.append(f"--thin={part['thin'][0]}/{part['thin'][1]}")
        words += [f"--by={part['by']}"] if part.get("by") else []
    words += [f"--sessions={part['sessions']}"] if part.get("sessions") else []
    words += ["--spread-ticks"] if part.get("spread_ticks") else []
    words += [f"--seed={part['seed']}"] if part.get("seed") else []
    return words

"""A capacity question from somebody without a shell, as words of the command line, checked before a process is started for it.

As in ``orders``: every value stands behind its option's ``=`` and the trace behind ``--``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from replay_engine.calibration.accelerators import ACCELERATORS
from replay_engine.policy import Policy
from replay_engine.profile import DEFAULT_PROFILE
from tracekit.errors import UsageError, shown
from tracekit.metrics import parse_slo
from tracekit.orders import checked_policy, profiles_known, run_words
from tracekit.profile_files import list_profile_files, profile_word
from tracekit.store import Store

__all__ = ["MOST_SCENARIOS", "CapacityOrder", "capacity_words", "hardware_known"]

MOST_SCENARIOS = 8
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,80}=[^\s=]\S{0,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityOrder:
    """``trace``: a loaded trace's name or a path, or ``run``: a recorded run, whose trace, slice, profile, SLO and policy are
    what is in force today, as far as nothing else is said. ``what_if``: scenarios, settings separated by spaces each. The rest
    is as people type it, empty where nothing is said."""

    trace: str = ""
    run: int | None = None
    profile: str = ""
    policy: str = ""
    sets: tuple[str, ...] = ()
    slo: str = ""
    target: str = ""
    windows: str = ""
    price: str = ""
    what_if: tuple[str, ...] = ()


def hardware_known(store: Store) -> list[tuple[str, str]]:
    """What a scenario may run on: its setting, and what it is called."""
    known = [(f"profile={name}", f"{name}: {line}") for name, line in profiles_known()]
    known += [(f"profile={each.key}", f"{each.name}: {each.told}") for each in list_profile_files(store)]
    return known + [(f"hardware={card.aliases[0]}", f"{card.name}, by arithmetic") for card in ACCELERATORS]


def capacity_words(order: CapacityOrder, store: Store) -> list[str]:
    """The command line after ``tracekit``. Errors: ``UsageError`` and ``ConfigError``, as the command itself would say them."""
    words = ["capacity"]
    trace, own = order.trace, dict[str, str]()
    if order.run is not None:
        trace, found = run_words(store, order.run)
        words += [word for word in found if not word.startswith(("--slo=", "--policy=", "--profile="))]
        own = {word.partition("=")[0]: word for word in found}
    profile = profile_word(store, order.profile) if order.profile else ""
    _check_policy(order, own, profile)
    if order.slo:
        parse_slo(order.slo)
    given = {"--profile": profile, "--policy": order.policy.strip(), "--slo": order.slo}
    for option, value in given.items():
        words += [f"{option}={value}"] if value else [own[option]] if option in own else []
    words += [f"--set={pair}" for pair in order.sets]
    words += _numbers(order)
    words += [f"--what-if={text}" for text in _scenarios(order.what_if, store)]
    return [*words, f"--db={store.path.absolute()}", "--", trace]


def _numbers(order: CapacityOrder) -> list[str]:
    words = []
    if order.target:
        share = _number("target", order.target.removesuffix("%")) / (100 if order.target.endswith("%") else 1)
        if not 0 < share <= 1:
            raise UsageError(f"target {shown(order.target)}: expected a share of the requests, as 0.9 or 90%")
        words.append(f"--target={share!r}")
    if order.windows:
        if not (order.windows.isascii() and order.windows.isdigit() and 0 < int(order.windows) <= 24):
            raise UsageError(f"windows {shown(order.windows)}: expected a number from 1 to 24")
        words.append(f"--windows={int(order.windows)}")
    if order.price:
        price = _number("price", order.price)
        if price <= 0:
            raise UsageError(f"price {shown(order.price)}: expected a price above 0")
        words.append(f"--price-per-hour={price!r}")
    return words


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{name} {shown(text)}: expected a number")
    return value


def _scenarios(texts: tuple[str, ...], store: Store) -> list[str]:
    """Each checked for what can be said of it without a plan: that it is made of settings, and that a profile in it is one that
    may be named."""
    if len(texts) > MOST_SCENARIOS:
        raise UsageError(f"{len(texts)} scenarios; expected at most {MOST_SCENARIOS}")
    for text in texts:
        for setting in text.split():
            if not _SETTING.fullmatch(setting):
                raise UsageError(f"what if {shown(setting)}: expected NAME=VALUE, separated by spaces")
    return [" ".join(_with_profile(setting, store) for setting in text.split()) for text in texts]


def _with_profile(setting: str, store: Store) -> str:
    name, _, value = setting.partition("=")
    if name != "profile":
        return setting
    found = profile_word(store, value)
    if found != value and len(found.split()) > 1:
        raise UsageError(f"profile {shown(found)}: a scenario cannot name a file with a space in its path; move the database")
    return f"profile={found}"


def _check_policy(order: CapacityOrder, own: dict[str, str], picked: str) -> Policy:
    given = own.get("--policy", "").partition("=")[2] or None
    profile = picked or own.get("--profile", "").partition("=")[2] or DEFAULT_PROFILE
    return checked_policy(order.policy, order.sets, str(Path(profile)) if "/" in profile else profile, given)

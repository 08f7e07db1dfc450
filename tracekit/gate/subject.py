"""What is gated: a recorded run, replayed again as it was, or a trace with the options of ``replay``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from replay_engine.policy import apply_set
from tracekit.again import option_beside
from tracekit.diagnosis.stored import setup_of
from tracekit.door_facts import door_facts
from tracekit.errors import UsageError, shown
from tracekit.replay import Setup, _slo, prepare_setup
from tracekit.store import Store, load_run, resolve_run

__all__ = ["subject_of"]

Say = Callable[[str], None]
_KEPT = ("inputs", "db", "engine", "events", "name", "seed", "sets", "slo", "goodput", "progress", "say")
"""Options that mean something beside a recorded run; all others are in it."""


def subject_of(store: Store, given: dict[str, Any], tell: Say) -> Setup:
    """The setup to be replayed. ``given``: the options of ``replay``, ``inputs`` among them. Errors: ``UsageError``,
    ``InputError``, ``ConfigError``."""
    inputs = [given["inputs"]] if isinstance(given["inputs"], str) else list(given["inputs"])
    run = None if len(inputs) != 1 else _run(store, inputs[0])
    if run is None:
        return prepare_setup(store, {**given, "inputs": inputs}, tell)
    row = load_run(store, run)
    if row["engine"] != "sim":
        raise UsageError(
            f"run {run} was measured on a real engine; a gate replays by the simulator: expected its runs, or a trace"
        )
    also = option_beside(given, _KEPT)
    if also is not None:
        raise UsageError(f"{also}: run {run} has its own; expected it with a trace")
    setup = setup_of(store, row)
    tell(f"run {run}: {shown(row['trace_name'])}, {setup.source.total:,} requests, {setup.profile.describe()}")
    return _changed(setup, given)


def _run(store: Store, text: str) -> int | None:
    """The run that ``text`` means, unless it is a file, a pattern, or the name of a loaded trace."""
    if os.path.exists(text) or any(char in text for char in "*?[") or not store.exists():
        return None
    with store.read() as con:
        there = {row[0] for row in con.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
        named = "traces" in there and con.execute("SELECT 1 FROM traces WHERE name = ?", [text]).fetchall()
        runs = "runs" in there and con.execute("SELECT 1 FROM runs WHERE name = ? OR run::TEXT = ?", [text, text]).fetchall()
    if text == "last" or runs or (text.isascii() and text.isdigit() and not named):
        return resolve_run(store, text)
    return None


def _changed(setup: Setup, given: dict[str, Any]) -> Setup:
    """The run's setup with ``--set`` and another SLO on top."""
    policy = apply_set(setup.policy, list(given["sets"]), setup.profile) if given["sets"] else setup.policy
    slo = _slo(given, policy) if given["slo"] or given["goodput"] else setup.slo
    facts = door_facts(policy, setup.profile, slo, setup.source)
    return replace(setup, policy=policy, slo=slo, facts=facts)

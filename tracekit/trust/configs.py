"""Configurations that were observed: a TOML file, one ``[[config]]`` each.

``trace = "file"`` is what was observed under it (a trace with latencies, path relative to the file), with
``set = ["knob=value", ...]`` and ``policy = "..."`` saying the settings; or ``run = "name"`` is a recorded run of a real engine,
whose trace, settings and latencies are in the database. ``name`` is how the report calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from replay_engine.config import ConfigError
from replay_engine.policy import Policy
from replay_engine.settings_file import file_name, one_line, parse_toml
from tracekit.diagnosis.stored import load_run_data
from tracekit.errors import UsageError, shown_path
from tracekit.store import Store
from tracekit.traces.load import read_trace
from tracekit.traces.source import TraceSource
from tracekit.trust.accuracy import Latencies, observed_latencies, predicted_latencies

__all__ = ["Config", "observed_config", "read_configs"]

KEYS = ("name", "trace", "run", "set", "policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One observed configuration. ``place``: where it stands, for messages. ``recorded``: its whole policy, where a run is what
    was observed; ``measured``: that run's latencies, else those in ``source``."""

    name: str
    place: str
    source: TraceSource
    sets: tuple[str, ...] = ()
    policy: str | None = None
    recorded: Policy | None = None
    measured: Latencies | None = None


def observed_config(config: Config) -> Latencies:
    """What was observed under it."""
    return config.measured if config.measured is not None else observed_latencies(config.source)


def read_configs(file: str | Path, store: Store) -> list[Config]:
    """The configurations of ``file``. ``UsageError``: not readable; ``ConfigError``: what is in it."""
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--configs {shown_path(file)}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}; expected TOML"
        ) from None
    where = file_name(path)
    entries = parse_toml(text, where).get("config")
    if not isinstance(entries, list) or len(entries) < 2 or not all(isinstance(each, Mapping) for each in entries):
        raise ConfigError(f"{where}: expected two or more [[config]] tables, each with a trace or a run")
    return [_config(each, number, path.parent, where, store) for number, each in enumerate(entries, start=1)]


def _config(entry: Mapping[str, Any], number: int, folder: Path, where: str, store: Store) -> Config:
    place = f"{where}, config {number}"
    for key in entry:
        if key not in KEYS:
            raise ConfigError(f"{place}: {one_line(key)}: unknown; expected {', '.join(KEYS)}")
    sets = entry.get("set", [])
    sets = [sets] if isinstance(sets, str) else sets
    if not all(isinstance(each, str) for each in sets):
        raise ConfigError(f"{place}: set = {one_line(sets)}: expected a list like ['max_num_seqs=64']")
    name = str(entry.get("name", f"config {number}"))
    if ("trace" in entry) == ("run" in entry):
        raise ConfigError(f"{place}: expected either trace = a file with observed latencies, or run = a recorded run")
    if "run" in entry:
        data = load_run_data(store, str(entry["run"]))
        measured = predicted_latencies(data.source, data.outcomes)
        return Config(name=name, place=place, source=data.source, recorded=data.policy, measured=measured)
    file = folder / str(entry["trace"])
    if not file.exists():
        raise ConfigError(f"{place}: trace = {one_line(entry['trace'])}: no such file; expected one beside {where}")
    source = TraceSource.from_loaded(read_trace([str(file)]))
    config = Config(name=name, place=place, source=source, sets=tuple(sets))
    return config if "policy" not in entry else replace(config, policy=str(entry["policy"]))

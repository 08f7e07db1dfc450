"""A recorded run once more: the same requests under the same profile, policy and SLO, with what ``--set``, and to its
arrivals ``--rate-scale`` and ``--burst-scale``, change."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tracekit.errors import UsageError, shown
from tracekit.store import Store, load_run, resolve_run

if TYPE_CHECKING:
    from tracekit.replay import Setup

__all__ = ["option_beside", "prepare_again"]

_MAY_DIFFER = {
    "inputs", "engine", "sets", "replicas", "pd", "router", "fail", "slow", "events", "name", "diagnose", "db", "progress", "say",
    "from_run",
    "rate_scale", "burst_scale",
}  # fmt: skip
"""What may be said beside ``--from-run``; everything else is the run's."""
_OPTIONS = {"trace_format": "format", "mapping": "map", "sets": "set"}


def prepare_again(store: Store, given: dict[str, Any], sets: Sequence[str], tell: Callable[[str], None]) -> Setup:
    """The setup of the run that ``given["from_run"]`` names, with ``sets`` applied. Errors: ``UsageError`` for another trace or
    option beside it, a run that cannot be replayed, or sets that change nothing; ``ConfigError``."""
    from tracekit.diagnosis.changes import TRAFFIC, changed_setup
    from tracekit.diagnosis.stored import setup_of

    _refuse_others(given)
    traffic = [pair for pair in sets if pair.startswith(TRAFFIC)]
    if traffic:
        raise UsageError(f"--set {shown(traffic[0])}: is of the traffic, not the policy; expected --rate-scale or --burst-scale")
    sets = [*sets, *(f"{TRAFFIC}{name}={given[name]!r}" for name in ("rate_scale", "burst_scale") if given[name] != 1.0)]
    row = load_run(store, resolve_run(store, given["from_run"]))
    setup = setup_of(store, row)
    tell(f"again: run {row['run']} ({shown(row['trace_name'])}, {setup.source.total:,} requests), simulated")
    tell(setup.profile.describe())
    if sets:
        changed = changed_setup(setup, sets)
        setup = changed.setup
        for knob, before, after in (*changed.named, *changed.besides):
            tell(f"{'' if knob.startswith(TRAFFIC) else 'policy: '}{knob} {before} -> {after}")
    return replace(setup, events=given["events"])


def _refuse_others(given: dict[str, Any]) -> None:
    if given["inputs"]:
        raise UsageError("--from-run: the trace is the run's; expected no TRACE beside it")
    if given["engine"] == "torch":
        raise UsageError("--from-run: a recorded run is replayed by the simulator; expected --engine sim")
    also = option_beside(given, _MAY_DIFFER)
    if also is not None:
        expected = "expected --set KNOB=VALUE, --rate-scale or --burst-scale for what differs"
        raise UsageError(f"{also} beside --from-run: that is the run's own; {expected}")


def option_beside(given: Mapping[str, Any], allowed: Container[str]) -> str | None:
    """The first option of ``replay`` in ``given`` that somebody gave and that is not ``allowed`` beside something recorded, which
    has its own; as it is written on a command line."""
    from tracekit.replay import replay

    for name, parameter in inspect.signature(replay).parameters.items():
        if name in given and name not in allowed and given[name] not in (parameter.default, None, ()):
            return f"--{_OPTIONS.get(name, name).replace('_', '-')}"
    return None

"""The acceptance matrix of a run: one JSON document in which every field of ``tracekit.metrics.fields`` is present.

A field is its value, or ``{"value": null, "reason": text}`` where it does not apply; never a bare null. Times are ns.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from replay_engine.config import SchedulerConfig
from replay_engine.profile import Profile
from replay_engine.rule_tables import rules_to
from tracekit.metrics.attainment import slo_section
from tracekit.metrics.distributions import missing
from tracekit.metrics.entrance import entrance_section
from tracekit.metrics.fairness import fairness_section
from tracekit.metrics.fields import SCHEMA, is_missing, missing_fields
from tracekit.metrics.fleet import fleet_section
from tracekit.metrics.inputs import MatrixInputs, counted_rows
from tracekit.metrics.observed import observed_section
from tracekit.metrics.pools import pools_section
from tracekit.metrics.pressure import kv_section, queueing_section, time_section
from tracekit.metrics.recovery import preemption_section
from tracekit.metrics.service import ends_section, latency_section, throughput_section
from tracekit.metrics.traffic import arrival_window, concurrency_section, counted_section, traffic_section
from tracekit.metrics.verdict import Errors, judge_errors

__all__ = ["build_matrix"]

_NO_PROFILE = "no profile: durations were measured"


def build_matrix(inputs: MatrixInputs) -> dict[str, Any]:
    """Compute the matrix. Pure: the same inputs give the same document."""
    rows = counted_rows(inputs)
    n = _counted_total(inputs, rows.size)
    window_ns, slo_window_ns, basis = arrival_window(inputs, rows)
    slo, result = slo_section(inputs, rows, n, slo_window_ns, basis)
    observed = observed_section(inputs, rows)
    matrix: dict[str, Any] = {
        "schema": SCHEMA,
        "run": _run(inputs),
        **_setup(inputs.profile),
        "engine": _engine(inputs),
        "profile": _profile(None if inputs.engine == "torch" else inputs.profile, observed),
        "counted": counted_section(inputs, rows, n),
        "traffic": traffic_section(rows),
        "concurrency": concurrency_section(inputs.totals),
        "knobs": _knobs(inputs),
        "latency": latency_section(inputs, rows),
        "throughput": throughput_section(rows, window_ns),
        "slo": slo,
        "fairness": fairness_section(inputs, rows, None if result is None else result.met),
        "entrance": entrance_section(inputs, rows),
        "ends": ends_section(rows),
        "preemption": preemption_section(inputs, rows),
        "kv": kv_section(inputs, rows),
        "queueing": queueing_section(inputs.totals, inputs.scheduler),
        "time": time_section(inputs.totals, max(1, len(inputs.by_replica))),
        "fleet": fleet_section(inputs, rows),
        "pools": pools_section(inputs, rows),
        "observed": observed,
    }
    lacking = missing_fields(matrix)
    assert not lacking, f"matrix fields differ from the list: {', '.join(lacking)}"
    return matrix


def _counted_total(inputs: MatrixInputs, rows: int) -> int:
    """Every counted request of the slice, ended or not."""
    if inputs.counted is not None:
        return int(inputs.counted.sum())
    return rows if inputs.requests is None else inputs.requests


def _or_missing(value: Any, reason: str) -> Any:
    return missing(reason) if value is None else value


_APART = "in the run's row: tracekit runs; this document is the same for the same inputs"
_NOT_HERE = {"command": _APART, "started_at": _APART, "name": "no --name was given"}


def _run(inputs: MatrixInputs) -> dict[str, Any]:
    names = ("name", "trace", "command", "seed", "state", "started_at", "events")
    section = {name: _or_missing(inputs.run.get(name), _NOT_HERE.get(name, "not given")) for name in names}
    return section | {"tracekit_version": _or_missing(inputs.tracekit_version, "not given")}


def _setup(profile: Profile | None) -> dict[str, Any]:
    """Model and hardware, from the profile."""
    model = profile.model if profile is not None else None
    hardware = profile.hardware if profile is not None else None
    reason = _NO_PROFILE if profile is None else f"profile {profile.name} does not say"
    return {
        "model": {
            "name": model.name if model else missing(reason),
            "precision": model.dtype if model else missing(reason),
        },
        "hardware": {
            "name": hardware.name if hardware else missing(reason),
            "devices": hardware.count if hardware else missing(reason),
            "memory_bytes": hardware.memory_bytes if hardware else missing(reason),
            "parallelism": f"tensor parallel {hardware.tensor_parallel}" if hardware else missing(reason),
        },
    }


def _engine(inputs: MatrixInputs) -> dict[str, Any]:
    config = inputs.scheduler
    return {
        "name": inputs.engine,
        "version": f"vLLM {config.engine_version}",
        "scheduling": "asynchronous" if config.async_scheduling else "synchronous",
    }


def _profile(profile: Profile | None, observed: dict[str, Any]) -> dict[str, Any]:
    if profile is None:
        names = ("name", "origin", "fitted", "error_on_trace", "trust")
        return {name: missing(_NO_PROFILE) for name in names}
    return {
        "name": profile.name,
        "origin": _or_missing(profile.origin, "the profile does not say"),
        "fitted": dict(profile.fit) or missing("the profile states no fit"),
        "error_on_trace": _error_on_trace(observed),
        "trust": _trust(profile, observed),
    }


def _error_on_trace(observed: dict[str, Any]) -> Any:
    for name in ("e2e_ns", "ttft_ns", "tpot_ns", "queue_ns"):
        row = observed[name]
        if not is_missing(row) and not is_missing(row["median_abs_relative_error"]):
            error = row["median_abs_relative_error"]
            return f"{name[:-3]}: median absolute error {error:.1%} per request (n {row['n']:,})"
    return observed["e2e_ns"]


def _trust(profile: Profile, observed: dict[str, Any]) -> Any:
    """The verdict on this trace, where it has latencies; else that of the last check of the profile."""
    errors = {}
    for name in ("ttft", "tpot", "e2e"):
        row = observed[f"{name}_ns"]
        if not is_missing(row) and not any(is_missing(error) for error in row["relative_error"].values()):
            errors[name] = Errors(n=row["n"], **{point: row["relative_error"][point] for point in ("mean", "p50", "p90")})
    if errors:
        return f"on this trace: {judge_errors(errors).words}"
    return _or_missing(profile.fit.get("trust"), "never checked: tracekit calibrate --check PROFILE TRACE --out PROFILE")


def _knobs(inputs: MatrixInputs) -> dict[str, Any]:
    config: SchedulerConfig = inputs.scheduler
    own = {name: _or_missing(value, "not set: the engine's own default applies") for name, value in asdict(config).items()}
    return {
        "token_budget": config.token_budget,
        "seat_limit": config.seat_limit,
        "kv_budget_blocks": config.usable_blocks,
        "kv_budget_tokens": config.usable_blocks * config.block_size,
        **own,
        **_rule_knobs(inputs),
        "notes": list(inputs.policy_notes) or missing("nothing was estimated, clipped or ignored"),
    }


def _rule_knobs(inputs: MatrixInputs) -> dict[str, Any]:
    """Every knob beyond ``[scheduler]`` under its dotted name."""
    unset = missing("not set: no limit")
    found: dict[str, Any] = {}
    for table, knobs in rules_to(inputs.rules).items():
        for knob, value in knobs.items():
            empty = value is None or value in ([], {})
            found[f"{table}.{knob}"] = unset if empty else _set_only(value)
    return found


def _set_only(value: Any) -> Any:
    """A quota that is not set is left out of its tenant's row."""
    if isinstance(value, dict):
        return {name: {knob: limit for knob, limit in own.items() if limit is not None} for name, own in value.items()}
    return value

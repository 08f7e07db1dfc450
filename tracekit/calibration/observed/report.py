"""A fit to observed latencies as a profile with the provenance of each number, and in words and tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from replay_engine.calibration.outcome import implied
from replay_engine.profile import Profile
from replay_engine.rule_tables import rules_to
from tracekit.calibration.observed.errors import Errors, errors_of
from tracekit.calibration.observed.fit import ObservedFit
from tracekit.calibration.observed.settings import CLOCK, SHARED_PREFIX, Known
from tracekit.calibration.observed.telling import Told
from tracekit.calibration.observed.terms import NAMES, UNITS, delivered_of, latency_of
from tracekit.calibration.sources import NO_CARD, ReportTable, SourceReport, in_words
from tracekit.fitted_settings import fitted_note

__all__ = ["errors_table", "profile_from", "report_of"]

_COUNTED = {
    "arrival": "all latencies counted from a request's arrival",
    "server": "TTFT and E2E counted from the arrival, the queue from when the engine took the request in",
    "engine": "all latencies counted from when the engine took the request in",
}


def profile_from(found: ObservedFit, known: Known, prior: Profile | None, trace: str) -> Profile:
    """``ConfigError``: it beats the hardware's peaks (the search stays above them, so that it should not)."""
    latency = latency_of(found.best.vector, found.problem.expected.host)
    seen = found.problem.seen
    clock = seen.clock or "unnamed"
    by = {told.name: _source(told, prior, trace) for told in found.told}
    provenance = {"kind": f"fitted to latencies of {seen.known()} requests ({clock} clock)"}
    provenance |= {"floor_ns": by["floor"], "a_ns": f"floor - b x knee; knee {by['knee']}"}
    provenance |= {f"{name}_ns": by[name] for name in "bcde"}
    host = "not told by latencies; " + ("a placeholder" if prior is None else f"taken from profile {prior.name}")
    provenance |= {"h0_ns": host, "h1_ns": host, "h2_ns": host}
    provenance |= {"p_ns": host} if latency.p_ns else {}
    provenance |= {"s_ns": by["skew"]} if latency.s_ns else {}
    peaks = prior is not None and not prior.synthetic
    return Profile(
        name=f"{trace}-observed", latency=latency, model=None if prior is None else prior.model,
        hardware=None if prior is None else prior.hardware, synthetic=not peaks, fit=_fit_table(found, known),
        provenance=provenance,
    )  # fmt: skip


def _source(told: Told, prior: Profile | None, trace: str) -> str:
    if told.verdict in ("identified", "weak"):
        partner = f", only together with {told.with_term}" if told.with_term else ""
        return f"{told.verdict} by the latencies of {trace}, {in_words(told.low, told.high)}{partner}"
    whose = "a guess" if prior is None else f"profile {prior.name}"
    return f"{told.verdict} by the latencies of {trace}: {whose}, {in_words(told.low, told.high)}"


def _fit_table(found: ObservedFit, known: Known) -> dict[str, Any]:
    best, run, there = found.best, found.best.run, delivered_of(found.best.vector)
    table: dict[str, Any] = {
        "observed_requests": found.problem.seen.known(), "iterations": len(run.start), "replays": found.replays,
        "counting": best.misfit.counting, "ingress_ns": round(there.before, 1), "egress_ns": round(there.after, 1),
        "fitted_prefill_tokens": [0.0, float(run.tokens.max())], "fitted_decode_seqs": [0.0, float(run.seqs.max())],
        "fitted_decode_kv_tokens": [0.0, float(run.kv.max())],
    }  # fmt: skip
    if run.above.any():
        table["fitted_skew_tokens"] = [0.0, round(float(run.above.max()), 1)]
    for each in _own_errors(found):
        figures = {"mean_error": each.mean, "median_abs_error": each.each_p50}
        table |= {f"{each.metric}_{name}": round(value, 5) for name, value in figures.items() if not np.isnan(value)}
    table["left_out"] = _left_out(found, known)
    shared = found.shared_prefix
    table |= {"shared_prefix": shared.tokens} if shared else {}
    table |= {"shared_after": shared.after} if shared.after else {}
    table["settings"], table["known"] = _held_under(found, known)
    return table


def _left_out(found: ObservedFit, known: Known) -> list[str]:
    """What is no term of the profile, each with what the latencies say of it."""
    told = []
    if not found.problem.free[NAMES.index("skew")]:
        none = "skew of context lengths is no term; too few requests to say what that costs"
        told.append(none if found.skew is None else found.skew.words)
    if not found.problem.free[NAMES.index("egress")]:
        clock = found.problem.seen.clock
        why = f"latencies of a {clock} clock end where the last token is made"
        if clock is None:
            why = f"nobody said whose clock it was; taken for the server's (--set {CLOCK}=server, gateway or client)"
        elif clock != "server":
            why = f"not both TTFT and E2E are known by the {clock}'s clock"
        told.append(f"egress is 0: {why}")
    if found.shared_prefix:
        told.append(f"of the trace it was taken that {found.shared_prefix.words}: a replay knows it of a trace loaded with"
                    f" --shared-prefix {found.shared_prefix}")  # fmt: skip
    return told


def _held_under(found: ObservedFit, known: Known) -> tuple[dict[str, Any], dict[str, str]]:
    """The knobs that a replay with the profile takes, and how each is known. What never bound anybody is left to the defaults;
    the release is always among them, since it decides what the others mean."""
    policy = found.problem.replayer.policy
    settings: dict[str, Any] = {}
    how: dict[str, str] = {}
    for limit in found.limits:
        if limit.known != "at least" and limit.knob != SHARED_PREFIX:  # that is a fact of the trace, no knob
            settings[limit.knob], how[limit.knob] = limit.value, limit.known
    for knob in sorted(known.given):
        value = getattr(policy.scheduler, knob, policy.settings[knob])
        if knob not in settings and value is not None:
            settings[knob], how[knob] = value, "given"
    if "max_model_len" not in settings:
        settings["max_model_len"], how["max_model_len"] = policy.scheduler.max_model_len, "assumed"
    if "engine_version" not in settings or known.release_assumed:
        settings["engine_version"], how["engine_version"] = policy.scheduler.engine_version, "assumed"
    for table, knobs in rules_to(policy.rules, changed_only=True).items():
        for knob, value in knobs.items():
            if isinstance(value, str | int | float):
                settings[f"{table}.{knob}"], how[f"{table}.{knob}"] = value, "given"
    return settings, how


def _own_errors(found: ObservedFit) -> list[Errors]:
    best = found.best
    return errors_of(found.problem.seen, best.run, best.misfit.counting, delivered_of(best.vector))


def report_of(found: ObservedFit, known: Known, prior: Profile | None, trace: str) -> SourceReport:
    """Everything about the fit, for a person and for a program."""
    profile = profile_from(found, known, prior, trace)
    errors = _own_errors(found)
    tables = [_terms_table(found), _limits_table(found), errors_table(errors, "same run: what it was fitted to, replayed")]
    lines = [f"{_COUNTED[found.best.misfit.counting]}: the way that leaves the least error"]
    lines += [f"policy: {note}" for note in known.notes]
    held = fitted_note(profile)
    if held is not None:
        lines.append(f"a replay with this profile takes {held}")
    if profile.model is not None:
        lines += [f"implied by {what}: {value}" for what, value in implied(profile.latency, profile.model, profile.hardware)]
    elif profile.synthetic:
        lines.append(NO_CARD)
    lines += profile.fit["left_out"]
    lines.append(f"{found.replays} replays; the search began in {len(found.starts)} places and went on from the best; what each"
                 f" left (loss, less is better) after its first steps: {_losses(found)}")  # fmt: skip
    document = {
        "terms": [asdict(told) | {"verdict": told.verdict, "low": told.low, "high": told.high} for told in found.told],
        "limits": [asdict(limit) for limit in found.limits], "same_run_errors": [asdict(each) for each in errors],
        "counting": found.best.misfit.counting, "replays": found.replays,
        "starts": [{"start": name, "loss": loss} for name, loss in found.starts],
    }  # fmt: skip
    return SourceReport(kind="latencies", profile=profile, lines=lines, tables=tables, document=document)


def _losses(found: ObservedFit) -> str:
    return ", ".join(f"{loss:.1f} ({name})" for name, loss in found.starts)


def _terms_table(found: ObservedFit) -> ReportTable:
    rows = tuple(
        (told.name, UNITS[told.name], *((None,) * 3 if told.absent else (told.value, told.low, told.high)),
         f"{told.share:.0%}" if told.share else "",
         told.verdict + (f", with {told.with_term}" if told.with_term else ""))
        for told in found.told
    )  # fmt: skip
    return ReportTable(title="what the latencies tell", head=("term", "unit", "value", "from", "to", "of the time", "verdict"),
                       rows=rows)  # fmt: skip


def _limits_table(found: ObservedFit) -> ReportTable:
    rows = tuple((limit.knob, _word(limit.value), limit.known, limit.note) for limit in found.limits)
    return ReportTable(title="the settings it holds under", head=("knob", "value", "known", "note"), rows=rows)


def _word(value: object) -> str:
    """As it is written in a policy file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def errors_table(errors: list[Errors], title: str) -> ReportTable:
    """Errors in percent."""

    def percent(value: float) -> float | None:
        return None if np.isnan(value) else round(100 * value, 2)

    rows = tuple(
        (each.metric if each.metric == "queue" else each.metric.upper(), each.n, each.observed_ns / 1e6,
         *(percent(v) for v in (each.mean, each.p50, each.p90, each.p99)), percent(each.each_p50), percent(each.each_p90))
        for each in errors
    )  # fmt: skip
    head = ("latency", "n", "observed mean ms", "mean error %", "P50 %", "P90 %", "P99 %", "per request, median %", "P90 %")
    return ReportTable(title=title, head=head, rows=rows)

"""The check of a profile on a trace with observed latencies, and over configurations that were observed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from replay_engine.config import ConfigError
from replay_engine.policy import Policy
from replay_engine.profile import Profile, load_profile
from tracekit.calibration.observed.settings import said_of
from tracekit.calibration.observed.shared_prefix import begin_alike, fitted_on, fitted_prefix
from tracekit.delivery import delivery_note
from tracekit.diagnosis.run_data import RunData
from tracekit.door_facts import door_facts
from tracekit.errors import UsageError, shown
from tracekit.metrics.verdict import UNFIT, Errors, judge_errors
from tracekit.policy_source import policy_from
from tracekit.replay import Setup
from tracekit.store import Store
from tracekit.traces.load import LoadReport
from tracekit.traces.said_prefix import Beginning
from tracekit.traces.slicing import Slice
from tracekit.traces.source import TraceSource
from tracekit.traces.stored import loaded_or_read
from tracekit.trust.accuracy import Latencies, Mask, compared, errors_of, makespan_s, observed_latencies, over_time
from tracekit.trust.accuracy import predicted_latencies as predicted_of
from tracekit.trust.configs import Config, observed_config, read_configs
from tracekit.trust.drift import drift_of
from tracekit.trust.ranking import OBJECTIVES, agreement, objectives_of, why_unranked
from tracekit.trust.regime import extrapolation, load_of, regime_words, slowed
from tracekit.trust.report import TrustReport

__all__ = ["SPLITS", "check_profile", "setup_on"]

Progress = Callable[[int, int, str], None]
SPLITS = ("time", "random")
STEPS = (1.01, 1.02)
"""By how much the step time is lengthened to see what TTFT makes of it."""
AGREES, MANY_WAITED = 0.10, 10
"""An error of the mean TPOT within which the engine's speed is right; requests waiting from which a queue is one."""


def check_profile(
    profile: str | Profile,
    inputs: str | Sequence[str] | None,
    *,
    policy: str | None = None,
    sets: Sequence[str] = (),
    split: str | None = None,
    configs: str | Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    db: str | Path = "tracekit.duckdb",
    progress: Progress | None = None,
) -> TrustReport:
    """Replay ``inputs`` (files, or the name of a loaded trace) with ``profile`` and hold the latencies against the observed ones.

    ``policy`` and ``sets`` say how the engine ran that was observed; without a policy what the profile was fitted under
    counts, and ``sets`` go on top (``trace.shared_prefix`` as for a fit). ``split``: ``time`` (the later half of the arrivals is
    held out) or ``random``; the whole trace is replayed and the verdict made from the held-out part. ``configs``: a file of
    configurations that were observed
    (``configs.py``). Errors: ``UsageError``, ``InputError``, ``ConfigError``.
    """
    found = load_profile(profile) if isinstance(profile, str) else profile
    if split is not None and split not in SPLITS:
        raise UsageError(f"--split {shown(split)}: expected one of {', '.join(SPLITS)}")
    listed = [] if configs is None else read_configs(configs, Store(db))
    if inputs is None and not listed:
        raise UsageError("--check: nothing to check on; expected a TRACE, or --configs FILE")
    steps = _Steps(progress, len(listed) + (1 + len(STEPS) if inputs is not None else 0))
    setups, notes = [_setup_of(each, found, seed) for each in listed], list[str]()
    if inputs is None:
        setup = setups[0]
        notes = [f"no TRACE was given: all but the ranking is of the first configuration, {listed[0].name}"]
    else:
        said = said_of(sets)
        source, read = _source(inputs, db, limit, said.clock)
        setup = setup_on(found, policy_from(found, policy, said.plain), source, seed)
        notes = [*read, *said.notes, *_share(setup, said.shared_prefix)]
    report = _report(setup, split, list(zip(listed, setups, strict=True)), steps, seed)
    report.notes += notes
    return report


class _Steps:
    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def replayed(self, setup: Setup) -> RunData:
        data = RunData.replayed(setup)
        self._done += 1
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total, setup.trace_name)
        return data


def setup_on(profile: Profile, policy: Policy, source: TraceSource, seed: int = 0, events: str = "full") -> Setup:
    """``source`` under ``policy`` with the simulator's ``profile``."""
    return Setup(
        profile=profile, policy=policy, slo=None, source=source, trace=0, trace_name=source.name, lead_in_ns=0, seed=seed,
        events=events, accept_degraded=False, warmup_ns=0, facts=door_facts(policy, profile, None, source),
    )  # fmt: skip


def _source(
    inputs: str | Sequence[str], db: str | Path, limit: int | None, clock: str | None
) -> tuple[TraceSource, list[str]]:  # fmt: skip
    """The trace, and what is to be known of it: whose clock (as somebody said, or as it tells), and rows that are not in it."""
    loaded = loaded_or_read(inputs, db)
    return TraceSource.from_loaded(loaded, Slice(limit=limit)), _of_trace(loaded.report, clock)


def _of_trace(report: LoadReport, said: str | None) -> list[str]:
    clock = said or report.obs_clock
    named = [] if clock is None else [f"observed latencies are by the {clock}'s clock"]
    return named + ([] if report.left_out is None else [f"trace: {report.left_out}"])


def _share(setup: Setup, said: Beginning | None) -> list[str]:
    """Prompts begin alike as ``said``; ``None``: as the profile was fitted under on this very trace.
    Returns what to note, unless the profile's own notes say it."""
    shared = fitted_prefix(setup.profile, setup.source) if said is None else said
    if shared:
        begin_alike(setup.source, shared, setup.policy.scheduler.block_size)
    told = any(shared.words in line for line in setup.profile.fit.get("left_out", ()))
    return [f"taken of the trace: {shared.words}"] if shared and not told else []


def _setup_of(config: Config, profile: Profile, seed: int) -> Setup:
    try:
        policy = config.recorded or policy_from(profile, config.policy, said_of(config.sets).plain)
        return setup_on(profile, policy, config.source, seed)
    except (ConfigError, UsageError) as error:
        raise ConfigError(f"{config.place}: {error}") from None


def _report(
    setup: Setup, split: str | None, configs: Sequence[tuple[Config, Setup]], steps: _Steps, seed: int
) -> TrustReport:  # fmt: skip
    source, profile = setup.source, setup.profile
    data = steps.replayed(setup)
    observed = observed_config(configs[0][0]) if configs and configs[0][1] is setup else observed_latencies(source)
    predicted = predicted_of(source, data.outcomes)
    parts = {name: compared(predicted, observed, mask) for name, mask in _parts(source, split, seed).items()}
    rows = [_config_row(config, *_both(config, own, data if own is setup else steps.replayed(own))) for config, own in configs]
    ranked = agreement([each["objectives"] for each in rows])
    load = load_of(data)
    sensitivity = _sensitivity(setup, predicted, steps)
    judged = list(parts.values())[-1]
    first = next((ranked[name] for name in ("e2e_mean", *OBJECTIVES) if name in ranked), None)
    errors, over = errors_of(judged), over_time(predicted, observed)
    return TrustReport(
        profile=profile, trace=source.name, requests=source.total, verdict=judge_errors(errors, first), parts=parts,
        makespan_s=(makespan_s(predicted), makespan_s(observed)), over_time=over, load=load,
        drift=drift_of(predicted, observed, source.counted),
        regime=regime_words(load, sensitivity), sensitivity=sensitivity,
        extrapolated=extrapolation(profile, data.iterations), ranked=ranked, configs=rows,
        notes=[*_hints(errors, over), *([] if (why := why_unranked(rows)) is None else [why]), *_notes(setup, data)],
    )  # fmt: skip


def _both(config: Config, setup: Setup, data: RunData) -> tuple[Latencies, Latencies]:
    return predicted_of(setup.source, data.outcomes), observed_config(config)


def _config_row(config: Config, predicted: Latencies, observed: Latencies) -> dict[str, Any]:
    everything = np.ones(len(predicted.arrival), np.bool_)
    comparison = compared(predicted, observed, everything)
    told = objectives_of(comparison, (makespan_s(predicted), makespan_s(observed)))
    return {"name": config.name, "objectives": told}


def _parts(source: TraceSource, split: str | None, seed: int) -> dict[str, Mask]:
    counted: Mask = source.counted
    if split is None:
        return {"all": counted}
    order, rest = np.argsort(source.arrival_ns, kind="stable"), "first half"
    if split == "random":
        rest = "other half"
        order = np.random.default_rng(seed).permutation(source.total)
    later = np.zeros(source.total, np.bool_)
    later[order[source.total // 2 :]] = True
    return {"all": counted, rest: counted & ~later, "held out": counted & later}


def _sensitivity(setup: Setup, predicted: Latencies, steps: _Steps) -> float | None:
    """% by which the mean TTFT grows with a step time 1 % longer; ``None``: nothing finished."""
    if np.isnan(predicted.ttft).all():
        return None
    mean, slopes = float(np.nanmean(predicted.ttft)), []
    for factor in STEPS:
        own = replace(setup, profile=slowed(setup.profile, factor), events="outcomes")
        after = predicted_of(setup.source, steps.replayed(own).outcomes)
        slopes.append((float(np.nanmean(after.ttft)) / mean - 1) / (factor - 1))
    return float(np.mean(slopes))


def _hints(judged: Mapping[str, Errors], over: Mapping[str, Any] | None) -> list[str]:
    """Where to look first, when figures disagree in a way that has a usual cause."""
    hints = []
    tpot, e2e = judged.get("tpot"), judged.get("e2e")
    if tpot is not None and e2e is not None and abs(tpot.mean) <= AGREES and abs(e2e.mean) > UNFIT:
        hints.append(f"TPOT agrees (mean {tpot.mean:+.0%}) and E2E does not ({e2e.mean:+.0%}): look first at the settings that"
                     " the engine ran with (--set, --policy), then at the profile")  # fmt: skip
    waiting = None if over is None else over.get("waiting")
    theirs, ours = (0.0, 0.0) if waiting is None else (waiting["observed_max"], waiting["predicted_max"])
    if theirs >= MANY_WAITED and theirs > 3 * ours:
        hints.append(f"the replay has at most {ours:,.0f} requests waiting, the engine had {theirs:,.0f}: the load regime is the"
                     " replay's, not the engine's")  # fmt: skip
    return hints


def _notes(setup: Setup, data: RunData) -> list[str]:
    fit: Mapping[str, Any] = setup.profile.fit
    notes = [f"policy: {note}" for note in setup.policy.notes]
    if fitted_on(setup.profile, setup.source):
        notes.append("same-run check: the profile was fitted on this trace")
    delivered = delivery_note(setup.profile, setup.policy.rules)
    notes += [delivered] if delivered is not None else []
    left_out = fit.get("left_out")
    notes += [str(each) for each in left_out] if isinstance(left_out, list) else []
    if fit.get("bound") == "lower":
        notes.append("the profile is a lower bound: its times are what was left to wait for under asynchronous scheduling")
    if data.state != "finished":
        notes.append(f"the replay ended early: {data.state}")
    return notes

"""A profile from the iteration lines of a vLLM log.

What the lines leave open is said: they carry no sum of query x context, so that this coefficient is the prior's (its share is
taken off the times as if each prompt were computed at once and alike); KV tokens follow from the printed usage where the size of
the cache is known; times under asynchronous scheduling are what was left to wait for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from replay_engine.calibration.fit import FEWEST, fit_device, held_out, predicted_device
from replay_engine.calibration.many import fit_many, thinned
from replay_engine.calibration.outcome import Calibration, implied, profile_of
from replay_engine.calibration.samples import EAGER_MODE, Samples
from replay_engine.config import ConfigError
from replay_engine.profile import Latency, PhysicsError, Profile, load_profile
from tracekit.calibration.residual import SHORTEST_MS, Judgement, judge
from tracekit.calibration.sources import NO_CARD, ReportTable, SourceReport, SourceRequest, refused
from tracekit.calibration.vllm_graphs import with_padding
from tracekit.calibration.vllm_header import LogFacts, read_facts
from tracekit.calibration.vllm_lines import IterationLines, read_iteration_lines
from tracekit.errors import InputError, shown_path

__all__ = ["calibrate_vllm_log", "samples_of_lines"]

ENGINES_DIFFER = 0.1
HALF = 0.5
HELD = 8_000
"""Rows that the error on unseen shapes is told from."""


def calibrate_vllm_log(request: SourceRequest) -> SourceReport:
    """``InputError``: no usable line, or hardly a wait in it. ``ConfigError``: a setting, or a fit that beats the card."""
    lines = read_iteration_lines(request.source)
    facts = read_facts(lines.other, request.sets)
    lost = len(lines.broken) / max(len(lines) + len(lines.broken), 1)
    verdict = judge(lines.elapsed_ms, lines.engine, lines.second, facts, min(lost, HALF))
    if not verdict.whole and verdict.short > HALF:
        raise InputError(
            f"{verdict.short:.0%} of the iterations show no time at all: only the rest of the wait is logged under asynchronous"
            " scheduling, and there was none", file=shown_path(request.source), expected="a log with --no-async-scheduling",
        )  # fmt: skip
    prior = load_profile(request.prior) if request.prior is not None else None
    c_ns = prior.latency.c_ns if prior is not None else 0.0
    samples, used = samples_of_lines(lines, facts, c_ns)
    if len(samples) < FEWEST:
        told = f"{len(samples)} of {lines.lines:,} iteration lines tell of an iteration that computed something in a time above 0"
        raise InputError(told, file=shown_path(request.source), line=lines.broken[0] if lines.broken else None,
                         expected=f"{FEWEST} or more")  # fmt: skip
    samples, graphs = with_padding(samples, facts)
    host = Latency() if prior is None else prior.latency
    gap = verdict.gap_ns if verdict.whole else None
    latency = replace(fit_many(samples), c_ns=c_ns, h0_ns=host.h0_ns if gap is None else gap, h1_ns=0.0, h2_ns=0.0)
    sources = _sources(lines, facts, verdict, prior, len(samples))
    columns = {"prefill_tokens": samples.tokens, "decode_seqs": samples.seqs, "decode_kv_tokens": samples.kv}
    found = Calibration(
        latency=latency, held=held_out(thinned(samples, HELD).banded()), by_mode={}, error=_error(latency, samples),
        iterations=len(samples), sources=sources,
        ranges={name: (float(values.min()), float(values.max())) for name, values in columns.items()},
    )  # fmt: skip
    engines = _by_engine(latency, samples, lines.engine[used])
    try:
        report = _report(request, lines, facts, verdict, prior, found, engines)
    except PhysicsError as error:
        raise (error if verdict.whole else _residual(request, error, verdict)) from None
    report.lines += [] if graphs is None else [graphs]
    return report


def _residual(request: SourceRequest, error: PhysicsError, verdict: Judgement) -> ConfigError:
    return refused(request, error, (
        f"a log with --no-async-scheduling (these times are lower bounds: {verdict.why}), or no --profile: a lower bound is then"
        " written"
    ))  # fmt: skip


def samples_of_lines(lines: IterationLines, facts: LogFacts, c_ns: float) -> tuple[Samples, npt.NDArray[np.bool_]]:
    """The iterations that computed something, ``c_ns`` of attention work taken off their times; and which lines they are."""
    prompts, decodes = lines.context_requests, lines.generation_requests
    use = (prompts + decodes > 0) & (lines.elapsed_ms >= SHORTEST_MS)
    usage = np.where(np.isnan(lines.kv_usage), 0.0, lines.kv_usage)
    kv = usage * (facts.kv_tokens or 0.0)
    # The usage counts whole blocks, of which a sequence leaves half of the last one empty, and the prompts being computed.
    kv = np.maximum(0.0, kv - lines.context_tokens - (prompts + decodes) * (facts.block_size - 1) / 2)
    kv = np.where(decodes > 0, kv, 0.0)
    if np.isnan(lines.kv_usage[use]).sum() < HALF * use.sum():
        use &= ~np.isnan(lines.kv_usage)
    qk = np.where(prompts > 0, lines.context_tokens**2 / (2 * np.maximum(prompts, 1)), 0.0)
    device = lines.elapsed_ms * 1e6 - c_ns * qk
    use &= device > 0
    count = len(use)
    nothing = np.zeros(count)
    whole = Samples(
        device_ns=device, host_ns=np.full(count, np.nan), tokens=lines.context_tokens, qk=nothing, seqs=decodes, kv=kv,
        running=prompts + decodes, changes=nothing, padded=nothing, above=nothing, weight=np.ones(count),
        mode=np.broadcast_to(np.array(EAGER_MODE, np.str_), count), shape=np.broadcast_to(np.array("", np.str_), count),
    )  # fmt: skip
    return whole.part(use), use


def _error(latency: Latency, samples: Samples) -> float:
    return float(np.median(np.abs(predicted_device(latency, samples) / samples.device_ns - 1)))


def _by_engine(latency: Latency, samples: Samples, engine: npt.NDArray[np.int32]) -> list[tuple[int, int, float]]:
    """Per engine of the log: its number, its iterations, and what they take compared with a fit of the busiest one's alone, since
    a fit of all would hide between them what load explains in neither."""
    numbers, counts = np.unique(engine, return_counts=True)
    if len(numbers) > 1 and counts.max() >= FEWEST:
        latency = fit_device(thinned(samples.part(engine == numbers[counts.argmax()]), HELD))
    ratio = samples.device_ns / predicted_device(latency, samples)
    return [(int(each), int((engine == each).sum()), float(np.median(ratio[engine == each]))) for each in numbers]


def _sources(lines: IterationLines, facts: LogFacts, verdict: Judgement, prior: Profile | None, used: int) -> dict[str, str]:
    bound = "" if verdict.whole else "lower bound: "
    device = f"{bound}fitted: least squares of {used} iteration lines of a vLLM log"
    sources = {"device": device, "host": "unknown: 0 stands, the log's clock does not tell it"}
    if prior is not None:
        sources |= {"host": f"prior: {prior.name}", "h1_ns": "0: not told apart", "h2_ns": "0: not told apart"}
        sources["c_ns"] = f"prior: {prior.name}; iteration lines carry no query x context"
    else:
        sources["c_ns"] = "unknown: 0 stands, iteration lines carry no query x context; --profile gives it a prior"
    if verdict.whole and verdict.gap_ns is not None:
        sources["host"] = "fitted: what the log's own clock counts for an iteration beyond its logged time"
        sources |= {"h1_ns": "0: not told apart", "h2_ns": "0: not told apart"}
    if not _has_kv(lines, facts):
        sources["e_ns"] = "unknown: 0 stands, and d carries the KV reads at the lengths of this log"
        sources["d_ns"] = f"{device}; with the KV reads at the lengths of this log"
    return sources


def _has_kv(lines: IterationLines, facts: LogFacts) -> bool:
    return facts.kv_tokens is not None and not np.isnan(lines.kv_usage).all()


def _report(
    request: SourceRequest, lines: IterationLines, facts: LogFacts, verdict: Judgement, prior: Profile | None, found: Calibration,
    engines: list[tuple[int, int, float]],
) -> SourceReport:  # fmt: skip
    bound = "" if verdict.whole else ", a lower bound"
    kind = f"fitted to iteration lines of vLLM{'' if facts.version is None else ' ' + facts.version}{bound}"
    physical = prior is not None and not prior.synthetic
    profile = profile_of(
        found, name="vllm-log", kind=kind, model=prior.model if prior else None, hardware=prior.hardware if prior else None,
        peaks=physical,
    )  # fmt: skip
    profile.fit["bound"] = "none" if verdict.whole else "lower"
    if verdict.gap_ns is not None and not verdict.whole:
        profile.fit["missing_ns_per_iteration"] = round(verdict.gap_ns)
    report = SourceReport(kind="vllm-log", profile=profile)
    report.lines = _lines(lines, facts, verdict, found, engines)
    if profile.model is not None:
        told = implied(profile.latency, profile.model, profile.hardware if physical else None)
        report.lines += [f"implied by {what}: {value}" for what, value in told]
        report.document["implied"] = dict(told)
    elif prior is None:
        report.lines.append(NO_CARD)
    if len(engines) > 1:
        rows = tuple((_engine_name(number), count, ratio) for number, count, ratio in engines)
        head = ("engine", "iterations", "an iteration takes, busiest engine = 1")
        report.tables.append(ReportTable(title="engines", head=head, rows=rows))
    report.document |= _document(lines, facts, verdict, found, engines)
    return report


def _engine_name(number: int) -> str:
    return "not named" if number < 0 else str(number)


def _lines(
    lines: IterationLines, facts: LogFacts, verdict: Judgement, found: Calibration, engines: list[tuple[int, int, float]]
) -> list[str]:
    said = [
        f"read: {len(lines):,} iterations of {len(engines)} engine{'s' * (len(engines) > 1)}; {lines.dummies:,} idle (dummy),"
        f" {lines.repaired:,} put together from broken lines, {len(lines.broken):,} lost"
        + (f" (first in line {lines.broken[0]:,})" if lines.broken else ""),
        ("whole iterations: " if verdict.whole else "LOWER BOUND: ") + verdict.why,
    ]
    if verdict.gap_ns is not None:
        what = "host time" if verdict.whole else "missing from the logged times, on average"
        said.append(f"the log's clock counts {verdict.gap_ns / 1e6:.2f} ms for an iteration beyond its logged time: {what}")
    if not _has_kv(lines, facts):
        lacks = "the size of the KV cache is not known; expected the start of the log, or --set num_gpu_blocks=N"
        if np.isnan(lines.kv_usage).all():
            lacks = "no line prints KV usage, which later releases do; d and the floor hold at the context lengths of this log"
        said.append(f"KV reads cannot be told apart: {lacks}")
    off = [_engine_name(number) for number, _, ratio in engines if len(engines) > 1 and abs(ratio - 1) > ENGINES_DIFFER]
    if off:
        said.append(f"engine {', '.join(off)}: more than {ENGINES_DIFFER:.0%} off the busiest engine; one profile will not do")
    held = found.held
    said.append(f"median error of {found.error:.1%} over all iterations")
    if held is not None:
        said.append(f"held-out shapes ({len(held.shapes)}, fitted without them): median {held.median:.1%}, P90 {held.p90:.1%}")
    return said


def _document(
    lines: IterationLines, facts: LogFacts, verdict: Judgement, found: Calibration, engines: list[tuple[int, int, float]]
) -> dict[str, Any]:
    return {
        "bound": "none" if verdict.whole else "lower",
        "why": verdict.why,
        "read": {
            "lines": lines.lines, "iterations": len(lines), "dummy": lines.dummies, "repaired": lines.repaired,
            "lost": len(lines.broken), "lost_lines": lines.broken[:20],
        },
        "asynchronous": facts.asynchronous, "kv_cache_tokens": facts.kv_tokens, "version": facts.version,
        "gap_ns": verdict.gap_ns, "short_waits": verdict.short, "median_error": found.error,
        "engines": [{"engine": number, "iterations": count, "ratio": ratio} for number, count, ratio in engines],
    }  # fmt: skip

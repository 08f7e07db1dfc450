"""Profiles from latencies observed in traces: what fits to public measurements predict of requests they were not fitted to.

``python -m benchmarks.observed_fit [--part NAME ...] [--json]``. Parts: ``rtxpro6000`` and ``rtx4090`` (fitted to the first 100
requests, held against the other 200 of the same run: a same-run check), ``transfer`` (either card's coefficients on the other's
trace), ``otlp`` (each half of the time predicts the other), ``hidden`` (13,000 requests served by our own engine under
coefficients that the fit is not told). The traces lie in ``../shared/traces``; a part whose trace is missing says so. The machine
is shared: what a fit costs is the CPU time of its one thread.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.figures import ROOT, Figure, Report, run_main
from replay_engine.profile import HardwareFacts, Latency, Profile, load_profile
from tracekit.calibration.observed.errors import Errors, errors_of
from tracekit.calibration.observed.fit import ObservedFit, fit_observed, source_of
from tracekit.calibration.observed.observations import Observations, predictions
from tracekit.calibration.observed.replays import Replayer
from tracekit.calibration.observed.settings import Known, known_settings
from tracekit.calibration.observed.terms import NAMES, Vector, delivered_of, latency_of
from tracekit.metrics.verdict import Errors as Judged
from tracekit.metrics.verdict import judge_errors
from tracekit.traces.load import LoadedTrace, read_trace

__all__ = ["Card", "card_prior", "main", "measure"]

TRACES = ROOT / ".." / "shared" / "traces"
FIRST = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A measured run: its trace, the settings its operator knows, the card's data sheet, and the issue's bounds in percent:
    means of TTFT, TPOT and E2E, percentiles, TPOT request by request."""

    file: str
    sets: tuple[str, ...]
    hardware: HardwareFacts
    means: tuple[float, float, float]
    each: float
    running: int
    waiting: int


_SETS = ("async_scheduling=true", "max_num_batched_tokens=2048", "max_model_len=32768", "engine_version=0.19.0")
CARDS = {
    "rtxpro6000": Card(
        file="vllm_measured_llama8b_rtxpro6000.requests.jsonl", sets=(*_SETS, "max_num_seqs=128", "num_gpu_blocks=32768"),
        hardware=HardwareFacts(name="RTX PRO 6000", memory_bytes=96 * 2**30, peak_flops=503.8e12, bandwidth_bytes_s=1.792e12),
        means=(1.5, 1.0, 1.0), each=5.0, running=128, waiting=104,
    ),
    "rtx4090": Card(
        file="vllm_measured_llama8b_rtx4090.requests.jsonl", sets=(*_SETS, "max_num_seqs=256", "num_gpu_blocks=2588"),
        hardware=HardwareFacts(name="RTX 4090", memory_bytes=24 * 2**30, peak_flops=165.2e12, bandwidth_bytes_s=1.008e12),
        means=(3.0, 2.5, 3.0), each=12.0, running=49, waiting=234,
    ),
}  # fmt: skip
OTLP = {
    "codellama34b": ("vllm_otlp_spans_codellama34b.jsonl", ("max_num_batched_tokens=4096",)),
    "llama7b_prefill": ("vllm_otlp_spans_llama7b_prefill.jsonl", ("trace.shared_prefix=1024",)),
}
HIDDEN = Latency(floor_ns=8.3e6, a_ns=1.79e6, b_ns=31e3, c_ns=1.6, d_ns=19e3, e_ns=62.0, h0_ns=1e6)
HIDDEN_SETS = ("max_num_seqs=128", "max_num_batched_tokens=2048", "num_gpu_blocks=20000", "max_model_len=32768",
               "engine_version=0.24.0", "async_scheduling=true")  # fmt: skip


def card_prior(card: Card) -> Profile:
    """Llama 3.1 8B on a card of which only the data sheet is known: the shipped H100 profile, scaled by the peaks."""
    known = load_profile("h100-llama-3.1-8b")
    assert known.hardware is not None
    slower = known.hardware.bandwidth_bytes_s / card.hardware.bandwidth_bytes_s
    weaker = known.hardware.peak_flops / card.hardware.peak_flops
    was = known.latency
    floor, b = was.floor_ns * slower, was.b_ns * weaker
    latency = replace(was, floor_ns=floor, a_ns=max(floor - 180 * b, 0.0), b_ns=b, c_ns=was.c_ns * weaker,
                      d_ns=was.d_ns * slower, e_ns=was.e_ns * slower)  # fmt: skip
    return Profile(name=f"{card.hardware.name}-data-sheet", latency=latency, model=known.model, hardware=card.hardware)


def _loaded(file: str) -> LoadedTrace | None:
    path = Path(TRACES / file)
    return read_trace(str(path)) if path.exists() else None


def _fitted(card: Card) -> tuple[LoadedTrace, Known, ObservedFit] | None:
    loaded = _loaded(card.file)
    if loaded is None:
        return None
    prior = card_prior(card)
    known = known_settings(None, card.sets, prior)
    used = np.arange(loaded.arrivals.num_rows) < FIRST
    return loaded, known, fit_observed(loaded, known, prior, used=used)


def _held(found: ObservedFit, over: npt.NDArray[np.bool_]) -> dict[str, Errors]:
    best = found.best
    errors = errors_of(found.problem.seen, best.run, best.misfit.counting, delivered_of(best.vector), over)
    return {each.metric: each for each in errors}


def _card(name: str, report: Report) -> None:
    card = CARDS[name]
    began = time.process_time()
    fitted = _fitted(card)
    if fitted is None:
        report.figures[name] = Figure(value=None, unit="%", note=f"{card.file} is not there")
        return
    _, _, found = fitted
    spent, best = time.process_time() - began, found.best
    errors = _held(found, ~found.problem.seen.used)
    for metric, bound in zip(("ttft", "tpot", "e2e"), card.means, strict=True):
        report.figures[f"{name}: {metric} mean"] = _percent(errors[metric].mean, bound)
        for q in ("p50", "p90", "p99"):
            report.figures[f"{name}: {metric} {q.upper()}"] = _percent(getattr(errors[metric], q), 5.0)
    report.figures[f"{name}: tpot each request, P90"] = _percent(errors["tpot"].each_p90, card.each)
    for what, ours, theirs in (("running", best.run.running, card.running), ("waiting", best.run.waiting, card.waiting)):
        report.figures[f"{name}: most {what}"] = _percent(float(ours.max()) / theirs - 1, 5.0)
    report.figures[f"{name}: the fit"] = Figure(value=round(spent, 1), unit="CPU s", note=f"{found.replays} replays")
    terms = ", ".join(f"{told.name} {told.value:,.0f} ({told.verdict})" for told in found.told)
    report.notes.append(f"{name}: same-run check, counted from {best.misfit.counting}; {terms}")


def _percent(share: float, bound: float) -> Figure:
    return Figure(value=round(abs(100 * share), 2), unit="%", target=bound, at_most=True, note=f"{100 * share:+.2f} %")


def _transfer(report: Report) -> None:
    """The coefficients of one card under the other's settings and trace."""
    found = {name: _fitted(card) for name, card in CARDS.items()}
    for here, there in (("rtxpro6000", "rtx4090"), ("rtx4090", "rtxpro6000")):
        name, mine, other = f"transfer: {here} on {there}", found[here], found[there]
        if mine is None or other is None:
            report.figures[name] = Figure(value=None, unit="%", note="a trace is not there")
            continue
        errors = _predicted(other[0], other[1], mine[2].best.vector, mine[2].problem.expected.host, mine[2].best.misfit.counting)
        judged = {m: Judged(n=e.n, mean=e.mean, p50=e.p50, p90=e.p90) for m, e in errors.items() if m != "queue"}
        verdict = judge_errors(judged)
        told = 0.0 if verdict.serves is False else 1.0
        report.figures[name] = Figure(value=told, unit="believed", target=0.0, at_most=True, note=verdict.words)


def _predicted(loaded: LoadedTrace, known: Known, vector: Vector, host: Latency, counting: str) -> dict[str, Errors]:
    source = source_of(loaded, known)
    run = Replayer(source, known.policy).run(latency_of(vector, host))
    seen = Observations.of(source, None, loaded.report.obs_clock)
    return {each.metric: each for each in errors_of(seen, run, counting, delivered_of(vector))}


def _otlp(report: Report) -> None:
    for name, (file, sets) in OTLP.items():
        loaded = _loaded(file)
        if loaded is None:
            report.figures[f"otlp {name}"] = Figure(value=None, unit="%", note=f"{file} is not there")
            continue
        known = known_settings(None, (*sets, "engine_version=0.20.0"), None)
        arrival = source_of(loaded, known).arrival_ns
        early = arrival < (arrival[0] + arrival[-1]) / 2
        for half, used in (("early", early), ("late", ~early)):
            found = fit_observed(loaded, known, None, used=used)
            errors = _held(found, ~used)
            for metric in ("ttft", "e2e"):
                each = errors[metric]
                for what, share in (("P50", each.p50), ("P90", each.p90), ("each request, P50", each.each_p50)):
                    report.figures[f"{name}, fitted to the {half} half: {metric} {what}"] = _percent(share, 15.0)
            limits = ", ".join(f"{limit.knob} {limit.value} ({limit.known})" for limit in found.limits)
            report.notes.append(f"{name}, {half} half ({int(used.sum())} of {len(used)} requests): {limits}")


def _hidden(report: Report) -> None:
    """Latencies made by our own engine, without noise; then nobody tells the fit the coefficients."""
    loaded = _loaded("AzureLLMInferenceTrace_conv.head13k.csv")
    if loaded is None:
        report.figures["hidden"] = Figure(value=None, unit="%", note="AzureLLMInferenceTrace_conv.head13k.csv is not there")
        return
    known = known_settings(None, HIDDEN_SETS, None)
    run = Replayer(source_of(loaded, known), known.policy).run(HIDDEN)
    made = predictions(run, "arrival")
    began, clock = time.process_time(), time.perf_counter()
    found = fit_observed(_with_latencies(loaded, made), known, None)
    spent, wall = time.process_time() - began, time.perf_counter() - clock
    knee = (HIDDEN.floor_ns - HIDDEN.a_ns) / HIDDEN.b_ns
    truth = dict(zip(NAMES, (HIDDEN.floor_ns, knee, HIDDEN.b_ns, HIDDEN.c_ns, HIDDEN.d_ns, HIDDEN.e_ns), strict=False))
    report.figures["hidden: 13,000 requests fitted"] = Figure(
        value=round(spent, 1), unit="CPU s", target=120.0, at_most=True, note=f"{found.replays} replays, {wall:.0f} s wall"
    )
    for told in found.told:
        if told.name in truth:
            share = told.value / truth[told.name] - 1
            bound = 5.0 if told.verdict == "identified" else None
            words = f"{100 * share:+.2f} %, {told.verdict}"
            report.figures[f"hidden: {told.name}"] = Figure(
                value=round(abs(100 * share), 2), unit="%", target=bound, at_most=True, note=words
            )


def _with_latencies(loaded: LoadedTrace, made: dict[str, npt.NDArray[np.float64]]) -> LoadedTrace:
    import pyarrow as pa

    columns: dict[str, Any] = {"req_idx": loaded.arrivals["req_idx"]}
    for name in ("queue", "ttft", "tpot", "e2e"):
        columns[f"obs_{name}_ns"] = pa.array([None if np.isnan(v) else round(v) for v in made[name].tolist()], pa.int64())
    return LoadedTrace(report=loaded.report, arrivals=loaded.arrivals, extras=pa.table(columns), runs=loaded.runs)


PARTS = ("rtxpro6000", "rtx4090", "transfer", "otlp", "hidden")


def measure(args: argparse.Namespace) -> Report:
    """The chosen parts."""
    report = Report(benchmark="observed_fit")
    for part in args.part or PARTS:
        if part in CARDS:
            _card(part, report)
        else:
            {"transfer": _transfer, "otlp": _otlp, "hidden": _hidden}[part](report)
    return report


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; repeatable")


def main(argv: list[str] | None = None) -> None:
    run_main("observed_fit", "Fits to observed latencies, held against what they were not fitted to.", measure, argv, _options)


if __name__ == "__main__":
    main()

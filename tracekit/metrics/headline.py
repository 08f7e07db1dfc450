"""The answer first: tail, SLO, what requests waited for, in a few lines above the matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tracekit.metrics.fields import is_missing
from tracekit.metrics.wording import count, limits_text, share, span_text

__all__ = ["headline"]


def headline(matrix: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and text of each line; an empty label continues the line above."""
    return [*_tail(matrix["latency"]), *_slo(matrix["slo"]), *_waited(matrix), *_engines(matrix), *_ended(matrix)]


def _tail(latency: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    label = "Tail"
    for name, field in (("TTFT", "ttft_ns"), ("TPOT", "tpot_ns"), ("E2E", "e2e_ns")):
        row = latency[field]
        if is_missing(row):
            text = f"{name} - ({row['reason']})"
        else:
            few = " (P99 of few)" if row["small_n"] else ""
            points = ", ".join(f"{point.upper()} {span_text(row[point])}" for point in ("p50", "p95", "p99"))
            text = f"{name} {points}, n {row['n']:,}{few}"
        yield label, text
        label = ""
    gap, stalled = latency["longest_gap_ns"], latency["stalled_ns"]
    if not is_missing(gap):
        text = f"longest gap {span_text(gap['max'])} (request {gap['request']})"
        if not is_missing(stalled):
            text += f"; stalled {span_text(stalled['total'])} in {stalled['requests']:,} requests"
        yield "", text


def _slo(slo: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    reached = slo["attainment"]
    if is_missing(reached):
        yield "SLO", f"- ({reached['reason']})"
        return
    interval = f"{share(reached['low'])} to {share(reached['high'])}"
    yield "SLO", f"{share(reached['share'])} of {reached['n']:,} requests met {limits_text(slo['limits'])} (95 %: {interval})"
    rate = slo["goodput_requests_per_s"]
    good = f"- ({rate['reason']})" if is_missing(rate) else f"{count(rate)} requests/s"
    missed = ", ".join(f"{part} {hits:,}" for part, hits in slo["missed_by"].items() if hits)
    yield "", f"SLO-goodput {good}; missed by: {missed or 'nobody'}"


def _waited(matrix: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    queueing, time, kv = matrix["queueing"], matrix["time"], matrix["kv"]
    busy, refusals = time["busy_ns"], queueing["refusals"]
    if is_missing(refusals):
        yield "Waited", "no queue head was refused: requests waited for the iteration under way only"
    else:
        part = f" ({share(queueing['queue_ns'] / busy)} of busy time)" if busy else ""
        yield "Waited", f"somebody waited for {span_text(queueing['queue_ns'])}{part}; head of queue refused by"
        reasons = [f"{name} {share(row['share'])}" for name, row in list(refusals.items())[:4]]
        yield "", ", ".join(reasons) + " of refused time (a symptom, not yet a cause)"
    high = kv["high_water_share"]
    text = "KV high-water - " if is_missing(high) else f"KV high-water {share(high)} of {kv['total_blocks']:,} blocks"
    preempted = matrix["preemption"]["preemptions"]
    yield "", f"{text}; {preempted:,} preemptions; largest batch {matrix['concurrency']['running_max']:,}"


def _engines(matrix: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where there are several engines: how evenly they were used, and what a prompt's KV on its way cost."""
    fleet, pools = matrix["fleet"], matrix["pools"]
    separate = not is_missing(pools["stage_shares"])
    if not separate and not is_missing(fleet["by_replica"]) and not is_missing(fleet["imbalance_busy"]):
        retried = fleet["retried"]
        again = f"; {retried:,} requests sent again" if not is_missing(retried) and retried else ""
        uneven = f"busiest {fleet['imbalance_busy']:.2f} of the mean, most requests {fleet['imbalance_requests']:.2f}"
        yield "Fleet", f"{fleet['replicas']} replicas, {_or_dash(fleet['router'])}: {uneven}{again}"
    if separate:
        stages = ", ".join(f"{name.replace('_', ' ')} {share(part)}" for name, part in pools["stage_shares"].items() if part)
        busy = f"prefill engines {share(pools['prefill_busy_share'])} busy, decode engines {share(pools['decode_busy_share'])}"
        yield "P/D", f"{pools['split']}: {busy}"
        yield "", f"mean TTFT was {stages}"


def _ended(matrix: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    ends = matrix["ends"]
    others = ("rejected", "timed_out", "cancelled", "failed", "unreleased")
    odd = [f"{ends[name]:,} {name.replace('_', ' ')}" for name in others if ends[name]]
    lost = matrix["counted"]["not_ended"]
    odd += [f"{lost:,} not ended (run interrupted)"] if lost else []
    yield "Ended", ", ".join([f"{ends['finished']:,} of {matrix['counted']['requests']:,} finished", *odd])
    yield from _model(matrix["profile"])


def _model(profile: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """How far the times are to be believed, before anybody reads further: what they are, and what they were held against."""
    yield "Model", f"{_or_dash(profile['name'])}; error on this trace: {_or_dash(profile['error_on_trace'])}"
    if is_missing(profile["name"]):
        return
    fit = profile["fitted"]
    bound = [] if is_missing(fit) or fit.get("bound") != "lower" else ["LOWER BOUND, the engine takes longer"]
    yield "", "; ".join([*bound, f"trust: {_or_dash(profile['trust'])}"])


def _or_dash(value: Any) -> str:
    return str(value["reason"]) if is_missing(value) else str(value)

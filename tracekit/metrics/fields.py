"""The fields of the acceptance matrix: one list, which building, rendering, the docs and the tests all follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from replay_engine.config import SchedulerConfig
from replay_engine.rule_tables import RULE_KNOBS

__all__ = ["FIELDS", "SCHEMA", "SECTIONS", "MatrixField", "bare_nulls", "field_value", "is_missing", "missing_fields"]

SCHEMA = "tracekit.matrix/1"
Kind = Literal["text", "number", "tokens", "blocks", "bytes", "ns", "share", "rate", "dist_ns", "dist_tokens", "object"]

SECTIONS = {
    "run": "What ran",
    "model": "Model",
    "hardware": "Hardware",
    "engine": "Engine",
    "profile": "Profile",
    "counted": "What was counted",
    "traffic": "Traffic",
    "concurrency": "Realised concurrency",
    "knobs": "Scheduler knobs",
    "latency": "Latency",
    "throughput": "Throughput",
    "slo": "SLO",
    "fairness": "Fairness between tenants",
    "entrance": "Front door and client",
    "ends": "How requests ended",
    "preemption": "Preemption",
    "kv": "KV and prefix cache",
    "queueing": "Queueing",
    "time": "Where the time went",
    "fleet": "Replicas",
    "pools": "Prefill and decode pools",
    "observed": "Replayed against observed",
}
"""Sections in the order shown, with their titles."""


@dataclass(frozen=True, slots=True)
class MatrixField:
    """``section.name`` of the document, how it reads, and what it means."""

    section: str
    name: str
    kind: Kind
    label: str
    meaning: str


_TABLE = """
run name text Run | the run's name or number
run trace text Trace | the trace replayed
run command text Command | what was typed
run seed number Seed | seed of whatever is drawn
run state text State | finished, interrupted, cancelled
run started_at text Started | wall clock, UTC
run events text Events kept | full, outcomes or none
run tracekit_version text tracekit | version
model name text Model | from the profile
model precision text Precision | number format of the weights
hardware name text Accelerator | from the profile
hardware devices number Devices | accelerators of one engine
hardware memory_bytes bytes Memory each | as the driver reports it
hardware parallelism text Parallelism | tensor parallel degree
engine name text Engine | sim: durations predicted by the profile; torch: measured
engine version text Scheduler semantics | the engine release whose decisions are reproduced
engine scheduling text Scheduling | asynchronous or synchronous
profile name text Profile | latency coefficients used
profile origin text Origin | where its numbers come from
profile fitted object Fit | fitted range and error stated by the profile
profile error_on_trace text Error on this trace | median absolute relative error of E2E, replayed against observed
profile trust text Trust | the verdict of replayed against observed latencies, or of the profile's last check
counted requests number Requests counted | denominator of every share
counted lead_in_requests number Lead-in requests | replayed, not counted
counted lead_in_ns ns Lead-in | length
counted not_ended number Not ended | counted requests without an outcome (run interrupted)
counted rule text Rule | which figures leave the lead-in out
traffic input_tokens dist_tokens Input tokens | prompt lengths
traffic output_tokens dist_tokens Output tokens | answer lengths
traffic arrival_rate_per_s rate Arrivals/s | (n - 1) / span
traffic interarrival_cv number Inter-arrival CV | standard deviation / mean of gaps between arrivals; 1: Poisson
traffic dispersion_1s number Dispersion 1 s | variance / mean of arrivals per 1 s bin; 1: Poisson
traffic peak_1s_requests number Peak 1 s | most arrivals in a 1 s bin
traffic arrival_span_ns ns Arrival span | first to last counted arrival
concurrency running_mean number Running, mean | over busy time
concurrency running_max number Running, max | largest batch
concurrency waiting_mean number Waiting, mean | over busy time
concurrency waiting_max number Waiting, max | longest queue
knobs token_budget tokens Token budget | tokens one iteration may compute
knobs seat_limit number Seat limit | running requests at which admission stops
knobs kv_budget_blocks blocks KV budget | usable blocks
knobs kv_budget_tokens tokens KV budget, tokens | usable blocks x block size
knobs notes object Notes | what is estimated, clipped or ignored
latency queue_ns dist_ns Queue | first scheduled - arrival
latency ttft_ns dist_ns TTFT | first output token - arrival
latency tpot_ns dist_ns TPOT | (last - first token) / (output tokens - 1), per request
latency itl_ns dist_ns ITL | every gap between two tokens, pooled
latency e2e_ns dist_ns E2E | last output token - arrival
latency longest_gap_ns dist_ns Longest gap | largest gap of each request
latency stalled_ns object Stalled | sum over gaps of what exceeds the threshold
throughput window_output_tokens_per_s rate Output tok/s, arrival window | finished requests
throughput window_total_tokens_per_s rate In+out tok/s, arrival window | finished requests
throughput window_requests_per_s rate Requests/s, arrival window | finished requests
throughput window_ns ns Arrival window | its length
throughput run_output_tokens_per_s rate Output tok/s, whole run | to the last completion
throughput run_total_tokens_per_s rate In+out tok/s, whole run | to the last completion
throughput run_requests_per_s rate Requests/s, whole run | to the last completion
throughput run_ns ns Whole run | first counted arrival to last counted token
slo limits object Limits | default, per class, per tenant, and request columns used
slo window_ns ns Rates are per | length of the window goodput is over
slo window_basis text Window | which window that is
slo attainment object Attainment | SLO met / every counted request, with its 95 % Wilson interval
slo goodput_requests_per_s rate SLO-goodput, requests/s | requests with SLO met per second of that window
slo goodput_tokens_per_s rate SLO-goodput, output tok/s | their output tokens per second
slo missed_by object Missed by | requests violating each part (one may violate several)
slo cancelled_met number Cancelled, counted as met | cancelled by the client before any part was violated
slo degraded_requests number Degraded | answer cut; missed unless --accept-degraded
slo by_tenant object By tenant | attainment and goodput, largest first
slo by_class object By class | attainment and goodput, largest first
fairness tenants number Tenants | with a counted request
fairness jain_service number Jain's index, service | of each tenant's share served by the end of the arrival window; 1: all alike
fairness service_least object Least served | output tokens had by the end of the arrival window / asked for in it
fairness service_most object Most served | likewise
fairness jain_slo number Jain's index, SLO | of each tenant's attainment
fairness slo_least object Lowest attainment | of a tenant
fairness slo_most object Highest attainment | of a tenant
entrance active text Before the engine | which rules decide there
entrance decisions object Decisions | admitted, degraded, rejected by reason
entrance states object States by reason | how every counted request ended
ends finished number Finished | emitted all output tokens
ends rejected number Rejected | never admitted
ends timed_out number Timed out | deadline of the client
ends cancelled number Cancelled | by the client
ends failed number Failed | by the engine
ends unreleased number Unreleased | parent never finished
ends reasons object Reasons | of those that did not finish
preemption preemptions number Preemptions | of counted requests
preemption requests_preempted number Requests preempted | at least once
preemption recomputed_tokens tokens Recomputed tokens | of counted requests
preemption preemptions_whole_replay number Preemptions, whole replay | lead-in included
preemption recomputed_share share Recomputed share | of all computed tokens
preemption stood_still_ns dist_ns Stood still | from preemption to the first token after it, or the prefill caught up
preemption recovery_ns ns Stood still in all | sum over preemptions of counted requests
preemption recovery_share share Recovery share | of the summed E2E of finished requests
preemption lost_tokens tokens Lost tokens | computed KV given up
preemption link_ns ns On the link | copies to the host and back
preemption not_restored number Not restored | preempted and ended before they came back
preemption by_kind object By kind | what became of the KV: events, recomputed tokens, link, stood still
kv total_blocks blocks KV blocks | usable
kv high_water_blocks blocks High-water mark | most blocks referenced by running requests
kv high_water_share share High-water share | of usable blocks
kv mean_used_share share Mean used | over busy time
kv reserved_high_water_blocks blocks Reserved, high-water | most blocks set aside for whole sequences
kv reserved_unused_blocks blocks Reserved, unused | set aside and not written, mean over busy time
kv reserved_unused_share share Reserved, unused, share | of the blocks set aside
kv cached_high_water_blocks blocks Cached, high-water | cached and unreferenced
kv above_watermark_ns ns Above watermark | time the used blocks exceeded it
kv above_watermark_share share Above watermark, share | of busy time
kv evicted_blocks blocks Evicted | cached blocks given away
kv prefix_hit_share share Prefix hit share | cached / prompt tokens of admitted counted requests
kv prefix_hit_tokens tokens Prefix hit tokens | whole replay
queueing queue_ns ns Somebody waited | time of iterations that left a request waiting
queueing refusals object Head refused by | first refusal of the queue's head; a symptom, not yet a cause
queueing unused_budget_tokens tokens Unused budget | while somebody waited
queueing unused_budget_share share Unused budget, share | of the budget while somebody waited
queueing async_blocked_ns ns Asynchronous cost | head refused while a finished request still held seat or blocks
queueing async_blocked_share share Asynchronous cost, share | of busy time
time iterations number Iterations | of the replay
time run_ns ns Engine run | first start to last end
time busy_ns ns Busy | sum of iterations
time idle_ns ns Idle | nothing to run; summed over replicas
time device_ns ns Device | overlaps host when asynchronous
time host_ns ns Host | scheduling and bookkeeping
time device_share share Device share | of busy time
time host_share share Host share | of busy time
time prefill_tokens tokens Prefill tokens | computed, recomputed ones included
time recomputed_tokens tokens Recomputed tokens | whole replay
time decode_tokens tokens Decode tokens | computed
time walked_iterations number Walked iterations | decided by the per-sequence loop
fleet replicas number Replicas | engines behind one router
fleet router text Router | how a request finds its replica
fleet by_replica object By replica | counted requests that ended there, busy share, tokens, prefix hits, KV high-water
fleet imbalance_requests number Imbalance, requests | most of a replica / mean
fleet imbalance_tokens number Imbalance, tokens | computed tokens, likewise
fleet imbalance_busy number Imbalance, busy time | likewise
fleet retried number Requests sent again | their replica failed
fleet retries number Retries | how often in all
fleet faults text Faults | replicas that were made to fail or to be slow
pools split text Engines, P:D | prefill and decode engines
pools prefill_router text Router, prefill | chosen at the arrival
pools decode_router text Router, decode | chosen when the prompt is computed
pools prefill_busy_share share Prefill engines busy | of the engines' run, mean
pools decode_busy_share share Decode engines busy | likewise
pools stage_shares object Stages of mean TTFT | what requests were doing until their first token
pools transfers number Transfers | of a prompt's KV, that arrived
pools moved_gb number KV moved, GB | over the links
pools link_gb_per_s number Effective bandwidth, GB/s | bytes / time of transfers
pools link_wait_ns ns Wait for the link | mean, from asked to started
pools cached_share share KV not moved | the decode engine had it cached
pools broken_off number Transfers broken off | link or engine failed, or given up
pools pool_faults text Faults | engines and links that were made to fail or to be slow
observed queue_ns object Queue | replayed and observed
observed ttft_ns object TTFT | replayed and observed
observed tpot_ns object TPOT | replayed and observed
observed e2e_ns object E2E | replayed and observed
"""


def _parse(line: str) -> MatrixField:
    head, meaning = line.split(" | ")
    section, name, kind, label = head.split(" ", 3)
    return MatrixField(section, name, kind, label, meaning)  # type: ignore[arg-type]


_KINDS: dict[str, Kind] = {"order.reserved": "object", "front_door.quotas": "object"}


def _all_fields() -> tuple[MatrixField, ...]:
    found = []
    for line in _TABLE.strip().splitlines():
        found.append(_parse(line))
        if line.startswith("knobs kv_budget_tokens"):
            found += [
                MatrixField("knobs", knob.name, "text", knob.name, "as set; null: the engine's own default applies")
                for knob in fields(SchedulerConfig)
            ]
            found += [
                MatrixField("knobs", f"{table}.{knob}", _KINDS.get(f"{table}.{knob}", "text"), f"{table}.{knob}", "as set")
                for table, knobs in RULE_KNOBS.items()
                for knob in knobs
            ]
    return tuple(found)


FIELDS = _all_fields()


def is_missing(value: object) -> bool:
    """Whether a field says ``{"value": null, "reason": ...}``."""
    return isinstance(value, Mapping) and "value" in value and value["value"] is None and "reason" in value


def field_value(matrix: Mapping[str, Any], spec: MatrixField) -> Any:
    """The field's value, or its missing-object. A document of an older version lacks newer fields, and says so."""
    unknown = {"value": None, "reason": "the version that made this run did not record it"}
    return matrix.get(spec.section, {}).get(spec.name, unknown)


def missing_fields(matrix: Mapping[str, Any]) -> list[str]:
    """What the document lacks or has too much, as ``section.name``; empty for a complete document."""
    wanted = {(spec.section, spec.name) for spec in FIELDS}
    have = {(section, name) for section in SECTIONS for name in matrix.get(section, {})}
    return sorted(f"{section}.{name}" for section, name in wanted ^ have)


def bare_nulls(value: object, path: str = "") -> list[str]:
    """Paths of nulls without a reason, and of numbers JSON cannot carry; empty for a sound document."""
    if is_missing(value):
        return []
    if isinstance(value, Mapping):
        return [found for key, item in value.items() for found in bare_nulls(item, f"{path}.{key}")]
    if isinstance(value, list | tuple):
        return [found for at, item in enumerate(value) for found in bare_nulls(item, f"{path}[{at}]")]
    unsound = value is None or (isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))))
    return [path] if unsound else []

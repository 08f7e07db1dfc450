"""The retold cases of trouble, diagnosed: the cause first, its numbers, the knob, and nothing that the case says is wrong."""

from __future__ import annotations

import copy
import re
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from benchmarks.case_setups import CASES, recipe_setup
from replay_engine.policy import build_policy
from replay_engine.profile import Latency, load_profile
from tracekit.diagnosis import load_run_data
from tracekit.diagnosis.diagnose import diagnose
from tracekit.diagnosis.finding import Change, Diagnosis, Finding
from tracekit.diagnosis.from_observed import diagnose_observed
from tracekit.diagnosis.run_data import RunData
from tracekit.diagnosis.signals import SIGNALS, evidence, q_share95
from tracekit.diagnosis.view import View
from tracekit.door_facts import door_facts
from tracekit.metrics import SloTable
from tracekit.metrics.slo import Slo
from tracekit.replay import replay
from tracekit.store import Store, sql
from tracekit.traces.load import read_trace
from tracekit.traces.source import TraceSource

EXPECTED: dict[str, tuple[list[str], tuple[str, ...], dict[str, tuple[float, float]]]] = {
    "C1": ([], (), {}),
    "D01": (
        ["HOL_LONG_PROMPT"],
        ("long_prefill_token_threshold=4096",),
        {"q_share95": (0.9, 1), "block[budget]": (0.95, 1), "fill_w": (0.95, 1), "kv max": (0, 0.3),
         "waits inside long prefills": (0.95, 1), "time of long prefills": (0.25, 0.4), "long prompts": (4, 4)},
    ),
    "D02": (
        ["PREFILL_STALLS_DECODE", "HOL_LONG_PROMPT"],
        ("batching.step=decode_first",),
        {"stall_max": (5, 7), "prefill runs": (5, 100)},
    ),
    "D03": (
        ["QUEUE_SEATS"],
        ("max_num_seqs=4",),
        {"block[seats]": (0.95, 1), "seats taken": (1, 1), "kv max": (0, 0.05), "fill_w": (0.01, 0.04)},
    ),
    "D04": (
        ["PREEMPTION_STORM", "ADMISSION_LAX"],
        ("scheduler_reserve_full_isl=true",),
        {"recompute": (0.5, 1), "preempt_max": (20, 500), "kv p50": (0.95, 1), "readmitted at once": (0.9, 1),
         "block[budget]": (0.93, 1)},
    ),
    "D05": (
        ["ADMISSION_STRICT"],
        ("batching.output_reserve_clip=256",),
        {"block[kv]": (0.95, 1), "kv p95": (0, 0.05), "max_tokens / output p99": (25, 33), "running max": (7, 7),
         "longest output": (142, 142)},
    ),
    "D06": (
        ["STARVATION"],
        ("preemption.to_admit=true",),
        {"inverted": (0.9, 1), "block[seats]": (0.95, 1), "kv max": (0, 0.1)},
    ),
    "D07": (
        ["CHUNK_TOO_SMALL"],
        ("max_num_batched_tokens=4096",),
        {"left below align": (0.95, 1), "running max": (1, 1), "kv max": (0, 0.05), "decode only": (0.05, 1)},
    ),
    "D08": (
        ["PREFIX_MISS"],
        ("fleet.router=prefix_affinity",),
        {"hit_ideal": (0.78, 0.88), "hit": (0, 0.3), "replicas per prefix": (6, 8), "q_share95": (0.9, 1)},
    ),
    "D09": (
        ["CLIENT_LIMIT"],
        ("client.max_in_flight=300",),
        {"dispatch": (0.95, 1), "in flight at the limit": (0.8, 1), "at the server": (90, 100), "running max": (100, 100),
         "kv p95": (0.1, 0.3)},
    ),
    "D10": (
        ["PD_IMBALANCE"],
        ("pd.prefill_router=least_tokens",),
        {"stage[P queue]": (0.55, 0.8), "queued beside idle": (0.9, 1), "P busy": (0.2, 0.3), "stage[transfer]": (0, 0.06)},
    ),
    "D11": (
        ["KV_TRANSFER"],
        ("kv_link.gb_per_s=50",),
        {"stage[transfer wait]": (0.72, 0.95), "bandwidth": (0.45, 0.55), "stage[P compute]": (0, 0.05), "P busy": (0.1, 0.15)},
    ),
    "D12": (
        ["QUEUE_KV", "PREEMPTION_STORM"],
        ("max_num_seqs=7",),
        {"kv p50": (0.95, 1), "recompute": (0.7, 0.9), "preempt/req": (3, 8)},
    ),
    "D13": (
        ["BURST"],
        ("traffic.burst_scale=0",),
        {"arrivals cv": (2.1, 3.9), "dispersion": (6, 12), "q_share95": (0.85, 1), "waits of worst fifth": (0.68, 0.88)},
    ),
    "D14": (
        ["OVERLOAD"],
        ("fleet.replicas=2", "fleet.router=least_tokens"),
        {"slope[1]": (5, 18), "slope[4]": (70, 140), "prefill rate": (7000, 8300), "offered/capacity": (1.1, 1.5)},
    ),
    "D15": (
        ["UNDERUSED_BUDGET"],
        ("max_num_batched_tokens=24576",),
        {"fill_w": (0.65, 0.85), "iterations full": (400, 800), "iterations half full": (400, 800)},
    ),
}  # fmt: skip
"""Per case: the findings in order (others may follow), what the first proposes, and bounds of its evidence."""

WRONG: dict[str, tuple[str, ...]] = {
    "D01": ("max_num_seqs", "num_gpu_blocks", "max_num_batched_tokens", "OVERLOAD"),
    "D02": ("max_num_batched_tokens",),
    "D03": ("max_num_batched_tokens", "num_gpu_blocks"),
    "D05": ("num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens"),
    "D06": ("max_num_seqs",),
    "D07": ("max_num_seqs",),
    "D08": ("max_num_batched_tokens", "max_num_seqs"),
    "D10": ("pd.prefill",),
    "D11": ("pd.prefill", "pd.decode"),
    "D12": ("max_num_batched_tokens",),
    "D13": ("max_num_seqs", "OVERLOAD"),
    "D14": ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks", "long_prefill_token_threshold"),
    "D15": ("max_num_seqs",),
}
"""Knobs that nothing may propose, and causes that may not be named."""


def test_the_long_prompts_are_named() -> None:
    run, first = run_of("D01"), diagnosis_of("D01").findings[0]
    assert first.classes == ("short",)
    assert set(first.culprits) == set(run.outcomes["request"][run.outcomes["prompt_tokens"] > 400_000].tolist())


@cache
def run_of(case: str) -> RunData:
    with TemporaryDirectory() as folder:
        return RunData.replayed(recipe_setup(CASES / f"{case}.yaml", Path(folder)))


@cache
def diagnosis_of(case: str) -> Diagnosis:
    return diagnose(run_of(case))


def proposed(found: Diagnosis) -> list[Change]:
    return [change for finding in found.findings for change in finding.changes]


@pytest.mark.parametrize("case", EXPECTED)
def test_the_cause_comes_first_with_its_knob_and_its_numbers(case: str) -> None:
    ids, sets, bounds = EXPECTED[case]
    found = diagnosis_of(case)
    assert [finding.id for finding in found.findings][: max(len(ids), 1)] == ids
    if not ids:
        assert any("nothing is wrong" in remark for remark in found.remarks)
        return
    first = found.findings[0]
    assert first.changes[0].sets == sets
    seen = {each.metric: each.value for each in first.evidence}
    for metric, (low, high) in bounds.items():
        value = seen[metric]
        assert value is not None and low <= value <= high, (metric, value)


@pytest.mark.parametrize("case", WRONG)
def test_nothing_forbidden_is_said(case: str) -> None:
    found = diagnosis_of(case)
    said = {finding.id for finding in found.findings} | {change.knob for change in proposed(found)}
    assert not said & set(WRONG[case])


@pytest.mark.parametrize("case", [case for case, (ids, *_) in EXPECTED.items() if ids])
def test_a_finding_can_be_checked(case: str) -> None:
    run, found = run_of(case), diagnosis_of(case)
    requests = set(run.outcomes["request"].tolist())
    iterations = set(zip(run.iterations["replica"].tolist(), run.iterations["iteration"].tolist(), strict=True))
    for finding in found.findings:
        assert finding.what and finding.because and finding.evidence and finding.is_not
        assert finding.where.t0_ns <= finding.where.t1_ns
        assert set(finding.where.requests) <= requests and set(finding.where.iterations) <= iterations
        assert 0 < finding.share <= 1 + 1e-9
        assert set(finding.culprits) <= requests
        for change in finding.changes:
            assert change.sets and change.why and change.old != change.new
    assert found.unexplained_ns <= found.excess_ns
    assert sum(f.excess_ns for f in roots(found)) + found.unexplained_ns <= found.excess_ns + len(found.findings) + 1


def roots(found: Diagnosis) -> list[Finding]:
    """Findings that no other one is paid for as well."""
    seen: dict[int, Finding] = {}
    for finding in found.findings:
        seen.setdefault(finding.excess_ns, finding)
    return list(seen.values())


@pytest.mark.parametrize("case", ["D01", "D02", "D06", "D08", "D13"])
def test_names_do_not_matter(case: str, tmp_path: Path) -> None:
    text = (CASES / f"{case}.yaml").read_text(encoding="utf-8").partition("variants:")[0]
    path = tmp_path / "another.yaml"
    path.write_text(re.sub(r"cls: (\w+)", lambda found: f"cls: q{found[1][::-1]}", text), encoding="utf-8")
    found, before = diagnose(RunData.replayed(recipe_setup(path, tmp_path / "built"))), diagnosis_of(case)
    assert [each.id for each in found.findings] == [each.id for each in before.findings]
    assert [each.sets for each in proposed(found)] == [each.sets for each in proposed(before)]
    renamed = [tuple(f"q{name[::-1]}" for name in each.classes) for each in before.findings]
    assert [each.classes for each in found.findings] == renamed


@pytest.mark.parametrize(("case", "seeds"), [("D01", 3), ("D02", 3), ("D05", 3), ("D07", 2), ("D12", 2), ("D13", 3), ("C1", 2)])
def test_another_draw_of_the_same_service_is_told_alike(case: str, seeds: int, tmp_path: Path) -> None:
    text = (CASES / f"{case}.yaml").read_text(encoding="utf-8").partition("variants:")[0]
    for seed in range(seeds):
        path = tmp_path / f"draw{seed}.yaml"
        path.write_text(re.sub(r"^seed: \d+", f"seed: {7000 + seed}", text, flags=re.M), encoding="utf-8")
        found = diagnose(RunData.replayed(recipe_setup(path, tmp_path / f"built{seed}")))
        assert [each.id for each in found.findings][:1] == EXPECTED[case][0][:1], seed


@pytest.mark.parametrize("case", ["D01", "D05", "D10", "D12"])
def test_an_slo_that_everybody_meets_leaves_nothing_to_say(case: str) -> None:
    data = run_of(case)
    rows = data.outcomes
    slo = SloTable(default=Slo(ttft_ns=int(rows["ttft_ns"].max()) + 1))
    setup = replace(data.setup, slo=slo)
    easy = diagnose(RunData(setup=setup, tables=data.tables))
    assert easy.findings == () and easy.excess_ns == 0
    tight = SloTable(default=Slo(ttft_ns=int(np.quantile(rows["ttft_ns"], 0.7)) + 1))
    hard = diagnose(RunData(setup=replace(data.setup, slo=tight), tables=data.tables))
    assert hard.findings[0].id in {each.id for each in diagnosis_of(case).findings}
    late = np.maximum(rows["ttft_ns"] - int(tight.default.ttft_ns or 0), 0)
    assert hard.excess_ns == pytest.approx(float(late.sum()), rel=1e-9)


def test_evidence_is_what_its_sql_yields(tmp_path: Path) -> None:
    db = str(tmp_path / "t.duckdb")
    example = Path(__file__).resolve().parents[2] / "examples" / "demo_trace.jsonl.gz"
    small = ("num_gpu_blocks=260", "max_num_batched_tokens=512", "max_num_seqs=6", "max_model_len=4000", "async_scheduling=false")
    replay(str(example), limit=400, db=db, engine="sim", sets=(*small, "scheduler_reserve_full_isl=false"), rate_scale=4.0)
    view = View(load_run_data(Store(db), "last"))
    shown = [evidence(view, name) for name in SIGNALS] + [q_share95(view, view.finished)]
    asked = [each for each in shown if each.sql]
    assert len(asked) >= 18
    for each in asked:
        assert each.sql is not None and each.value is not None
        value = sql(Store(db), each.sql.format(run=1)).rows[0][0]
        assert float(value or 0) == pytest.approx(each.value, rel=1e-6, abs=1e-9), each.metric


MEASURED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"


@pytest.mark.skipif(not MEASURED.is_dir(), reason="the measured traces are not in this checkout")
@pytest.mark.parametrize(
    ("run", "nearest", "sets", "cause"),
    [
        ("rtxpro6000", "a100", ("max_num_seqs=128",), "QUEUE_SEATS"),
        ("rtx4090", "l40s", ("max_num_seqs=256", "num_gpu_blocks=2588"), "QUEUE_KV"),
    ],
)
def test_measured_runs_are_named_from_requests_and_settings(run: str, nearest: str, sets: tuple[str, ...], cause: str) -> None:
    """Two runs of vLLM whose limits are known: seats, and KV. The profile is the nearest shipped one, brought to the observed
    time between tokens by one factor."""
    profile = load_profile(nearest)
    source = TraceSource.from_loaded(read_trace(str(MEASURED / f"vllm_measured_llama8b_{run}.requests.jsonl")))
    assert source.obs_e2e_ns is not None and source.obs_ttft_ns is not None
    for _ in range(3):
        policy = build_policy(profile, None, (*sets, "max_num_batched_tokens=2048", "max_model_len=32768"))
        setup = replace(run_of("D03").setup, profile=profile, policy=policy, source=source,
                        facts=door_facts(policy, profile, None, source))  # fmt: skip
        data = RunData.replayed(setup)
        ours = float((data.outcomes["e2e_ns"] - data.outcomes["ttft_ns"]).mean())
        factor = float((source.obs_e2e_ns - source.obs_ttft_ns).mean()) / ours
        names = [each.name for each in fields(Latency)]
        slower = Latency(**{name: factor * getattr(profile.latency, name) for name in names})
        profile = replace(profile, synthetic=True, latency=slower)
    assert abs(factor - 1) < 0.05
    assert diagnose(data).findings[0].id == cause
    seats, kv_tokens = policy.scheduler.max_num_seqs, policy.scheduler.usable_blocks * policy.scheduler.block_size
    told = diagnose_observed(source, seats=seats, kv_tokens=kv_tokens)
    assert [each.id for each in told.findings] == [cause]


def observed(run: RunData) -> TraceSource:
    """What a gateway would have seen of a run: its requests' own times, and nothing of its iterations."""
    source, rows = copy.copy(run.source), run.outcomes
    source.obs_queue_ns, source.obs_ttft_ns = rows["queue_ns"].copy(), rows["ttft_ns"].copy()
    source.obs_e2e_ns, source.obs_tpot_ns = rows["e2e_ns"].copy(), None
    return source


@pytest.mark.parametrize("case", EXPECTED)
def test_a_trace_of_a_case_is_named_right_or_not_at_all(case: str) -> None:
    run = run_of(case)
    one = not run.policy.engines and run.policy.rules.fleet.replicas == 1
    config = run.policy.scheduler
    known = {"seats": config.max_num_seqs, "kv_tokens": config.usable_blocks * config.block_size} if one else {}
    told = diagnose_observed(observed(run), **known)
    names = [each.id for each in told.findings]
    assert set(names) <= set(EXPECTED[case][0])
    assert names or any("cannot tell, because" in each or "no limit binds" in each for each in told.remarks)
    if case in ("D01", "D03"):
        assert names == EXPECTED[case][0]

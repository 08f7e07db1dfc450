"""Test cases from recipes: every one of the recorded cases that one engine can run, with all its variants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from replay_engine.policy import load_policy
from replay_engine.profile import load_profile
from tracekit.errors import TracekitError, UsageError
from tracekit.generators.recipe import build_case, policy_of, profile_of, trace_of
from tracekit.generators.recipe_file import read_recipe
from tracekit.generators.recipe_values import parse_amount, parse_arrivals
from tracekit.traces.load import read_trace
from tracekit.traces.source import TraceSource

CASES = Path(__file__).parents[1] / "data" / "cases"
BUILT = sorted(path.stem for path in CASES.glob("*.yaml"))


def test_all_sixteen_are_here() -> None:
    assert ["C1", *(f"D{k:02}" for k in range(1, 16))] == BUILT


@pytest.mark.parametrize("case", BUILT)
def test_case_builds_with_its_variants(case: str, tmp_path: Path) -> None:
    built = build_case(CASES / f"{case}.yaml", tmp_path)
    recipe = read_recipe(CASES / f"{case}.yaml")
    assert list(built.variants) == list(recipe.variants)
    profile = load_profile(built.profile)
    assert profile.synthetic and profile.latency.floor_ns == profile.latency.h0_ns == 0
    base = load_policy(built.policy, profile)
    assert base.scheduler.async_scheduling is False
    for config, engine in [(base.engines[pool], recipe.pd[pool]) for pool in base.engines] or [(base.scheduler, recipe.engine)]:
        assert config.num_gpu_blocks == engine["kv_tokens"] // 16 + 1
        assert config.max_num_batched_tokens == engine["budget"]
    source = TraceSource.from_loaded(read_trace(built.trace))
    assert source.total == built.requests
    assert source.left_out == 0
    assert int(source.prompt_tokens.max() + source.output_tokens.max()) <= base.scheduler.max_model_len + 1
    for own in built.variants.values():
        assert own, "a variant that changes nothing"
        if "policy" in own:
            changed = load_policy(own["policy"], load_profile(own.get("profile", built.profile)))
            assert (changed.scheduler, changed.rules) != (base.scheduler, base.rules)
        if "trace" in own:
            assert read_trace(own["trace"]).report.rows_kept == built.requests


def test_the_fleet_of_the_cases() -> None:
    recipe = read_recipe(CASES / "D08.yaml")
    fleet = policy_of(recipe, profile_of(recipe)).rules.fleet
    assert (fleet.replicas, fleet.router) == (8, "round_robin")
    fixed = recipe.variant("route by prefix")
    fleet = policy_of(fixed, profile_of(fixed)).rules.fleet
    assert (fleet.replicas, fleet.router) == (8, "prefix_affinity")


def test_same_recipe_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        build_case(CASES / "D13.yaml", tmp_path / name)
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_the_knobs_of_the_cases() -> None:
    def policy(case: str, variant: str | None = None):  # type: ignore[no-untyped-def]
        recipe = read_recipe(CASES / f"{case}.yaml")
        recipe = recipe if variant is None else recipe.variant(variant)
        return policy_of(recipe, profile_of(recipe))

    assert policy("D01", "long_cap 4096").scheduler.long_prefill_token_threshold == 4096
    assert policy("D02").rules.batching.step == "prefill_first"
    assert policy("D02", "interleave 2/1").rules.batching.turns == (2, 1)
    assert policy("D02", "mixed").rules.batching.step == "decode_first"
    assert policy("D04").scheduler.scheduler_reserve_full_isl is False
    assert policy("D04", "admit isl").scheduler.scheduler_reserve_full_isl is True
    clipped = policy("D05").rules.batching
    assert (clipped.output_reserve, clipped.output_reserve_clip) == ("max_tokens", 4096)
    assert policy("D05").scheduler.num_gpu_blocks == 33377 // 16 + 1
    assert policy("D06").scheduler.policy == "priority"
    assert policy("D06", "seat-level preemption").rules.preemption.to_admit is True
    assert policy("D07").rules.batching.chunk_align == 2048
    assert policy("D09").rules.client.max_in_flight == 100
    assert policy("D12").rules.client.arrival == "slot"
    assert policy("D15").rules.batching.max_partial_prefills == 1
    assert policy("D15", "split allowed").rules.batching.max_partial_prefills is None
    assert policy("C1").scheduler.enable_prefix_caching is False
    assert policy("D08").scheduler.enable_prefix_caching is True


def test_the_pools_of_the_cases() -> None:
    recipe = read_recipe(CASES / "D10.yaml")
    policy = policy_of(recipe, profile_of(recipe))
    assert (policy.rules.pd.prefill, policy.rules.pd.decode) == (5, 2)
    assert policy.rules.pd.prefill_router == "weighted(.62,.32,.05,.005,.005)"
    assert policy.rules.pd.decode_router == "round_robin"
    link = policy.rules.kv_link
    assert (link.bandwidth, link.latency_s, link.concurrent, link.kv_bytes_per_token) == (40.0, 0.005, 0, 131_072)
    assert policy.rules.pd.seed == 1
    assert (policy.engines["prefill"].max_num_seqs, policy.engines["decode"].max_num_seqs) == (64, 256)
    assert policy.scheduler.max_model_len == 400_000
    even = recipe.variant("round robin")
    assert policy_of(even, profile_of(even)).rules.pd.prefill_router == "round_robin"
    assert (even.pd["prefill"]["n"], even.pd["decode"]["route"]) == (5, "round_robin")
    slow = read_recipe(CASES / "D11.yaml")
    assert policy_of(slow, profile_of(slow)).rules.kv_link.concurrent == 1
    fast = slow.variant("49 GB/s")
    assert policy_of(fast, profile_of(fast)).rules.kv_link.bandwidth == 49.0


POOLS = """seed: 1
pd: {prefill: {n: 2, budget: 512, seats: 8, kv_tokens: 9000}, decode: {n: 1, budget: 512, seats: 8, kv_tokens: 9000},
     kv_bytes_per_token: 4096, link: "1e9 B/s"}
engine: {cost: S80}
load: [{cls: c, n: 6, arrive: "poisson(2)", isl: 700, osl: 50}]
"""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("n: 2", "n: 0"), "line 2: pd.prefill.n: 0: expected a whole number of at least 1"),
        (("n: 1", "m: 1"), "line 2: pd.decode.m: unknown key; expected one of n"),
        (('"1e9 B/s"', '"fast"'), "line 3: pd.link: fast: expected a link, as 40e9 B/s + 5 ms"),
        (('"1e9 B/s"', '"1e9 B/s + 5 m"'), "line 3: pd.link: 1e9 B/s + 5 m: expected a link"),
        (('"1e9 B/s"', '"1e9 B/s", link_queue: lifo'), "line 3: pd.link_queue: lifo: expected one of none, fifo per"),
        (("kv_bytes_per_token: 4096, ", ""), "line 2: pd.kv_bytes_per_token: None: expected a whole number of at least 1"),
        (("decode: {n: 1, budget: 512, seats: 8, kv_tokens: 9000}", "decode: 1"), "line 2: pd.decode: expected a mapping"),
        (("pd: {prefill: {n: 2, budget: 512, seats: 8, kv_tokens: 9000}, ", "pd: {"), "line 2: pd.prefill: expected n, budget"),
        (("cost: S80", "cost: S80, step: mixed"), "batching.step"),
        (("kv_tokens: 9000}, d", "kv_tokens: 9000, route: best}, d"), "line 2: pd.prefill.route: "),
        (("kv_tokens: 9000}, d", "kv_tokens: 9000, route: 'weighted(1,2,3)'}, d"), "line 2: pd.prefill.route: "),
        (("seed: 1", "fleet: {replicas: 0}"), "line 1: fleet.replicas: 0: expected a whole number"),
        (("seed: 1", "fleet: {replicas: 2, route: best}"), "line 1: fleet.route: router = best: unknown"),
        (("seed: 1", "fleet: {count: 2}"), "line 1: fleet.count: unknown key; expected one of"),
        (("seed: 1", "variants: {a: {pd: {decode: {k: 1}}}}"), "line 1: variants.a.pd.decode.k: unknown key"),
    ],
)
def test_wrong_pools_are_one_line(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    build_case(written(tmp_path, POOLS), tmp_path / "right")
    assert change[0] in POOLS
    with pytest.raises(TracekitError) as caught:
        build_case(written(tmp_path, POOLS.replace(*change)), tmp_path / "out")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cost_classes() -> None:
    s80 = profile_of(read_recipe(CASES / "D13.yaml")).latency
    assert (s80.a_ns, s80.b_ns, s80.c_ns, s80.d_ns, s80.e_ns) == (7e6, 31250.0, 0.25, 40_000.0, 43.0)
    own = profile_of(read_recipe(CASES / "D03.yaml")).latency
    assert (own.a_ns, own.d_ns, own.e_ns, own.c_ns) == (1e8, 1e5, 60.0, 2.0)
    assert own.b_ns == pytest.approx(1e9 / 900)


def test_the_traffic_of_the_cases() -> None:
    burst = trace_of(read_recipe(CASES / "D07.yaml"))
    assert len(burst) == 100
    assert np.unique(burst.arrival_ns).tolist() == [60 * 10**9 * k for k in range(25)]
    two = trace_of(read_recipe(CASES / "D06.yaml"))
    inter = np.array([cls == "inter" for cls in two.slo_class])
    assert two.arrival_ns[inter][0] == 5 * 10**9
    assert two.priority is not None and set(two.priority[inter].tolist()) == {0}
    bunched = np.diff(trace_of(read_recipe(CASES / "D13.yaml")).arrival_ns)
    assert bunched.std() / bunched.mean() == pytest.approx(3, rel=0.15)
    even = np.diff(trace_of(read_recipe(CASES / "D13.yaml").variant("evenly spaced")).arrival_ns)
    assert set(even.tolist()) == {125_000_000}


RECIPE = """seed: 1
engine: {cost: S80, budget: 8192, seats: 128, kv_tokens: 300000, prefix_cache: lru}
load:
  - {cls: warm, n: 6, arrive: "every(0.2,0)", isl: 700, osl: 50, prefix: {group: "each once", len: 640}}
  - {cls: g, n: 50, arrive: "poisson(3) from 35", isl: "640+u(80,160)", osl: "u(100,300)", prefix: {groups: 6, len: 640}}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    return path


def test_prefix_groups(tmp_path: Path) -> None:
    columns = trace_of(read_recipe(written(tmp_path, RECIPE)))
    assert columns.runs is not None
    heads = [runs[0][1] for runs in columns.runs]
    assert len(set(heads[:6])) == 6
    assert set(heads[6:]) <= set(heads[:6])
    assert all(runs[0][2] >= 40 for runs in columns.runs)
    seen = {runs[0][1] + k for runs in columns.runs for k in range(40)}
    assert len(seen) == 240
    assert columns.arrival_ns[6] == 35 * 10**9


def test_a_bare_off_is_off(tmp_path: Path) -> None:
    recipe = read_recipe(written(tmp_path, RECIPE.replace("prefix_cache: lru", "prefix_cache: off")))
    assert policy_of(recipe, profile_of(recipe)).scheduler.enable_prefix_caching is False


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("seats: 128", "seets: 128"), "line 2: engine.seets: unknown key; expected one of seats"),
        (("seats: 128", "seats: many"), "line 2: engine.seats: many: expected a whole number"),
        (("cost: S80", "cost: S81"), "line 2: engine.cost: S81: expected one of S24"),
        (("poisson(3)", "weekly(3)"), "line 5: load.1.arrive: weekly(3) from 35: not arrivals"),
        (("u(100,300)", "u(300,100)"), "line 5: load.1.osl: u(300,100): not an amount"),
        (("osl: 50", "osl: -3"), "line 4: load.0.osl: -3: below 0"),
        (("n: 6", "n: 0"), "line 4: load.0.n: 0: expected a whole number of at least 1"),
        (("n: 6", "n: 99999999999"), "expected at most"),
        (("len: 640}}\n  - ", "len: x}}\n  - "), "line 4: load.0.prefix"),
        (("seed: 1", "seed: x"), "line 1: seed: x"),
        (("load:", "loads:"), "line 3: loads: unknown key; expected one of load"),
        (("seed: 1", "seed: [1"), "not YAML"),
        (("seed: 1", "client: {max_in_flight: 0}"), "max_in_flight"),
        (("seed: 1", "variants: {a: {engine: {budgets: 1}}}"), "variants.a.engine.budgets"),
        (("seed: 1", "variants: {a: {load: {x: {n: 1}}}}"), "no load of class x"),
        (("seed: 1", "seed: !!python/object/apply:os.system [ls]"), "not YAML"),
    ],
)
def test_a_wrong_recipe_is_one_line(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    assert change[0] in RECIPE
    with pytest.raises(TracekitError) as caught:
        build_case(written(tmp_path, RECIPE.replace(*change)), tmp_path / "out")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_composite_values() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    mixed = parse_amount("80% ln(1500,0.6,200,6000) / 20% u(16000,40000)", "isl").draw(rng, 20_000)
    assert (mixed >= 16000).mean() == pytest.approx(0.2, abs=0.01)
    shifted = parse_amount("6000+u(800,1600)", "isl").draw(rng, 1000)
    assert shifted.min() >= 6800 and shifted.max() <= 7600
    assert parse_arrivals("at(3.5)", "arrive").times(rng, 2).tolist() == [3.5, 3.5]
    assert parse_arrivals("every(100,40)", "arrive").times(rng, 3).tolist() == [40, 140, 240]
    for bad in ("80% u(1,2) / 30% 5", "u(1)", "ln(0,1)", "at(k)", "3+", "1e400", None, True):
        with pytest.raises(UsageError):
            parse_amount(bad, "isl")

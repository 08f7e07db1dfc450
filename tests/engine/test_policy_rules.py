"""Rule tables in policy files and ``--set``: read, written, read back; SGLang's command line."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay_engine.config import ConfigError
from replay_engine.policy import Policy, apply_set, as_vllm_flags, build_policy, load_policy, parse_sglang_command
from replay_engine.profile import load_profile
from replay_engine.rule_tables import RULE_KNOBS, rules_from, rules_to
from replay_engine.rules import Batching, Client, FrontDoorRules, Link, Order, Preemption, Rules, Tier

H100 = load_profile("h100")
SCHEDULER = build_policy(H100).scheduler
SERVE = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct"

FILE = """
name = "night"
[scheduler]
max_num_seqs = 64
[batching]
step = "interleave"
interleave = "2:8"
window_s = "50ms"
[order]
by = "priority"
aging_s = "1.5m"
[[order.reserved]]
priority = 0
seqs = 8
[[order.reserved]]
priority = 1
seqs = 4
blocks = 100
[preemption]
mode = "pause"
to_admit = true
victim = "least_progress"
[front_door]
max_queued_reqs = 256
queue_timeout_s = 20
[front_door.quotas.acme]
quota_tokens_per_s = 5000
[front_door.quotas."b.c"]
quota_concurrent = 4
[client]
max_in_flight = 64
arrival = "slot"
[link]
gb_per_s = 50
latency_s = "200us"
"""

EXPECTED = Rules(
    batching=Batching(step="interleave", interleave="2:8", window_s=0.05),
    order=Order(by="priority", aging_s=90.0, reserved=(Tier(priority=0, seqs=8), Tier(priority=1, seqs=4, blocks=100))),
    preemption=Preemption(mode="pause", to_admit=True, victim="least_progress"),
    front_door=FrontDoorRules(
        max_queued_reqs=256,
        queue_timeout_s=20,
        quotas={"acme": {"quota_tokens_per_s": 5000}, "b.c": {"quota_concurrent": 4}},
    ),
    client=Client(max_in_flight=64, arrival="slot"),
    link=Link(gb_per_s=50, latency_s=0.0002),
)


def test_a_file_with_every_table(tmp_path: Path) -> None:
    path = tmp_path / "night.toml"
    path.write_text(FILE)
    policy = build_policy(H100, path)
    assert policy.name == "night"
    assert policy.scheduler.max_num_seqs == 64
    assert policy.rules == EXPECTED
    back = load_policy(policy.to_toml(), H100)
    assert (back.rules, back.scheduler) == (policy.rules, policy.scheduler)
    assert Policy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy


def test_the_same_by_set_pairs() -> None:
    policy = build_policy(
        H100,
        sets=[
            "max_num_seqs=64",
            "batching.step=interleave",
            "batching.interleave=2:8",
            "batching.window_s=50ms",
            "order.by=priority",
            "order.aging_s=90s",
            "order.reserved=priority=0 seqs=8; priority=1, seqs=4, blocks=100",
            "preemption.mode=pause",
            "preemption.to_admit=true",
            "preemption.victim=least_progress",
            "front_door.max_queued_reqs=256",
            "front_door.queue_timeout_s=20",
            "front_door.quotas.acme.quota_tokens_per_s=5000",
            "front_door.quotas.b.c.quota_concurrent=4",
            "client.max_in_flight=64",
            "client.arrival=slot",
            "link.gb_per_s=50",
            "link.latency_s=0.2ms",
        ],
    )
    assert policy.rules == EXPECTED


def test_set_pairs_go_over_the_file_and_off_is_off() -> None:
    policy = load_policy("[order]\nby = 'shortest_first'\naging_s = 5\n", H100)
    changed = apply_set(policy, ["order.aging_s=none", "order.size=total"], H100)
    assert changed.rules.order == Order(by="shortest_first", size="total")
    again = apply_set(changed, ["max_num_seqs=3"], H100)
    assert (again.rules, again.scheduler.max_num_seqs) == (changed.rules, 3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[batching]\n\nstp = 'mixed'\n", r"p\.toml, line 3: batching\.stp: unknown knob; did you mean step"),
        ("[bathing]\nsize = 3\n", r"p\.toml, line 1: bathing: unknown; did you mean batching"),
        ("aging_s = 3\n", r"aging_s: unknown"),
        ("[batching]\nsize = 0\n", r"p\.toml, line 2: batching\.size = 0: expected a number of at least 1"),
        ("[batching]\nsize = true\n", r"p\.toml, line 2: batching\.size = True: expected a whole number"),
        ("[batching]\nmode = 3\n", r"p\.toml, line 2: batching\.mode = 3: expected one of continuous, dynamic, static"),
        ("[link]\ngb_per_s = inf\n", r"p\.toml, line 2: link\.gb_per_s = inf: expected a number"),
        ("[preemption]\nto_admit = 'maybe'\n", r"line 2: preemption\.to_admit = maybe: expected true or false"),
        ("[order]\nreserved = 3\n", r"line 2: order\.reserved = 3: expected tables \[\[order\.reserved\]\]"),
        ("[[order.reserved]]\nseqs = 3\n", r"order\.reserved: a tier without priority"),
        ("[[order.reserved]]\nprio = 3\n", r"p\.toml, line 2: order\.reserved\.prio: unknown knob; did you mean priority"),
        ("[front_door.quotas]\nacme = 3\n", r"front_door\.quotas = .*expected tables \[front_door\.quotas\.TENANT\]"),
        ("[front_door.quotas.acme]\nrate = 3\n", r"p\.toml, line 2: front_door\.quotas\.acme\.rate: unknown knob"),
        ("[order]\naging_s = 0\n", r"p\.toml, line 2: order\.aging_s = 0: expected seconds above 0"),
    ],
)
def test_wrong_rules_are_refused_with_the_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason) as caught:
        load_policy(path, H100)
    assert "\n" not in str(caught.value)


NUMBERS = {"int": st.integers(1, 10_000), "float": st.floats(0.001, 0.999)}
TIERS = st.lists(st.builds(Tier, priority=st.integers(-5, 5), seqs=st.integers(0, 9), blocks=st.integers(0, 99)), max_size=3)
QUOTA = st.dictionaries(st.sampled_from(["quota_tokens_per_s", "quota_concurrent"]), st.integers(0, 99), max_size=2)
NAMED: dict[str, st.SearchStrategy[Any]] = {
    "interleave": st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda pair: f"{pair[0]}:{pair[1]}"),
    "reserved": TIERS.map(tuple),
    "quotas": st.dictionaries(st.text(min_size=1, max_size=6), QUOTA, max_size=3),
    "by": st.sampled_from(["engine", "fair", "deadline", "plugin:mine"]),
    "victim": st.sampled_from(["engine", "most_kv", "plugin:mine"]),
    "admit": st.sampled_from(["engine", "plugin:mine"]),
    "prefill_router": st.sampled_from(["round_robin", "prefix_affinity"]),
    "decode_router": st.sampled_from(["power_of_two", "least_tokens"]),
    "router": st.sampled_from(["round_robin", "prefix_affinity"]),
    "replicas": st.integers(1, 1024),
    "fail": st.just(""),
    "slow": st.just(""),
}


def values(table: str, knob: str, kind: str) -> st.SearchStrategy[Any]:
    if knob in NAMED:
        return NAMED[knob]
    if "Literal" in kind:
        return st.sampled_from([part.strip(" '\"") for part in kind.partition("[")[2].partition("]")[0].split(",")])
    if kind == "bool":
        return st.booleans()
    plain = NUMBERS[kind.split(" ")[0]]
    return st.none() | plain if "None" in kind else plain


@st.composite
def all_rules(draw: st.DrawFn) -> Rules:
    tables: dict[str, dict[str, Any]] = {}
    for table, knobs in RULE_KNOBS.items():
        picked = draw(st.lists(st.sampled_from(sorted(knobs)), unique=True, max_size=5))
        if table == "pd" and {"prefill", "decode"} & set(picked):
            picked = sorted({*picked, "prefill", "decode"})  # neither pool without the other
        tables[table] = {knob: draw(values(table, knob, knobs[knob])) for knob in picked}
    return rules_from(tables)


@given(all_rules())
def test_every_rule_reads_back_from_json_and_toml(rules: Rules) -> None:
    assert rules_from(json.loads(json.dumps(rules_to(rules)))) == rules
    assert rules_from(rules_to(rules, changed_only=True)) == rules
    policy = Policy(name="drawn", scheduler=SCHEDULER, rules=rules)
    document = tomllib.loads(policy.to_toml())
    assert rules_from({table: document[table] for table in RULE_KNOBS if table in document}) == rules
    assert Policy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy


def test_a_policy_recorded_without_rules_has_the_defaults() -> None:
    document = build_policy(H100).to_dict()
    del document["rules"]
    assert Policy.from_dict(document).rules == Rules()


def test_queue_bounds_of_a_vllm_command() -> None:
    policy = build_policy(H100, "vllm serve m --max-num-queued-reqs 64 --max-num-queued-tokens=100k")
    assert policy.rules.front_door == FrontDoorRules(max_queued_reqs=64, max_queued_tokens=100_000)
    assert "--max-num-queued-reqs 64 --max-num-queued-tokens 100000" in as_vllm_flags(policy)
    assert as_vllm_flags(policy, policy) == ""


def test_sglang_by_default() -> None:
    policy = build_policy(H100, SERVE)
    assert policy.rules.batching == Batching(
        step="prefill_first",
        max_partial_prefills=1,
        output_reserve="max_tokens",
        output_reserve_clip=4096,
        output_reserve_ratio=0.7,
    )
    assert policy.rules.order == Order()
    assert policy.rules.preemption == Preemption(victim="least_progress")
    assert policy.scheduler.max_num_batched_tokens == 8192
    assert any("count prefill only" in note for note in policy.notes)
    assert not any("serves" in note for note in policy.notes)


def test_sglang_flags() -> None:
    policy = parse_sglang_command(
        f"{SERVE} --chunked-prefill-size 4096 --max-running-requests 128 --enable-priority-scheduling --page-size 32"
        " --schedule-conservativeness 0.5 --disable-radix-cache --disable-overlap-schedule --max-total-tokens 320000"
        " --context-length 32768 --max-queued-requests 99 --tp 2 --log-level info",
        H100,
    )
    scheduler, rules = policy.scheduler, policy.rules
    assert (scheduler.max_num_batched_tokens, scheduler.max_num_seqs, scheduler.max_model_len) == (4096, 128, 32768)
    assert (scheduler.block_size, scheduler.num_gpu_blocks) == (32, 10_001)
    assert (scheduler.enable_prefix_caching, scheduler.async_scheduling) == (False, False)
    assert rules.order == Order(by="priority", larger_first=True)
    assert rules.preemption.to_admit
    assert rules.batching.output_reserve_ratio == pytest.approx(0.35)
    assert rules.batching.chunk_align == 32
    assert rules.front_door.max_queued_reqs == 99
    for said in ("larger priorities come first", "--log-level is ignored", "differ by more than 10", "tensor parallel 2"):
        assert any(said in note for note in policy.notes), said
    kept = apply_set(policy, ["order.larger_first=false"], H100)
    assert [note for note in policy.notes if note.startswith("SGLang")] == [n for n in kept.notes if n.startswith("SGLang")]


def test_sglang_memory_mixed_chunks_and_low_first() -> None:
    share = build_policy(H100, f"{SERVE} --mem-fraction-static 0.8")
    more = build_policy(H100, f"{SERVE} --mem-fraction-static 0.85")
    assert H100.hardware is not None
    assert more.scheduler.num_gpu_blocks - share.scheduler.num_gpu_blocks == pytest.approx(
        0.05 * H100.hardware.memory_bytes / (16 * 131072), abs=2
    )
    mixed = build_policy(H100, f"{SERVE} --enable-mixed-chunk --prefill-decode-interval 4")
    assert (mixed.rules.batching.step, mixed.scheduler.prefill_schedule_interval) == ("decode_first", 4)
    low = build_policy(H100, f"{SERVE} --schedule-policy priority --schedule-low-priority-values-first")
    assert low.rules.order == Order(by="priority")
    whole = build_policy(H100, f"{SERVE} --chunked-prefill-size -1")
    assert not whole.scheduler.enable_chunked_prefill


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--schedule-policy lpm", r"--schedule-policy = lpm: longest prefix match sorts the whole queue"),
        ("--schedule-policy lofi", r"--schedule-policy = lofi: "),
        ("--chunked-prefill-size lots", r"--chunked-prefill-size = lots: expected a whole number"),
        ("--page-size", r"--page-size: no value"),
        ("--mem-fraction-static 1.5", r"expected a share of the memory"),
        ("--schedule-conservativeness -1", r"expected a number of at least 0"),
        ("--page-size 0", r"batching\.chunk_align = 0: expected a number of at least 1"),
    ],
)
def test_wrong_sglang_flags_are_refused(flags: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        build_policy(H100, f"{SERVE} {flags}")
    assert "\n" not in str(caught.value)


def test_every_rule_table_is_known_to_the_file_and_to_rules() -> None:
    assert list(RULE_KNOBS) == [each.name for each in fields(Rules)][: len(RULE_KNOBS)]

"""What a capacity question may change besides the policy's knobs: the hardware, how many cards share the model, the precision of
KV and the memory for it, how many replicas are left, the traffic itself, the SLO and the price. What it makes of a profile is
arithmetic, marked as an estimate; nothing of it was measured.

``tensor_parallel`` and ``hardware`` go by the roofline (``replay_engine.calibration.roofline``): with the same card, the ratio of
both rooflines scales the profile's own costs; another card has the roofline's costs. ``kv_cache_dtype=fp8`` halves KV of 16 bits,
and with it what a decode reads. ``lose=N``: the fleet without N of its replicas. ``kv_scale=X``: X times the KV blocks that it
would have; ``kv_memory=NGiB``: as many as fit into so much. ``rate_scale``, ``isl_scale``, ``osl_scale``, ``burst_scale`` are the
options of ``capacity`` and come on top of them; ``mix=chat:2,batch:0.5``: so many times as many requests of a class or tenant;
``slo=ttft=1s,tpot=50ms`` holds for everybody; ``price_per_hour=X`` of a card.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace

from replay_engine.calibration.accelerators import Accelerator, find_accelerator
from replay_engine.calibration.model_config import ReadModel
from replay_engine.calibration.roofline import Roofline, roofline
from replay_engine.config import ConfigError
from replay_engine.policy import Policy, apply_set
from replay_engine.profile import Latency, ModelFacts, Profile, load_profile
from tracekit.errors import UsageError, shown
from tracekit.metrics import SloTable, parse_slo
from tracekit.traces.mix import parse_mix
from tuner.plan import TunePlan

__all__ = ["WhatIf", "resolve_what_if", "with_fp8_kv", "with_hardware", "with_tensor_parallel"]

TRAFFIC = ("rate_scale", "isl_scale", "osl_scale", "burst_scale")
OURS = ("profile", "hardware", "tensor_parallel", "kv_cache_dtype", "lose", "kv_scale", "kv_memory", "mix", "slo",
        "price_per_hour", *TRAFFIC)  # fmt: skip
GIB = 1 << 30


@dataclass(slots=True, kw_only=True)
class WhatIf:
    """The policy and the profile in question; ``notes``: what a person must know of them; ``guessed``: how the profile was made
    up, where it is arithmetic. ``traffic``: factors by option; ``mix``: of classes and tenants. ``slo``, ``price``: ``None``
    for those of the question."""

    policy: Policy
    profile: Profile
    notes: list[str] = field(default_factory=list)
    guessed: str | None = None
    traffic: dict[str, float] = field(default_factory=dict)
    mix: str | None = None
    slo: SloTable | None = None
    price: float | None = None


def resolve_what_if(plan: TunePlan, text: str) -> WhatIf:
    """``knob=value`` settings and the words above, separated by spaces. Errors: ``UsageError`` with the reason."""
    pairs = [pair.partition("=") for pair in text.split()]
    own = {name: value for name, _, value in pairs if name in OURS}
    sets = [f"{name}={value}" for name, _, value in pairs if name not in OURS]
    try:
        found = WhatIf(policy=plan.policy, profile=_profile(plan.profile, own))
        found.policy = apply_set(plan.policy, [*sets, *_survivors(plan.policy, sets, own)], found.profile)
        found.policy = _with_kv(found.policy, found.profile, own)
        found.traffic = {name: _number(name, own[name]) for name in TRAFFIC if name in own}
        if "mix" in own:
            parse_mix(own["mix"])
            found.mix = own["mix"]
        found.price = _number("price_per_hour", own["price_per_hour"]) if "price_per_hour" in own else None
        found.slo = SloTable.from_policy(found.policy.slo, parse_slo(own["slo"])) if "slo" in own else None
    except ConfigError as error:
        raise UsageError(f"--what-if '{shown(text)}': {error}") from None
    changed = [name for name in ("hardware", "tensor_parallel", "kv_cache_dtype") if name in own]
    if changed:
        found.guessed = f"{', '.join(changed)} by arithmetic on {plan.profile.name}, nothing of it was measured"
        found.notes.append(f"ESTIMATE: {found.guessed}")
    if (changed or "profile" in own) and not found.policy.estimated:
        found.notes.append("num_gpu_blocks is given and stays as it is: left out, it would follow from the memory")
    return found


def _profile(profile: Profile, own: dict[str, str]) -> Profile:
    if "profile" in own:
        profile = load_profile(own["profile"])
    cards = _whole("tensor_parallel", own["tensor_parallel"]) if "tensor_parallel" in own else None
    if "hardware" in own:
        profile = with_hardware(profile, own["hardware"], cards)
    elif cards is not None:
        profile = with_tensor_parallel(profile, cards)
    if "kv_cache_dtype" in own:
        if own["kv_cache_dtype"] != "fp8":
            raise ConfigError(f"kv_cache_dtype={shown(own['kv_cache_dtype'])}: expected fp8")
        profile = with_fp8_kv(profile)
    return profile


def _survivors(policy: Policy, sets: list[str], own: dict[str, str]) -> list[str]:
    if "lose" not in own:
        return []
    given = [pair.partition("=")[2] for pair in sets if pair.startswith("fleet.replicas=")]
    replicas = _whole("fleet.replicas", given[-1]) if given else policy.rules.fleet.replicas
    lost = _whole("lose", own["lose"])
    if policy.rules.pd.prefill or lost >= replicas:
        raise ConfigError(f"lose={lost}: {replicas} replica{'s' * (replicas > 1)} of one kind; expected fewer than there are")
    return [f"fleet.replicas={replicas - lost}"]


def _with_kv(policy: Policy, profile: Profile, own: dict[str, str]) -> Policy:
    """The policy with more or fewer KV blocks than it would have."""
    if "kv_scale" not in own and "kv_memory" not in own:
        return policy
    if "kv_scale" in own and "kv_memory" in own:
        raise ConfigError("kv_scale and kv_memory: two ways to say the same thing; expected one of them")
    if policy.rules.pd.prefill:
        raise ConfigError("kv_scale, kv_memory: separate pools have KV of their own; expected --set of their num_gpu_blocks")
    scheduler = policy.scheduler
    if "kv_scale" in own:
        blocks = round(scheduler.num_gpu_blocks * _number("kv_scale", own["kv_scale"]))
    else:
        size = _number("kv_memory", own["kv_memory"].removesuffix("GiB")) * GIB
        blocks = int(size / (_model(profile).facts.kv_bytes_per_token * scheduler.block_size))
    return apply_set(policy, [f"num_gpu_blocks={max(blocks, 1)}"], profile)


def _number(name: str, text: str) -> float:
    """Above 0; bursts may also be scaled by 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    lowest = 0.0 if name == "burst_scale" else math.nextafter(0.0, 1.0)
    if not (math.isfinite(value) and value >= lowest):
        raise ConfigError(f"{name}={shown(text)}: expected a number {'from' if lowest == 0.0 else 'above'} 0")
    return value


def _whole(name: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{name}={shown(text)}: expected a whole number above 0")
    return int(text)


def with_tensor_parallel(profile: Profile, cards: int) -> Profile:
    """The profile with its model split over ``cards`` cards: its costs by the ratio of the rooflines. ``ConfigError``: no
    facts, a card that is not known, or heads that do not divide."""
    model, card = _model(profile), _card(profile)
    assert profile.hardware is not None
    before, after = roofline(model, card, profile.hardware.tensor_parallel), roofline(model, card, cards)
    scaled = {}
    for name, cost in asdict(profile.latency).items():
        old, new = getattr(before.latency, name), getattr(after.latency, name)
        scaled[name] = cost * new / old if old else cost
    hardware = replace(profile.hardware, count=cards, tensor_parallel=cards)
    return replace(profile, name=f"{profile.name} x tp{cards}", latency=Latency(**scaled), hardware=hardware,
                   provenance=_estimated(profile, f"tensor parallel {cards}"))  # fmt: skip


def with_hardware(profile: Profile, name: str, cards: int | None) -> Profile:
    """The profile's model on another card, by the roofline alone. ``ConfigError``: a card that is not known, or a model that does
    not fit."""
    model, card = _model(profile), find_accelerator(name)
    assert profile.hardware is not None
    found: Roofline = roofline(model, card, cards or profile.hardware.tensor_parallel)
    return replace(profile, name=f"{model.facts.name} on {card.name}", latency=found.latency, hardware=found.hardware, fit={},
                   provenance=_estimated(profile, card.name))  # fmt: skip


def with_fp8_kv(profile: Profile) -> Profile:
    """The profile with KV of 8 bits. ``ConfigError``: no facts of the model, or a KV that is of 8 bits already."""
    facts = _model(profile).facts
    elements = 2 * facts.layers * facts.kv_heads * facts.head_dim
    if facts.kv_bytes_per_token <= elements:
        raise ConfigError("kv_cache_dtype=fp8: the profile's KV is of 8 bits already")
    share = elements / facts.kv_bytes_per_token
    latency = replace(profile.latency, e_ns=profile.latency.e_ns * share, s_ns=profile.latency.s_ns * share)  # reads both
    return replace(profile, name=f"{profile.name} x kv fp8", latency=latency, model=replace(facts, kv_bytes_per_token=elements),
                   provenance=_estimated(profile, "KV of 8 bits"))  # fmt: skip


def _model(profile: Profile) -> ReadModel:
    facts: ModelFacts | None = profile.model
    if facts is None or profile.hardware is None:
        raise ConfigError(f"profile {profile.name} does not say its model and hardware; expected one that does, as h100")
    kind = "fp8" if facts.weight_bytes < 1.5 * facts.parameters else "bfloat16"
    return ReadModel(facts=facts, dtype=kind, kv_dtype="bfloat16", heads=facts.hidden_size // facts.head_dim, weights="profile")


def _card(profile: Profile) -> Accelerator:
    assert profile.hardware is not None
    return find_accelerator(profile.hardware.name)


def _estimated(profile: Profile, what: str) -> dict[str, str]:
    return {**profile.provenance, "kind": f"estimate: {profile.name} with {what}, by arithmetic"}

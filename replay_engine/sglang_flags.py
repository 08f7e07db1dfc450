"""SGLang's command line as the nearest policy (SGLang 0.5.23's names), and a note wherever the meaning is not the same.

The loop is another: prefill passes come before decode passes, one prompt at a time may be partly prefilled, and admission counts
the output still expected. That is ``step = prefill_first``, ``max_partial_prefills = 1`` and ``output_reserve = max_tokens``.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

from replay_engine.config import ConfigError
from replay_engine.profile import HardwareFacts, Profile
from replay_engine.rule_tables import Tables
from replay_engine.settings_file import nearest, one_line
from replay_engine.vllm_flags import typed_value

__all__ = ["NAMES", "SglangCommand", "looks_like_sglang", "split_sglang"]

GIB = 2**30
MAX_PREFILL_TOKENS = 16384
OUTPUT_CLIP = 4096
"""Most output tokens of a request that admission counts."""
FIRST_RATIO = 0.7
"""Share of the expected output counted at start, at conservativeness 1."""

_KINDS = {
    "chunked-prefill-size": "int",
    "max-prefill-tokens": "int",
    "max-running-requests": "int",
    "max-queued-requests": "int",
    "max-total-tokens": "int",
    "page-size": "int",
    "context-length": "int",
    "tp-size": "int",
    "prefill-decode-interval": "int",
    "priority-scheduling-preemption-threshold": "int",
    "mem-fraction-static": "float",
    "schedule-conservativeness": "float",
    "schedule-policy": "str",
    "model-path": "str",
}
_SWITCHES = frozenset(
    {
        "enable-mixed-chunk",
        "enable-priority-scheduling",
        "schedule-low-priority-values-first",
        "disable-radix-cache",
        "disable-overlap-schedule",
        "trust-remote-code",
        "enable-metrics",
        "disable-cuda-graph",
        "enable-torch-compile",
        "skip-tokenizer-init",
    }
)
_OURS = frozenset(_KINDS) | {
    name
    for name in _SWITCHES
    if name.startswith(("enable-mixed", "enable-priority", "schedule-", "disable-radix", "disable-overlap"))
}
_SHORT = {"model": "model-path", "tp": "tp-size", "tensor-parallel-size": "tp-size"}
_NO_ORDER = {
    "lpm": "longest prefix match sorts the whole queue by cache hits in every iteration, which no static key does",
    "dfs-weight": "it sorts by the shape of the prefix tree, which no static key does",
    "lof": "longest output first has no counterpart here",
    "random": "a replay takes the same decisions every time",
    "hrrn": "the response ratio changes with time for each request differently, which no static key does",
    "routing-key": "requests of a trace have no routing key",
}


NAMES: tuple[tuple[str, str, str], ...] = (
    (
        "--chunked-prefill-size",
        "`max_num_batched_tokens`; -1: `enable_chunked_prefill = false`",
        "no: theirs counts prefill only",
    ),
    ("--max-prefill-tokens", "`max_num_batched_tokens`, the smaller of the two", "no: as above"),
    ("--max-running-requests", "`max_num_seqs`", "nearly; theirs defaults by memory"),
    ("(always)", "`batching.max_partial_prefills = 1`", "yes"),
    ("(default loop)", "`batching.step = prefill_first`", "yes"),
    ("--enable-mixed-chunk", "`batching.step = decode_first`", "nearly: decodes are charged to the prefill budget"),
    ("--schedule-policy fcfs", "`order.by = fcfs`", "yes"),
    (
        "--schedule-policy shortest-prefill-first",
        "`order.by = shortest_first`, `size = prompt`",
        "nearly: theirs leaves cached tokens out",
    ),
    ("--schedule-policy lpm, dfs-weight, lof, random, hrrn, routing-key", "refused", "no counterpart; the error says why"),
    (
        "--enable-priority-scheduling",
        "`order.by = priority`, `larger_first = true`, `preemption.to_admit = true`",
        "nearly: no threshold",
    ),
    ("--schedule-low-priority-values-first", "`order.larger_first = false`", "yes"),
    ("--schedule-conservativeness", "`batching.output_reserve = max_tokens`, clip 4096, ratio 0.7 x it", "nearly: theirs decays"),
    ("(retraction)", "`preemption.victim = least_progress`", "nearly: ties differ"),
    ("--page-size", "`block_size`, `batching.chunk_align`", "yes; theirs is mostly 1, here 16 if not given"),
    ("--mem-fraction-static", "`kv_cache_memory_bytes` = share - weights", "no: vLLM's share holds activations too"),
    ("--max-total-tokens", "`num_gpu_blocks`", "yes"),
    ("--context-length", "`max_model_len`", "yes"),
    ("--disable-radix-cache", "`enable_prefix_caching = false`", "yes; otherwise granularity differs"),
    ("--disable-overlap-schedule", "`async_scheduling = false`", "yes in effect"),
    ("--prefill-decode-interval", "`prefill_schedule_interval`, with mixed chunks only", "similar"),
    ("--max-queued-requests", "`front_door.max_queued_reqs`", "yes"),
)
"""SGLang's flags, what they become, and whether that means the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangCommand:
    """What the line says in our terms: scheduler settings, rule tables, the model, and where it is not the same."""

    settings: dict[str, Any]
    rules: Tables
    model: str | None
    tensor_parallel: int | None
    notes: tuple[str, ...]


def looks_like_sglang(text: str) -> bool:
    """Whether ``text`` is an SGLang command line rather than a file's name or TOML."""
    return re.search(r"\bsglang\.launch_server\b|\bsglang\s+serve\b", text) is not None or text.strip().split(" ")[0] == "sglang"


def split_sglang(text: str, profile: Profile) -> SglangCommand:
    """Read ``python -m sglang.launch_server --model-path M --flag value ...`` or ``sglang --flag value ...``.

    ``ConfigError`` for a wrong value and for an order that has no counterpart; other flags are noted as ignored.
    """
    flags, notes = _flags(text)
    rules: Tables = {"batching": {"step": "prefill_first", "max_partial_prefills": 1}, "preemption": {"victim": "least_progress"}}
    settings: dict[str, Any] = {}
    _budgets(flags, profile, settings, rules, notes)
    _memory(flags, profile, settings, rules, notes)
    _order(flags, rules, notes)
    _reserve(flags, rules, notes)
    if "enable-mixed-chunk" in flags:
        rules["batching"]["step"] = "decode_first"
    settings["enable_prefix_caching"] = "disable-radix-cache" not in flags
    settings["async_scheduling"] = "disable-overlap-schedule" not in flags
    if (interval := flags.get("prefill-decode-interval")) is not None:
        if "enable-mixed-chunk" in flags:
            settings["prefill_schedule_interval"] = interval
        else:
            notes.append("SGLang: --prefill-decode-interval is left out: prefill passes stand apart from decode passes already")
    if (queued := flags.get("max-queued-requests")) is not None:
        rules["front_door"] = {"max_queued_reqs": queued}
    notes.append("SGLang: who is retracted has the fewest output tokens; ties go to the latest here, to the longest prompt there")
    return SglangCommand(
        settings=settings, rules=rules, model=flags.get("model-path"), tensor_parallel=flags.get("tp-size"), notes=tuple(notes)
    )


def _flags(text: str) -> tuple[dict[str, Any], list[str]]:
    try:
        words = shlex.split(text.replace("\\\r\n", " ").replace("\\\n", " "))
    except ValueError as error:
        raise ConfigError(f"sglang command: {one_line(error)}; expected balanced quotes") from None
    found: dict[str, Any] = {}
    notes: list[str] = []
    at = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    while at < len(words):
        name, glued, value = words[at].partition("=")
        at += 1
        name = name.lstrip("-").replace("_", "-")
        name = _SHORT.get(name, name)
        if not glued and name not in _SWITCHES and at < len(words) and (name in _KINDS or not words[at].startswith("--")):
            value, glued = words[at], "="
            at += 1
        if name not in _OURS:
            close = nearest(name, _OURS)
            hint = f"; {close}" if close.startswith("did you mean") and len(name) > 6 else ""
            notes.append(f"SGLang: --{name} is ignored: no scheduling decision here depends on it{hint}")
        elif name in _KINDS and not glued:
            raise ConfigError(f"--{name}: no value; expected --{name} VALUE")
        else:
            found[name] = typed_value(f"--{name}", _KINDS[name], value) if name in _KINDS else True
    return found, notes


def _budgets(flags: dict[str, Any], profile: Profile, settings: dict[str, Any], rules: Tables, notes: list[str]) -> None:
    chunk, whole = flags.get("chunked-prefill-size"), flags.get("max-prefill-tokens", MAX_PREFILL_TOKENS)
    if (seats := flags.get("max-running-requests")) is not None:
        settings["max_num_seqs"] = seats
    else:
        notes.append("SGLang: --max-running-requests is derived from memory there; here it is vLLM's default")
    if (length := flags.get("context-length")) is not None:
        settings["max_model_len"] = length
    if chunk is not None and chunk < 0:
        settings["enable_chunked_prefill"] = False
        del rules["batching"]["max_partial_prefills"]
        notes.append("SGLang: --chunked-prefill-size -1: whole prompts, and a token budget that the longest one fits")
        return
    chunk = _chunk(profile.hardware) if chunk is None else chunk
    budget = min(chunk, whole)
    if seats is not None and seats > budget:
        notes.append(
            f"SGLang: max_num_batched_tokens = {seats}, not {budget}: vLLM's budget also covers a token of each sequence"
        )
        budget = seats
    settings["max_num_batched_tokens"] = budget
    if seats is None:
        settings["max_num_seqs"] = min(budget, 1024)
    notes.append(
        f"SGLang: max_num_batched_tokens = {budget} from --chunked-prefill-size and --max-prefill-tokens,"
        " which count prefill only; the budget here counts decodes too"
    )


def _chunk(hardware: HardwareFacts | None) -> int:
    """SGLang's default prefill chunk by memory of one card."""
    gib = 80.0 if hardware is None else hardware.memory_bytes / GIB
    return 2048 if gib < 20 else 4096 if gib < 60 else 8192 if gib < 160 else 16384


def _memory(flags: dict[str, Any], profile: Profile, settings: dict[str, Any], rules: Tables, notes: list[str]) -> None:
    page = flags.get("page-size")
    if page is not None:
        settings["block_size"] = page
        rules["batching"]["chunk_align"] = page
    else:
        notes.append("SGLang: --page-size is 1 for most backends; here KV and prefix hits are counted in blocks of 16 tokens")
    size = settings.get("block_size", 16)
    if (tokens := flags.get("max-total-tokens")) is not None:
        settings["num_gpu_blocks"] = tokens // max(size, 1) + 1  # one is the null block
    elif (share := flags.get("mem-fraction-static")) is not None:
        if not 0 < share < 1:
            raise ConfigError(f"--mem-fraction-static = {share:g}: expected a share of the memory, 0 to 1")
        model, hardware = profile.model, profile.hardware
        if model is None or hardware is None:
            notes.append("SGLang: --mem-fraction-static is ignored: the profile has no model or hardware")
            return
        free = int(share * hardware.memory_bytes - model.weight_bytes / hardware.tensor_parallel)
        if free <= 0:
            raise ConfigError(f"--mem-fraction-static = {share:g}: {model.name}'s weights fill it; expected a larger share")
        settings["kv_cache_memory_bytes"] = free
        notes.append("SGLang: --mem-fraction-static covers weights and KV; vLLM's share covers activations too")


def _order(flags: dict[str, Any], rules: Tables, notes: list[str]) -> None:
    policy = flags.get("schedule-policy", "fcfs")
    if policy in _NO_ORDER:
        raise ConfigError(f"--schedule-policy = {policy}: {_NO_ORDER[policy]}; expected fcfs, shortest-prefill-first or priority")
    if policy not in ("fcfs", "priority", "shortest-prefill-first"):
        raise ConfigError(
            f"--schedule-policy = {one_line(policy)}: {nearest(policy, ('fcfs', 'priority', 'shortest-prefill-first'))}"
        )
    if policy == "shortest-prefill-first":
        rules["order"] = {"by": "shortest_first", "size": "prompt"}
        notes.append(
            "SGLang: --schedule-policy shortest-prefill-first looks at the uncached prompt, order.size = prompt at all of it"
        )
    if policy == "priority" or "enable-priority-scheduling" in flags:
        low_first = "schedule-low-priority-values-first" in flags
        rules["order"] = {"by": "priority", "larger_first": not low_first}
        rules["preemption"]["to_admit"] = True
        threshold = flags.get("priority-scheduling-preemption-threshold", 10)
        notes.append(
            f"SGLang: it preempts for admission when priorities differ by more than {threshold}; here whenever they differ"
        )
        if not low_first:
            notes.append("SGLang: larger priorities come first, as there by default (order.larger_first = true)")


def _reserve(flags: dict[str, Any], rules: Tables, notes: list[str]) -> None:
    conservativeness = flags.get("schedule-conservativeness", 1.0)
    if not conservativeness >= 0:
        raise ConfigError(f"--schedule-conservativeness = {conservativeness:g}: expected a number of at least 0")
    ratio = min(FIRST_RATIO * conservativeness, 1.0)
    rules["batching"] |= {"output_reserve": "max_tokens", "output_reserve_clip": OUTPUT_CLIP, "output_reserve_ratio": ratio}
    notes.append(f"SGLang: output_reserve_ratio = {ratio:g} stays; there it falls to a seventh until something is retracted")

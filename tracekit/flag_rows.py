"""What each of our knobs is called by vLLM, SGLang and TensorRT-LLM, from which version on, and where it has no name.

Sources: vLLM 0.33.0's scheduler run beside 0.30, 0.24 and 0.20, SGLang 0.5.23, TensorRT-LLM's configuration reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CHECKED", "ENGINES", "ROWS", "Engine", "FlagRow"]

Engine = Literal["vllm", "sglang", "tensorrt_llm"]
ENGINES: tuple[Engine, ...] = ("vllm", "sglang", "tensorrt_llm")
CHECKED: dict[Engine, tuple[str, str]] = {
    "vllm": ("vLLM", "0.33.0"), "sglang": ("SGLang", "0.5.23"), "tensorrt_llm": ("TensorRT-LLM", ""),
}  # fmt: skip
"""Each engine's name, and the newest version of it that the rows were held against."""


@dataclass(frozen=True, slots=True)
class FlagRow:
    """``flag`` with ``{value}`` (or ``{tokens}``, ``{conservativeness}``: derived from it); empty: the engine has none, and
    ``why`` says so. ``values``: only for these; ``since``: first version of the engine that knows it. ``already``: it does so
    without being told, so that nothing is lacking."""

    knob: str
    engine: Engine
    flag: str = ""
    values: tuple[str, ...] = ()
    since: str = ""
    why: str = ""
    already: bool = False


def _all(
    knob: str, vllm: str, sglang: str, tensorrt: str = "", *, since: str = "", why: str = "no such knob",
    neutral: tuple[str, ...] = (),
) -> list[FlagRow]:  # fmt: skip
    """``neutral``: values under which a knob does nothing, so that an engine without it is as good."""
    flags: tuple[tuple[Engine, str], ...] = (("vllm", vllm), ("sglang", sglang), ("tensorrt_llm", tensorrt))
    lacking = [FlagRow(knob, engine, "", neutral, why=why, already=True) for engine, flag in flags if neutral and not flag]
    return lacking + [
        FlagRow(knob, engine, flag, since=since if engine == "vllm" else "", why="" if flag else why) for engine, flag in flags
    ]


def _switch(
    knob: str, on: dict[Engine, str], off: dict[Engine, str], *, since: str = "", why: str = "", holds: str = "true"
) -> list[FlagRow]:
    """``holds``: what an engine without a flag does."""
    rows = []
    for engine in ENGINES:
        for value, flags in (("true", on), ("false", off)):
            flag = flags.get(engine, "")
            rows.append(
                FlagRow(knob, engine, flag, (value,), since if engine == "vllm" else "", "" if flag else why or "no such switch",
                        already=not flag and value == holds)
            )  # fmt: skip
    return rows


def _nowhere(knob: str, why: str, **values: tuple[str, ...]) -> list[FlagRow]:
    return [FlagRow(knob, engine, values=values.get("values", ()), why=why) for engine in ENGINES]


_SEATS_PREEMPT = "a waiting request displaces a running one only where KV blocks are short, not where seats are"
_MIXES = "it mixes prefill and decode in every iteration, decodes first; nothing is to be set"

ROWS: tuple[FlagRow, ...] = (
    *_all(
        "max_num_batched_tokens", "--max-num-batched-tokens {value}", "--chunked-prefill-size {value}",
        "max_num_tokens: {value}",
    ),
    *_all("max_num_scheduled_tokens", "--max-num-scheduled-tokens {value}", "", ""),
    *_all("max_num_seqs", "--max-num-seqs {value}", "--max-running-requests {value}", "max_batch_size: {value}"),
    *_all("max_num_active_seqs", "--max-num-active-seqs {value}", "", "", since="0.33.0"),
    *_all("max_model_len", "--max-model-len {value}", "--context-length {value}", "max_seq_len: {value}"),
    *_all(
        "num_gpu_blocks", "--num-gpu-blocks-override {value}", "--max-total-tokens {tokens}",
        "kv_cache_config.max_tokens: {tokens}",
    ),
    *_all(
        "gpu_memory_utilization", "--gpu-memory-utilization {value}", "--mem-fraction-static {value}",
        "kv_cache_config.free_gpu_memory_fraction: {value}",
    ),
    *_all("kv_cache_memory_bytes", "--kv-cache-memory-bytes {value}", "", ""),
    *_all("block_size", "--block-size {value}", "--page-size {value}", "kv_cache_config.tokens_per_block: {value}"),
    *_all(
        "long_prefill_token_threshold", "--long-prefill-token-threshold {value}", "", "",
        why="no cap on one prompt's share of an iteration", neutral=("0",),
    ),
    *_switch(
        "long_prefill_token_threshold_adaptive", {"vllm": "--long-prefill-token-threshold-adaptive"},
        {"vllm": "--no-long-prefill-token-threshold-adaptive"}, since="0.33.0", holds="false",
    ),
    *_switch(
        "scheduler_reserve_full_isl", {"vllm": "--scheduler-reserve-full-isl"}, {"vllm": "--no-scheduler-reserve-full-isl"},
        why="admission counts the whole prompt there in any case",
    ),
    *_all(
        "watermark", "--watermark {value}", "", "", since="0.24.0", why="no share of KV blocks is kept free for admission",
        neutral=("0", "0.0"),
    ),
    *_all(
        "prefill_schedule_interval", "--prefill-schedule-interval {value}", "--prefill-decode-interval {value}", "",
        since="0.33.0", neutral=("1",),
    ),
    FlagRow("policy", "vllm", "--scheduling-policy {value}"),
    FlagRow("policy", "sglang", "--schedule-policy fcfs", ("fcfs",)),
    FlagRow("policy", "sglang", "--enable-priority-scheduling --schedule-low-priority-values-first", ("priority",)),
    FlagRow("policy", "tensorrt_llm", "", ("fcfs",), why="requests are taken in order of arrival", already=True),
    FlagRow("policy", "tensorrt_llm", why="requests are taken in order of arrival"),
    *_switch(
        "enable_chunked_prefill", {"vllm": "--enable-chunked-prefill", "tensorrt_llm": "enable_chunked_prefill: true"},
        {
            "vllm": "--no-enable-chunked-prefill", "sglang": "--chunked-prefill-size -1",
            "tensorrt_llm": "enable_chunked_prefill: false",
        },
        why="on unless --chunked-prefill-size is -1",
    ),
    *_switch(
        "enable_prefix_caching",
        {"vllm": "--enable-prefix-caching", "tensorrt_llm": "kv_cache_config.enable_block_reuse: true"},
        {
            "vllm": "--no-enable-prefix-caching", "sglang": "--disable-radix-cache",
            "tensorrt_llm": "kv_cache_config.enable_block_reuse: false",
        },
        why="on unless --disable-radix-cache is given",
    ),
    *_switch(
        "async_scheduling", {"vllm": "--async-scheduling"},
        {"vllm": "--no-async-scheduling", "sglang": "--disable-overlap-schedule",
         "tensorrt_llm": "disable_overlap_scheduler: true"},
        why="on by default",
    ),
    *_nowhere("engine_version", "another release, not a flag"),
    # batching
    FlagRow("batching.step", "vllm", "", ("mixed", "decode_first"), why=_MIXES, already=True),
    FlagRow("batching.step", "vllm", "", ("prefill_first", "interleave"), why="it always mixes prefill and decode"),
    FlagRow("batching.step", "sglang", "--enable-mixed-chunk", ("mixed", "decode_first")),
    FlagRow("batching.step", "sglang", "", ("prefill_first",), why="its default, without --enable-mixed-chunk", already=True),
    FlagRow("batching.step", "sglang", "", ("interleave",), why="it alternates by demand; the nearest is --enable-mixed-chunk"),
    FlagRow("batching.step", "tensorrt_llm", "", ("mixed", "decode_first"), why="it mixes prefill and decode", already=True),
    FlagRow("batching.step", "tensorrt_llm", why="it mixes prefill and decode"),
    *_nowhere("batching.interleave", "no engine alternates in a fixed proportion"),
    FlagRow(
        "batching.max_partial_prefills", "vllm",
        why="releases up to 0.24 accept --max-num-partial-prefills and V1's scheduler ignores it; later ones have no such flag",
    ),
    FlagRow("batching.max_partial_prefills", "sglang", "", ("1",), why="one prompt at a time is partly prefilled", already=True),
    FlagRow("batching.max_partial_prefills", "sglang", why="one prompt at a time may be partly prefilled, always"),
    FlagRow("batching.max_partial_prefills", "tensorrt_llm", why="no such knob"),
    *_nowhere("batching.decode_reserve", "no part of the token budget can be kept for decodes"),
    *_nowhere("batching.chunk_align", "follows from the model and its KV blocks, it cannot be set alone"),
    FlagRow("batching.output_reserve", "vllm", "", ("none",), why="it never reserves for output; nothing is to be set",
            already=True),
    FlagRow("batching.output_reserve", "vllm", why="it reserves nothing for output; --watermark is the nearest"),
    FlagRow("batching.output_reserve", "sglang", "--schedule-conservativeness 0", ("none",)),
    FlagRow("batching.output_reserve", "sglang", "", ("max_tokens",), why="it always counts max_tokens, clipped",
            already=True),
    FlagRow("batching.output_reserve", "sglang", why="it counts max_tokens, not a prediction"),
    FlagRow("batching.output_reserve", "tensorrt_llm", "capacity_scheduler_policy: GUARANTEED_NO_EVICT", ("max_tokens",)),
    FlagRow("batching.output_reserve", "tensorrt_llm", "capacity_scheduler_policy: MAX_UTILIZATION", ("none",)),
    FlagRow("batching.output_reserve", "tensorrt_llm", why="it counts max_tokens or nothing"),
    FlagRow("batching.output_reserve_clip", "vllm", why="it reserves nothing for output"),
    FlagRow("batching.output_reserve_clip", "sglang", "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION={value}"),
    FlagRow("batching.output_reserve_clip", "tensorrt_llm", why="the whole of max_tokens counts, or nothing"),
    FlagRow("batching.output_reserve_ratio", "vllm", why="it reserves nothing for output"),
    FlagRow("batching.output_reserve_ratio", "sglang", "--schedule-conservativeness {conservativeness}"),
    FlagRow("batching.output_reserve_ratio", "tensorrt_llm", why="the whole of max_tokens counts, or nothing"),
    # order and preemption
    FlagRow("order.by", "vllm", "--scheduling-policy {value}", ("fcfs", "priority")),
    FlagRow("order.by", "vllm", why="its queue knows fcfs and priority only; a deadline or a size can be sent as the priority"),
    FlagRow("order.by", "sglang", "--schedule-policy fcfs", ("fcfs",)),
    FlagRow("order.by", "sglang", "--enable-priority-scheduling --schedule-low-priority-values-first", ("priority",)),
    FlagRow("order.by", "sglang", "--schedule-policy shortest-prefill-first", ("shortest_first",)),
    FlagRow("order.by", "sglang", why="no such order"),
    FlagRow("order.by", "tensorrt_llm", "", ("fcfs",), why="requests are taken in order of arrival", already=True),
    FlagRow("order.by", "tensorrt_llm", why="requests are taken in order of arrival"),
    FlagRow("order.larger_first", "sglang", "", ("true",), why="its default: leave --schedule-low-priority-values-first out",
            already=True),
    FlagRow("order.larger_first", "sglang", "--schedule-low-priority-values-first", ("false",)),
    FlagRow("order.larger_first", "vllm", "", ("false",), why="smaller values come first, always", already=True),
    FlagRow("order.larger_first", "vllm", why="smaller values come first, always"),
    FlagRow("order.larger_first", "tensorrt_llm", why="no such order"),
    FlagRow("preemption.to_admit", "vllm", "", ("true",), why=_SEATS_PREEMPT),
    FlagRow("preemption.to_admit", "vllm", "", ("false",), why="it never preempts to admit; nothing is to be set",
            already=True),
    FlagRow("preemption.to_admit", "sglang", "--enable-priority-scheduling", ("true",)),
    FlagRow("preemption.to_admit", "sglang", "--priority-scheduling-preemption-threshold 1000000000", ("false",)),
    FlagRow("preemption.to_admit", "tensorrt_llm", why="no such knob"),
    # in front of the engine
    *_all(
        "front_door.max_queued_reqs", "--max-num-queued-reqs {value}", "--max-queued-requests {value}", "", since="0.33.0",
        why="no bound on the queue",
    ),
    *_all(
        "front_door.max_queued_tokens", "--max-num-queued-tokens {value}", "", "", since="0.33.0", why="no bound by tokens"
    ),
)  # fmt: skip
"""Every knob that is a flag somewhere, or that one could take for one. The first row that fits a value counts."""

"""What a vLLM log says besides its iterations: scheduling, size of the KV cache, release."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from replay_engine.config import ConfigError
from replay_engine.settings_file import one_line

__all__ = ["LogFacts", "read_facts"]

_ASYNC = re.compile(r"Asynchronous scheduling is (enabled|disabled)")
_ASYNC_SET = re.compile(r"['\"]?async_scheduling['\"]?\s*[=:]\s*(True|False)")
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_BLOCKS = re.compile(r"# (?:GPU|cuda) blocks: (\d+)", re.IGNORECASE)
_BLOCKS_SET = re.compile(r"num_gpu_blocks(?:_override)?['\"]?\s*(?:[=:]|is:?)\s*(\d+)")
_BLOCK_SIZE = re.compile(r"['\"]?\bblock_size['\"]?\s*[=:]\s*(\d+)")
_CAPTURED = re.compile(r"['\"]?cudagraph_capture_sizes['\"]?\s*[=:]\s*\[([\d,\s]*)\]")
_EAGER = re.compile(r"['\"]?enforce_eager['\"]?\s*[=:]\s*True")
_VERSION = re.compile(r"LLM engine \(v([\w.+-]+)\)")
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(slots=True, kw_only=True)
class LogFacts:
    """``None`` where neither the log nor a setting says it; ``said`` names what says how iterations were scheduled."""

    asynchronous: bool | None = None
    said: str = ""
    kv_tokens: float | None = None
    block_size: int = 16
    version: str | None = None
    captured: tuple[int, ...] | None = None
    """Sizes that graphs are captured for, rising; empty: there are none."""


def read_facts(lines: Iterable[str], sets: Iterable[str] = ()) -> LogFacts:
    """From the lines of the log, then from ``knob=value`` settings, which count more. ``ConfigError``: one of no use here."""
    facts, blocks = LogFacts(), None
    for line in lines:
        for pattern in (_ASYNC, _ASYNC_SET):
            if found := pattern.search(line):
                facts.asynchronous = found[1] in ("enabled", "True")
                facts.said = f"its log says {one_line(found[0])}"
        if found := _KV_TOKENS.search(line):
            facts.kv_tokens = float(found[1].replace(",", ""))
        if found := _BLOCKS.search(line) or _BLOCKS_SET.search(line):
            blocks = int(found[1])
        if found := _BLOCK_SIZE.search(line):
            facts.block_size = int(found[1])
        if found := _CAPTURED.search(line):
            facts.captured = tuple(sorted({int(each) for each in found[1].split(",") if each.strip()}))
        if _EAGER.search(line):
            facts.captured = ()
        if found := _VERSION.search(line):
            facts.version = found[1]
    given = _settings(sets)
    if "async_scheduling" in given:
        facts.asynchronous, facts.said = given["async_scheduling"] == 1, "--set says so"
    facts.block_size = int(given.get("block_size", facts.block_size))
    if "num_gpu_blocks" in given:
        facts.kv_tokens = None
    blocks = given.get("num_gpu_blocks", blocks)
    if facts.kv_tokens is None and blocks is not None:
        facts.kv_tokens = float(blocks) * facts.block_size
    return facts


def _settings(sets: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in sets:
        name, equals, value = each.partition("=")
        name, value = name.strip().removeprefix("scheduler."), value.strip()
        if name == "async_scheduling" and value.lower() in (*_TRUE, *_FALSE):
            found[name] = int(value.lower() in _TRUE)
        elif name in ("num_gpu_blocks", "block_size") and equals and value.isdecimal() and int(value) > 0:
            found[name] = int(value)
        else:
            raise ConfigError(
                f"--set {one_line(each)}: expected async_scheduling=true|false, num_gpu_blocks=N or block_size=N: what iteration"
                " lines leave open"
            )
    return found

"""The settings that an engine of vLLM wrote into its log when it started.

``non-default args: {...}`` has the flags, as a line that was copied or anywhere in the log; a whole log also says which release
it was and how large its KV cache came out.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from replay_engine.vllm_flags import KNOBS
from tracekit.errors import UsageError, shown, shown_path

__all__ = ["logged_sets"]

_MARK = "non-default args"
_LINE = re.compile(_MARK + r":\s*(\{.*\})", re.DOTALL)
_LATER = (_MARK, "KV cache size", "GPU blocks", "LLM engine (v")
_OTHERWISE = (".toml", ".yaml", ".yml")
LARGEST_LINE = 1 << 16


def logged_sets(source: str) -> tuple[str, ...] | None:
    """``knob=value`` of each setting in ``source``: a ``non-default args`` line, or a log that has one (the last, where the
    engine was started several times). ``None``: it is neither. ``UsageError``: such a line that cannot be understood."""
    line = _LINE.search(source)
    if line is not None:
        return tuple(_knobs(line[1], source))
    path = Path(source) if len(source) < 4096 and "\n" not in source else None
    if path is None or path.suffix in _OTHERWISE or not _is_file(path):
        return None
    told = _told(path)
    started = [number for number, each in enumerate(told) if _MARK in each]
    if not started:
        return None
    found = _LINE.search(told[started[-1]])
    if found is None:
        raise UsageError(f"--policy {shown_path(source)}: its {_MARK} line is not whole; expected {_MARK}: {{...}} on one line")
    from tracekit.calibration.vllm_header import read_facts

    facts = read_facts(each for each in told if _MARK not in each)
    sets = {each.partition("=")[0]: each for each in _knobs(found[1], source)}
    size = int(sets["block_size"].partition("=")[2]) if "block_size" in sets else facts.block_size
    if facts.kv_tokens is not None and "num_gpu_blocks" not in sets:
        sets["num_gpu_blocks"] = f"num_gpu_blocks={int(facts.kv_tokens // size)}"
    if facts.version is not None:
        sets["engine_version"] = f"engine_version={facts.version}"
    return tuple(sets.values())


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _told(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return [line[:LARGEST_LINE] for line in file if any(mark in line for mark in _LATER)]
    except OSError:
        return []


def _knobs(text: str, source: str) -> list[str]:
    try:
        values = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        words = "not what vLLM writes as non-default args; expected {'knob': value, ...}"
        raise UsageError(f"--policy {shown(source)}: {words}") from None
    knobs = {knob: value for knob, value in values.items() if knob in KNOBS and value is not None}
    if "scheduling_policy" in values:
        knobs["policy"] = values["scheduling_policy"]
    if "num_gpu_blocks_override" in values:
        knobs["num_gpu_blocks"] = values["num_gpu_blocks_override"]
    return [f"{knob}={str(value).lower() if isinstance(value, bool) else value}" for knob, value in knobs.items()]

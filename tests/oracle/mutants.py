"""Small wrong versions of the engine: copies of the package under another name, with a few lines of source replaced.

Each is a trap that building the O(changes) scheduler is known to hold; the numbers are those of the list in the design notes.
"""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import replay_engine

__all__ = ["MUTANTS", "Mutant", "load"]

Change = tuple[str, str, str]
"""(module, text, replacement): every occurrence of the text is replaced."""


@dataclass(frozen=True)
class Mutant:
    """``trap`` names the mistake; ``hints`` are seeds of random cases known to show it (``seed, bias``)."""

    trap: str
    changes: tuple[Change, ...]
    hints: tuple[tuple[int, str], ...] = ()


def load(folder: Path, name: str, module: str, changes: tuple[Change, ...]) -> ModuleType:
    """Import ``module`` of the engine's package from a patched copy of it in ``folder``, called ``name``.

    Raises ``ValueError`` when a text to replace is no longer in its module: then the mutant needs a new one.
    """
    target = folder / name
    target.mkdir()
    source = Path(next(iter(replay_engine.__path__)))
    for path in source.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for changed, old, new in changes:
            if changed == path.relative_to(source).with_suffix("").as_posix():
                if old not in text:
                    raise ValueError(f"{path.name} has no {old!r} any more: the mutant of it does not apply")
                text = text.replace(old, new)
        copy = target / path.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(re.sub(r"\breplay_engine\b", name, text), encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        return importlib.import_module(f"{name}.{module}")
    finally:
        sys.path.remove(str(folder))


_HAND_OVER = """        if state.joined:
            plan.joined, state.joined = state.joined, []
        if state.left:
            plan.left, state.left = state.left, []
"""
_LAST = "        plan.running = len(state.running)\n"
_PROMOTED = "            self._first[key] = waiting.pop(0)\n"
_PROMOTED_RUN = "            promoted += segment.hi - segment.lo\n"
_BORDER = "        if hi < segment.hi:\n            self.cut(segment, hi)\n        copy ="
_COUNTED = "self.changes += 1\n"

MUTANTS = (
    Mutant(
        "1 promotion of an in-use copy is not counted (real ids)",
        (("kv_identified", f"{_PROMOTED}            {_COUNTED}", _PROMOTED),),
        ((50, "turns"), (560, "turns")),
    ),
    Mutant(
        "1 promotion of an in-use copy is not counted (traced)",
        (("kv_runs", _PROMOTED_RUN, ""),),
        ((50, "turns"), (560, "turns")),
    ),
    Mutant(
        "2 explicit sequences register after decodes (real ids)",
        (("kv_identified", "        ready.sort(key=_ticket)\n", ""),),
        ((88, "copies"), (121, "turns")),
    ),
    Mutant(
        "2 explicit sequences register after decodes (traced)",
        (("kv_traced", "            ready.sort(key=_first)\n", ""),),
        ((155, "turns"), (168, "copies")),
    ),
    Mutant(
        "runs: no border where the holder of a copy goes on",
        (("kv_runs", _BORDER, "        copy ="),),
        ((3, "priority"), (4, "sharing")),
    ),
    Mutant(
        "runs: lengthened where the holder of a copy goes on",
        (("kv_runs", "None if self._copies else own.go_on", "own.go_on"),),
        ((7, "copies"), (43, "copies")),
    ),
    Mutant(
        "runs: joined where the holder of a copy goes on",
        (("kv_runs", "segment.lo and not self._copies:", "segment.lo:"),),
        ((2, "starvation"), (3, "priority")),
    ),
    Mutant(
        "runs: given up from the front",
        (("kv_runs", "segment = parts[-1]", "segment = parts[0]"), ("kv_runs", "parts.pop()", "parts.pop(0)")),
        ((1, "pressure"), (7, "copies")),
    ),
    Mutant(
        "3 a starved decode's registered blocks stay implied",
        (("preempting", "    seq.nreg = registered\n", ""),),
        ((128, "starvation"),),
    ),
    Mutant(
        "3 a starved decode's held blocks stay implied",
        (("preempting", "    seq.nblocks = held\n", ""),),
        ((128, "starvation"),),
    ),
    Mutant(
        "4 changes of the set handed over at the end of the decision",
        (("scheduler", _HAND_OVER, ""), ("scheduler", _LAST, _HAND_OVER + _LAST)),
    ),
    Mutant("5 async: a token in flight counts as registered", (("state", "        if self.lag:\n", "        if False:\n"),)),
    Mutant(
        "5 async: nothing is registered right after a join",
        (("state", "return known if known > seq.nreg else seq.nreg", "return known"),),
    ),
    Mutant("10 blocks handed out without a merge by ticket", (("kv_identified", "        takes.sort(key=_ticket)\n", ""),)),
    Mutant(
        "bucket phase: growth one iteration early or late",
        (
            ("decode_set", "self.buckets[(origin + 1) % self.size]", "self.buckets[origin % self.size]"),
            ("decode_set", "self.buckets[(seq.origin + 1) % self.size]", "self.buckets[seq.origin % self.size]"),
        ),
    ),
    Mutant("bucket phase: async registers like sync", (("state", "self.fill_offset = 1 - self.lag", "self.fill_offset = 1"),)),
    Mutant(
        "finish order: as filed in the calendar",
        (("decode_set", "            gone.sort(key=_ticket)\n", "            pass\n"),),
        ((13, "sharing"),),
    ),
    Mutant(
        "finish order: explicit sequences last",
        (("advancing", "sorted([*plan.finishing, *ending], key=_ticket)", "[*plan.finishing, *ending]"),),
        ((59, "turns"),),
    ),
    Mutant(
        "starvation: a prefill that stands before decodes is cut instead",
        (("running", "            if ticket < decodes.newest and not state.decode_first:\n", "            if False:\n"),),
        ((65, "starvation"),),
    ),
    Mutant(
        "preemption test leaves out prefill blocks",
        (("running", "    if len(due) + need > pool.free:\n", "    if len(due) > pool.free:\n"),),
    ),
)

"""Exact batches, written as ``decode=32*1@8192``, ``prefill=2048``, ``chunk=2048@8192c`` or ``mix=2048,32*1@8192``.

An entry is ``[count*]query[@kv[c]]``: ``count`` sequences that compute ``query`` tokens each, their KV being ``kv`` tokens long
afterwards, or ``kv`` tokens before where a ``c`` (for context) stands behind it; without ``@`` nothing lies before. One token
behind a context is a decode. Several entries, joined by commas, run in one iteration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from replay_engine.config import ConfigError
from replay_engine.settings_file import one_line

__all__ = ["BatchCase", "default_cases", "parse_case", "parse_cases"]

_ENTRY = re.compile(r"(?:(\d+)\*)?(\d+)(?:@(\d+)(c?))?", re.ASCII)
_GRAMMAR = (
    "expected KIND=[COUNT*]QUERY[@KV[c]],... with KIND decode, prefill, chunk or mix, as decode=32*1@8192 or chunk=512@2048c"
)
_LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class BatchCase:
    """One iteration: ``shapes`` are the (query_len, kv_len) of its sequences, kv_len counted after it; ``name`` as written."""

    name: str
    shapes: tuple[tuple[int, int], ...]

    @property
    def decodes(self) -> list[int]:
        """KV lengths of the decoding sequences."""
        return [kv for query, kv in self.shapes if query == 1 < kv]

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(query_len, kv_len) of the prefill entries."""
        return [(query, kv) for query, kv in self.shapes if not query == 1 < kv]

    @property
    def tokens(self) -> int:
        """Prefill tokens."""
        return sum(query for query, _ in self.entries)

    @property
    def qk(self) -> int:
        """Attention work of the prefill entries: query tokens times context, as the scheduler counts it."""
        return sum(query * (kv - query) + query * query // 2 for query, kv in self.entries)


def parse_case(text: str) -> BatchCase:
    """One batch. ``ConfigError`` says what of it cannot be read, or does not suit its kind."""
    kind, equals, rest = text.strip().partition("=")
    if not equals or kind not in ("decode", "prefill", "chunk", "mix"):
        raise ConfigError(f"case {one_line(text)}: {_GRAMMAR}")
    shapes: list[tuple[int, int]] = []
    for part in rest.split(","):
        found = _ENTRY.fullmatch(part.strip())
        if found is None:
            raise ConfigError(f"case {one_line(text)}: {one_line(part)}: {_GRAMMAR}")
        count, query = int(found[1] or 1), int(found[2])
        kv = query if found[3] is None else int(found[3]) + (query if found[4] else 0)
        if not (0 < count <= _LARGEST and 0 < query <= kv <= _LARGEST):
            raise ConfigError(
                f"case {one_line(text)}: {one_line(part)}: expected counts and lengths of 1 to {_LARGEST:,}, KV no shorter than"
                " the query"
            )
        shapes += [(query, kv)] * count
    case = BatchCase(text.strip(), tuple(shapes))
    fits = {
        "decode": not case.entries, "prefill": not case.decodes and all(q == kv for q, kv in shapes),
        "chunk": not case.decodes and all(q < kv for q, kv in shapes), "mix": True,
    }  # fmt: skip
    if not fits[kind]:
        expected = {
            "decode": "one token each behind a context",
            "prefill": "no context",
            "chunk": "a context, and more than a token",
        }
        raise ConfigError(f"case {one_line(text)}: no {kind}: expected {expected[kind]}; mix takes any")
    return case


def parse_cases(texts: Iterable[str]) -> list[BatchCase]:
    """Batches from texts that hold one or more each, separated by blanks; the same shapes are kept once."""
    cases = [parse_case(word) for text in texts for word in text.split()]
    if not cases:
        raise ConfigError(f"cases: none given; {_GRAMMAR}")
    once: dict[tuple[tuple[int, int], ...], BatchCase] = {}
    for case in cases:
        once.setdefault(tuple(sorted(case.shapes)), case)
    return list(once.values())


def default_cases(*, longest: int, seats: int, budget: int) -> list[BatchCase]:
    """Batches that span sequences up to ``longest`` tokens, ``seats`` decodes and ``budget`` prefill tokens an iteration."""
    kvs = _spread(16, longest - 1, 4)
    words = [f"decode={n}*1@{kv}" for n in _spread(1, seats, 5) for kv in kvs if n * kv <= 4 * longest or n <= seats // 2]
    chunks = _spread(8, min(budget, longest // 2), 6)
    words += [f"prefill={n}" for n in chunks]
    words += [f"chunk={n}@{longest * part // 4 - n}c" for n in chunks for part in (1, 2, 4) if longest * part // 4 - n > n]
    middle = kvs[len(kvs) // 2]
    words += [f"mix={n},{seats // 2 or 1}*1@{middle}" for n in chunks]
    words += [f"prefill=4*{max(2, chunks[-1] // 8)}", f"mix=2*{chunks[1]},{seats}*1@{kvs[1]}"]
    return parse_cases(words)


def _spread(low: int, high: int, count: int) -> list[int]:
    """``count`` whole numbers from ``low`` to ``high``, each about as many times the one before."""
    high = max(low, high)
    return sorted({round(low * (high / low) ** (i / (count - 1))) for i in range(count)})

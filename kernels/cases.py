"""The attention shapes that every check runs, as lists of (query_len, kv_len): the only shape vocabulary of this project.

``kv_len`` counts the query's own tokens. All tiers of ``tests/kernels``, ``replay_kernels.check`` and the benchmark read this
table.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CASES", "Case", "Entries", "cases"]

Entries = tuple[tuple[int, int], ...]


class Case(NamedTuple):
    """A named batch: its entries and the smallest tier that can afford it (``interp`` runs everywhere, ``gpu`` on a device)."""

    name: str
    entries: Entries
    tier: str


CASES: tuple[Case, ...] = (
    Case("one token", ((1, 1),), "interp"),
    Case("one decode", ((1, 37),), "interp"),
    Case("decodes of all lengths around a KV block", ((1, 15), (1, 16), (1, 17), (1, 1), (1, 33)), "interp"),
    Case("decodes, one much longer", ((1, 3), (1, 79), (1, 16)), "interp"),
    Case("whole prompt", ((13, 13),), "interp"),
    Case("later prefill chunk", ((7, 40),), "interp"),
    Case("chunks aligned to KV blocks", ((16, 16), (16, 64)), "interp"),
    Case("prefill beside decodes", ((1, 29), (9, 9), (1, 5), (11, 27)), "interp"),
    Case("an entry without query", ((5, 21), (0, 12), (3, 3)), "interp"),
    Case("long decodes", ((1, 523), (1, 37), (1, 2011), (1, 4096), (1, 1023)), "gpu"),
    Case("a full bucket of decodes", tuple((1, 257 + 97 * i % 1900) for i in range(64)), "gpu"),
    Case("mixed", ((1, 1328), (5, 18), (129, 463), (64, 64)), "gpu"),
    Case("prompts one off a tile", ((63, 63), (64, 64), (65, 65), (127, 255), (128, 256), (129, 257)), "gpu"),
    Case("long chunk, long context", ((2048, 10240),), "gpu"),
)


def cases(tier: str) -> tuple[Case, ...]:
    """The cases that a tier runs: ``interp`` the small ones, ``gpu`` all. ValueError for another tier."""
    if tier not in ("interp", "gpu"):
        raise ValueError(f"tier {tier!r}: expected interp or gpu")
    return tuple(case for case in CASES if tier == "gpu" or case.tier == "interp")

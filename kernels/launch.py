"""Launch configurations: one table per class of device, read by the launches, the compile tests and the benchmark alike.

The numbers are chosen for what can be checked without a device (registers, spills, shared memory, wgmma; ``tests/kernels``);
the benchmark tries the alternatives of ``PREFILL_TRIALS`` and ``DECODE_TRIALS`` on a device and says which one is fastest
there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch

__all__ = [
    "DECODE_TRIALS",
    "LAUNCHES",
    "PREFILL_TRIALS",
    "Launches",
    "Tiles",
    "decode_tiles",
    "device_class",
    "launches",
    "num_splits",
    "prefill_tiles",
    "use_launches",
]


class Tiles(NamedTuple):
    """One attention launch: rows of queries x heads per program, KV positions per tile, warps, pipeline stages."""

    rows: int
    tile: int
    warps: int
    stages: int


TilesOf = dict[tuple[int, int], Tiles]


class Launches(NamedTuple):
    """All launch choices of a device class.

    ``prefill_long``, ``prefill_short`` and ``decode`` by (element bytes, head_dim): the largest head_dim not above the model's.
    ``prefill_short`` serves launches whose longest query fills at most ``short_rows`` rows, where large tiles would leave the
    device empty. ``elements`` is what one program of the elementwise ops covers, ``heads`` the head vectors of one program of
    ``qk_norm_rope_kv_write``, ``vocab`` the logits of one program of ``gumbel_argmax`` and ``vocab_tile`` its loop's.
    """

    prefill_long: TilesOf
    prefill_short: TilesOf
    short_rows: int
    decode: TilesOf
    elements: int
    heads: int
    vocab: int
    vocab_tile: int


# 64 rows or more per four warps are what wgmma needs; at 16 the compiler takes mma.sync, enough for memory-bound decodes. KV is
# loaded through the block table, and the compiler spends every other stage on those indirect loads: 5 stages are 2 tiles ahead.
# float32 is there for checks, not for speed: its tiles are what fits in registers.
HOPPER = Launches(
    prefill_long={(2, 0): Tiles(128, 64, 8, 5), (2, 256): Tiles(128, 32, 8, 3), (4, 0): Tiles(16, 16, 4, 3)},
    prefill_short={(2, 0): Tiles(64, 64, 4, 3), (2, 256): Tiles(64, 32, 4, 3), (4, 0): Tiles(16, 16, 4, 3)},
    short_rows=2048,
    decode={(2, 0): Tiles(16, 64, 4, 5), (2, 256): Tiles(16, 32, 4, 5), (4, 0): Tiles(16, 16, 4, 3)},
    elements=4096,
    heads=8,
    vocab=8192,
    vocab_tile=2048,
)
# Ampere and consumer devices have 99 to 163 KB of shared memory per program and no wgmma.
OLDER = HOPPER._replace(
    prefill_long={(2, 0): Tiles(128, 32, 8, 2), (2, 256): Tiles(64, 16, 4, 1), (4, 0): Tiles(16, 16, 4, 3)},
    prefill_short={(2, 0): Tiles(64, 32, 4, 2), (2, 256): Tiles(64, 16, 4, 1), (4, 0): Tiles(16, 16, 4, 3)},
    decode={(2, 0): Tiles(16, 64, 4, 3), (2, 256): Tiles(16, 16, 4, 3), (4, 0): Tiles(16, 16, 4, 3)},
)
# The interpreter pays per operation, not per element, and must meet several tiles in small cases.
INTERPRETED: TilesOf = {(2, 0): Tiles(16, 16, 4, 1), (4, 0): Tiles(16, 16, 4, 1)}
INTERPRETER = HOPPER._replace(
    prefill_long=INTERPRETED, prefill_short=INTERPRETED, decode=INTERPRETED, elements=32, heads=2, vocab=64, vocab_tile=32
)
LAUNCHES: dict[str, Launches] = {"hopper": HOPPER, "older": OLDER, "interpreter": INTERPRETER}
PREFILL_TRIALS = (
    Tiles(128, 64, 8, 5),
    Tiles(128, 64, 8, 3),
    Tiles(128, 128, 8, 3),
    Tiles(128, 64, 4, 3),
    Tiles(64, 64, 4, 3),
    Tiles(64, 64, 4, 5),
    Tiles(64, 128, 4, 3),
)
DECODE_TRIALS = (
    Tiles(16, 64, 4, 5),
    Tiles(16, 64, 4, 3),
    Tiles(16, 128, 4, 3),
    Tiles(16, 128, 4, 5),
    Tiles(16, 32, 4, 7),
    Tiles(16, 64, 2, 5),
    Tiles(16, 64, 8, 5),
)


@cache
def device_class(device: torch.device) -> str:
    """The key of ``LAUNCHES`` for a device: ``hopper`` from compute capability 9, ``older`` below, ``interpreter`` off CUDA."""
    if device.type != "cuda":
        return "interpreter"
    return "hopper" if torch.cuda.get_device_capability(device)[0] >= 9 else "older"


def launches(device: torch.device) -> Launches:
    """The launch choices for a device, or those of ``use_launches``."""
    return _forced or LAUNCHES[device_class(device)]


_forced: Launches | None = None


@contextmanager
def use_launches(chosen: Launches) -> Iterator[None]:
    """Runs the block with the given choices on every device: for trials, and to compile for a device that is not there."""
    global _forced
    before, _forced = _forced, chosen
    try:
        yield
    finally:
        _forced = before


def prefill_tiles(chosen: Launches, rows: int, element_bytes: int, head_dim: int) -> Tiles:
    """Tiles of a prefill launch: ``rows`` is its longest query times the query heads per KV head."""
    return _tiles(chosen.prefill_short if rows <= chosen.short_rows else chosen.prefill_long, element_bytes, head_dim)


def decode_tiles(chosen: Launches, group: int, element_bytes: int, head_dim: int) -> Tiles:
    """Tiles of a decode launch; ``rows`` grows to the query heads per KV head where these are more than 16."""
    tiles = _tiles(chosen.decode, element_bytes, head_dim)
    return tiles if group <= tiles.rows else tiles._replace(rows=1 << (group - 1).bit_length())


def _tiles(table: TilesOf, element_bytes: int, head_dim: int) -> Tiles:
    return table[element_bytes, max(least for size, least in table if size == element_bytes and least <= head_dim)]


def num_splits(seqs: int, kv_heads: int, max_kv_len: int, multiprocessors: int = 132) -> int:
    """KV splits for a decode launch: enough programs to fill the device about twice, none with under 256 tokens.

    A power of two from 1 to 16. For a CUDA graph, ``seqs`` is the bucket's size and ``max_kv_len`` the longest KV it may meet.
    """
    programs, splits = max(1, seqs * kv_heads), 1
    while splits < 16 and programs * splits < 2 * multiprocessors and max_kv_len >= 512 * splits:
        splits *= 2
    return splits

"""Token ids of prompts whose text is not known: synthesised from the trace's block identities.

Equal identities give equal tokens, so that an anonymised trace meets its real prefix hits; whatever has no identity is the
request's own. Needs numpy only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay_engine.types import Request

__all__ = ["prompt_ids"]

_OWN = np.uint64(1) << np.uint64(63)
"""Sets a request's own tokens apart from those of shared blocks."""
_GOLDEN, _MIX_A, _MIX_B = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def prompt_ids(request: Request, vocab: int, seed: int = 0) -> npt.NDArray[np.int32]:
    """The prompt's token ids, int32 [prompt_tokens], each below ``vocab``; a function of identities, ``seed`` and nothing else.

    A token is a hash of its block's id and its place in the block. Tokens outside the identified blocks are a hash of the
    request's index and their position.
    """
    length = request.prompt_tokens
    keys = np.arange(length, dtype=np.uint64)
    keys += np.uint64(request.index) << np.uint64(32)
    keys |= _OWN
    prefix = request.prefix
    if prefix is not None:
        grain = prefix.block_tokens
        for position, first, blocks in prefix.runs:
            start = position * grain
            count = min(length - start, blocks * grain)
            if count > 0:
                keys[start : start + count] = np.arange(count, dtype=np.uint64) + np.uint64(first * grain)
    mixed = _mixed(keys + np.uint64(seed * int(_GOLDEN) % 2**64))
    return (mixed % np.uint64(vocab)).astype(np.int32)


def _mixed(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Spreads neighbouring keys over all 64 bits (the finaliser of splitmix64); arithmetic wraps."""
    keys = keys + _GOLDEN
    keys = (keys ^ (keys >> np.uint64(30))) * _MIX_A
    keys = (keys ^ (keys >> np.uint64(27))) * _MIX_B
    return keys ^ (keys >> np.uint64(31))

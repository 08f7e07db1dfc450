"""A beginning that all prompts share, said by a person of a trace without block hashes: a chat template, a system prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.errors import UsageError
from tracekit.traces.prefix_runs import Runs, shared_blocks

if TYPE_CHECKING:
    from tracekit.traces.arrange import Arranged

__all__ = ["begin_alike", "whole_blocks"]

BLOCK_TOKENS = 16
"""The grain of what is said: that of most engines' blocks."""


def whole_blocks(tokens: int) -> int:
    """``tokens`` as far as they are whole blocks. Errors: ``UsageError`` for less than one."""
    if tokens < BLOCK_TOKENS:
        raise UsageError(f"--shared-prefix {tokens}: whole blocks are shared; expected {BLOCK_TOKENS} tokens or more")
    return tokens - tokens % BLOCK_TOKENS


def begin_alike(arranged: Arranged, tokens: int, file: str) -> None:
    """Give every prompt of ``arranged`` the same first ``tokens`` tokens (whole blocks), or all of it where it is shorter.

    Errors: ``UsageError`` for a trace that names its blocks itself.
    """
    if arranged.runs is not None:
        raise UsageError(f"--shared-prefix: {file} says itself which blocks prompts share; expected it left out")
    stage = arranged.stage
    lengths = stage.con.sql("SELECT coalesce(input_tokens, 0)::BIGINT AS n FROM arranged ORDER BY req_idx").fetchnumpy()["n"]
    blocks = np.minimum(np.asarray(lengths, np.int64), tokens) // BLOCK_TOKENS
    row = np.flatnonzero(blocks).astype(np.int64)
    none, length = np.zeros(len(row), np.int64), blocks[row]
    arranged.runs = Runs(req_idx=row, pos=none, first=none, length=length, shared=shared_blocks(row, none, length, len(blocks)))
    stage.facts.block_tokens, stage.facts.hash_scope = BLOCK_TOKENS, "global"
    stage.facts.warn(f"all prompts are taken to begin with the same {tokens:,} tokens, whole blocks of what --shared-prefix says")

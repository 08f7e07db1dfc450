"""What prompts of a trace without block hashes begin alike with, as a person or a fit says it: a chat template, a system prompt,
or what some of them share once there is somebody to share it with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracekit.errors import UsageError, shown
from tracekit.traces.prefix_runs import Runs, shared_blocks

if TYPE_CHECKING:
    from tracekit.traces.arrange import Arranged

__all__ = ["NOTHING", "Beginning", "begin_alike", "whole_blocks"]

Ints = npt.NDArray[np.int64]
BLOCK_TOKENS = 16
"""The grain of what is said: that of most engines' blocks."""
DIGITS = 9
SPELLED = "a whole number of tokens, or TOKENS@REQUESTS: so many on average after the first so many requests"


@dataclass(frozen=True, slots=True)
class Beginning:
    """The same first ``tokens`` tokens in all prompts; with ``after``, so many on average in the prompts that come after the
    first ``after`` requests, and none in those. ``str`` and ``parse`` go either way: ``32``, ``32@41``."""

    tokens: int = 0
    after: int = 0

    def __bool__(self) -> bool:
        return self.tokens > 0

    def __str__(self) -> str:
        return f"{self.tokens}@{self.after}" if self.after else str(self.tokens)

    @property
    def words(self) -> str:
        """As a clause about "prompts"."""
        if self.after:
            return f"prompts after the first {self.after:,} share {self.tokens:,} tokens on average"
        return f"all prompts begin with the same {self.tokens:,} tokens"

    @property
    def key(self) -> tuple[str, str | int]:
        """What sets a trace that is read so apart from others."""
        return "shared prefix", str(self) if self.after else self.tokens

    @classmethod
    def parse(cls, text: str, what: str) -> Beginning:
        """``text`` as ``what`` has it (``--shared-prefix``). Errors: ``UsageError``."""
        tokens, at, after = text.strip().partition("@")
        numbers = [tokens, after] if at else [tokens]
        if not all(each.isascii() and each.isdecimal() and len(each) <= DIGITS for each in numbers) or (at and not int(after)):
            raise UsageError(f"{what} {shown(text)}: expected {SPELLED}")
        return cls(*map(int, numbers))

    def blocks(self, prompt_tokens: Ints, size: int) -> Ints:
        """Blocks of ``size`` tokens that each prompt has of it, in the order of arrival; at most its own whole blocks."""
        if not self.after:
            return np.minimum(prompt_tokens, self.tokens) // size
        told = np.maximum(np.arange(len(prompt_tokens), dtype=np.int64) + 1 - self.after, 0) * self.tokens // size
        return np.minimum(np.diff(told, prepend=0), prompt_tokens // size)  # whole blocks, whose mean is what was said


NOTHING = Beginning()
"""Prompts have nothing in common."""


def whole_blocks(said: Beginning) -> Beginning:
    """``said`` of all prompts as far as it is whole blocks. Errors: ``UsageError`` for less than one."""
    if said.after and said.tokens:
        return said
    if said.tokens < BLOCK_TOKENS:
        raise UsageError(f"--shared-prefix {said}: whole blocks are shared; expected {BLOCK_TOKENS} tokens or more")
    return Beginning(said.tokens - said.tokens % BLOCK_TOKENS)


def begin_alike(arranged: Arranged, said: Beginning, file: str) -> None:
    """Give the prompts of ``arranged`` the beginning that is ``said`` of them, or all of a prompt where it is shorter.

    Errors: ``UsageError`` for a trace that names its blocks itself.
    """
    if arranged.runs is not None:
        raise UsageError(f"--shared-prefix: {file} says itself which blocks prompts share; expected it left out")
    stage = arranged.stage
    lengths = stage.con.sql("SELECT coalesce(input_tokens, 0)::BIGINT AS n FROM arranged ORDER BY req_idx").fetchnumpy()["n"]
    blocks = said.blocks(np.asarray(lengths, np.int64), BLOCK_TOKENS)
    row = np.flatnonzero(blocks).astype(np.int64)
    none, length = np.zeros(len(row), np.int64), blocks[row]
    arranged.runs = Runs(req_idx=row, pos=none, first=none, length=length, shared=shared_blocks(row, none, length, len(blocks)))
    stage.facts.block_tokens, stage.facts.hash_scope = BLOCK_TOKENS, "global"
    stage.facts.warn(f"taken from --shared-prefix: {said.words}, in whole blocks")

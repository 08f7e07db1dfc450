"""Block identities of generated prompts: ids in order of first appearance, in runs."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["BLOCK_TOKENS", "PromptBlocks"]

BLOCK_TOKENS = 16
Runs = list[list[int]]


@dataclass(slots=True)
class _Stream:
    """The blocks of a session so far, as runs; ``blocks`` of them are known."""

    runs: Runs = field(default_factory=list)
    blocks: int = 0


@dataclass(slots=True)
class PromptBlocks:
    """Hands out ids. A prompt begins with its group's blocks, goes on with its session's, and ends with a tail of its own."""

    next_id: int = 0
    _groups: dict[tuple[int, int], int] = field(default_factory=dict)
    _sessions: dict[tuple[int, int], _Stream] = field(default_factory=dict)

    def _fresh(self, blocks: int) -> int:
        first = self.next_id
        self.next_id += blocks
        return first

    def alone(self, tokens: int) -> Runs:
        """A prompt that shares nothing."""
        blocks = -(-tokens // BLOCK_TOKENS)
        return [[0, self._fresh(blocks), blocks]] if blocks else []

    def prompt(self, tokens: int, group: tuple[int, int], prefix_tokens: int, session: tuple[int, int] | None) -> Runs:
        """Runs [position, first id, length] of a prompt of ``tokens`` tokens, its ``prefix_tokens`` first ones the group's.

        Only full blocks are shared; the unfinished last one is the prompt's own.
        """
        full, blocks = tokens // BLOCK_TOKENS, -(-tokens // BLOCK_TOKENS)
        shared = min(prefix_tokens // BLOCK_TOKENS, full)
        stream = _Stream() if session is None else self._sessions.setdefault(session, _Stream())
        if not stream.blocks and shared:
            if group not in self._groups:
                self._groups[group] = self._fresh(prefix_tokens // BLOCK_TOKENS)
            stream.runs.append([0, self._groups[group], shared])
            stream.blocks = shared
        if full > stream.blocks:
            self._extend(stream, full)
        runs = _first(stream.runs, full)
        if blocks > full:
            runs.append([full, self._fresh(1), 1])
        return runs

    def _extend(self, stream: _Stream, full: int) -> None:
        more = full - stream.blocks
        first = self._fresh(more)
        last = stream.runs[-1] if stream.runs else None
        if last is not None and last[1] + last[2] == first:
            last[2] += more
        else:
            stream.runs.append([stream.blocks, first, more])
        stream.blocks = full


def _first(runs: Runs, blocks: int) -> Runs:
    """The part of ``runs`` before block ``blocks``."""
    return [[pos, first, min(length, blocks - pos)] for pos, first, length in runs if pos < blocks]

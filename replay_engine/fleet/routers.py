"""Which replica a request goes to. A router decides once, when the request comes, from what it looks at then."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

from replay_engine.config import ConfigError
from replay_engine.prefix import BlockKeys
from replay_engine.types import Request

__all__ = ["ROUTERS", "Candidate", "Look", "Router", "anchors", "make_router"]

ROUTERS = ("round_robin", "least_tokens", "prefix_affinity", "power_of_two", "weighted(w1,w2,...)")


@dataclass(slots=True)
class Candidate:
    """A replica as a router sees it: requests that were sent to it and are not answered yet, their prompt and output tokens, and
    how many of the prompt's leading blocks it was sent before (-1: the router did not ask)."""

    replica: int
    requests: int = 0
    tokens: int = 0
    hit_blocks: int = -1


Look = Callable[[int], Candidate]
"""What a replica is like at the moment of the decision."""


class Router(Protocol):
    """``pick`` returns one of the replicas ``up`` (never empty, ascending). ``keys`` are the prompt's leading shareable block
    keys, ``look`` tells of a replica."""

    def pick(self, request: Request, keys: SequenceOf[int], up: SequenceOf[int], look: Look) -> int: ...

    def forget(self, replica: int) -> None:
        """``replica`` has lost its cache."""
        ...


class RoundRobin:
    """The next replica that is up, in turn."""

    def __init__(self) -> None:
        self._last = -1

    def pick(self, request: Request, keys: SequenceOf[int], up: SequenceOf[int], look: Look) -> int:
        self._last = next((replica for replica in up if replica > self._last), up[0])
        return self._last

    def forget(self, replica: int) -> None:
        pass


class LeastTokens:
    """The replica with the fewest tokens not answered yet; the first among equals."""

    def pick(self, request: Request, keys: SequenceOf[int], up: SequenceOf[int], look: Look) -> int:
        return min(up, key=lambda replica: look(replica).tokens)

    def forget(self, replica: int) -> None:
        pass


class PowerOfTwo:
    """Of two drawn at random (seeded) the one with fewer tokens not answered yet."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, request: Request, keys: SequenceOf[int], up: SequenceOf[int], look: Look) -> int:
        if len(up) == 1:
            return up[0]
        return min(sorted(self._random.sample(up, 2)), key=lambda replica: look(replica).tokens)

    def forget(self, replica: int) -> None:
        pass


class Weighted:
    """Fixed shares (seeded draws) among the replicas that are up."""

    def __init__(self, weights: SequenceOf[float], seed: int) -> None:
        self._weights = list(weights)
        self._random = random.Random(seed)

    def pick(self, request: Request, keys: SequenceOf[int], up: SequenceOf[int], look: Look) -> int:
        weights = [self._weights[replica] for replica in up]
        return self._random.choices(up, weights if any(weights) else None)[0]

    def forget(self, replica: int) -> None:
        pass


class PrefixAffinity:
    """The replica that was sent the longest part of this prompt's prefix, unless it has more than ``spread`` times the least
    load and ``slack`` tokens; else the least loaded, among equals the one that holds the fewest prefixes.

    Of what was sent to a replica, ``blocks`` prefix blocks are remembered, those sent last: as many as its cache can hold at
    most. A prefix is remembered at few of its blocks (``anchors``), so that a decision costs the logarithm of its length.
    """

    def __init__(self, blocks: int, *, spread: float = 2.0, slack: int = 8192) -> None:
        self._blocks = max(blocks, 1)
        self._spread = spread
        self._slack = slack
        self._sent: dict[int, OrderedDict[int, int]] = {}
        self._held: dict[int, int] = {}

    def pick(self, request: Request, keys: SequenceOf[int], up: SequenceOf[int], look: Look) -> int:
        marks = anchors(keys)
        best = least = up[0]
        fewest, fullest, longest, seen = 1 << 62, 0, 0, []
        for replica in up:
            candidate = look(replica)
            known = candidate.hit_blocks = self._matched(replica, marks)
            held = self._held.get(replica, 0)
            if candidate.tokens < fewest or (candidate.tokens == fewest and held < fullest):
                least, fewest, fullest = replica, candidate.tokens, held
            if known:
                seen.append((known, candidate.tokens, replica))
        best, limit = least, fewest * self._spread + self._slack
        fewest = 1 << 62
        for known, tokens, replica in seen:
            if tokens <= limit and (known > longest or (known == longest and tokens < fewest)):
                best, longest, fewest = replica, known, tokens
        self._remember(best, marks)
        return best

    def forget(self, replica: int) -> None:
        self._sent.pop(replica, None)
        self._held.pop(replica, None)

    def _matched(self, replica: int, marks: SequenceOf[tuple[int, int]]) -> int:
        """Leading blocks that were sent to ``replica``. A prefix is remembered up to where it was forgotten from its end, so
        it is bisected."""
        sent = self._sent.get(replica)
        if not sent or not marks or marks[0][1] not in sent:
            return 0
        low, high = 0, len(marks) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if marks[middle][1] in sent:
                low = middle
            else:
                high = middle - 1
        return marks[low][0]

    def _remember(self, replica: int, marks: SequenceOf[tuple[int, int]]) -> None:
        sent = self._sent.setdefault(replica, OrderedDict())
        held = self._held.get(replica, 0)
        for i in range(len(marks) - 1, -1, -1):  # the end is the first to be forgotten
            count, key = marks[i]
            if key in sent:
                sent.move_to_end(key)
            else:
                sent[key] = count - (marks[i - 1][0] if i else 0)
                held += sent[key]
        while held > self._blocks and len(sent) > 1:
            held -= sent.popitem(last=False)[1]
        self._held[replica] = held


def _grid() -> tuple[int, ...]:
    counts = [1]
    while counts[-1] < 1 << 24:
        counts.append(counts[-1] + max(1, counts[-1] // 8))
    return tuple(counts)


_GRID = _grid()
"""Lengths, in blocks, at which prefixes are compared: all up to 16, then each an eighth longer than the one before."""


def anchors(keys: SequenceOf[int]) -> list[tuple[int, int]]:
    """``(blocks, key)`` of a prefix at the lengths of the grid that it reaches; a key stands for all before it too."""
    runs = BlockKeys.of(keys).runs
    marks: list[tuple[int, int]] = []
    at = 0
    for _, end, shift in runs:
        while _GRID[at] <= end:
            marks.append((_GRID[at], _GRID[at] - 1 + shift))
            at += 1
    return marks


def make_router(text: str, replicas: int, *, seed: int = 0, blocks: int = 1) -> Router:
    """A router by name, for ``replicas`` with a KV cache of ``blocks`` blocks each. ``ConfigError`` for an unknown one, or for
    weights that do not fit the replicas."""
    name, _, rest = text.partition("(")
    if name == "weighted":
        try:
            weights = [float(part) for part in rest.rstrip(")").split(",")]
        except ValueError:
            weights = []
        if len(weights) != replicas or not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
            raise ConfigError(f"router = {text}: expected weighted(w1,...) with {replicas} weights of at least 0, not all 0")
        return Weighted(weights, seed)
    made: dict[str, Callable[[], Router]] = {
        "round_robin": RoundRobin,
        "least_tokens": LeastTokens,
        "power_of_two": lambda: PowerOfTwo(seed),
        "prefix_affinity": lambda: PrefixAffinity(blocks),
    }
    if text not in made:
        raise ConfigError(f"router = {text}: unknown; expected one of {', '.join(ROUTERS)}")
    return made[text]()

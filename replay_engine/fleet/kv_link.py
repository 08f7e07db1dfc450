"""The link over which one prefill engine's KV leaves: transfers in the order in which they were asked for, and its failures.

It owns no clock: whoever drives it says when something is asked for, ends, or fails, in time order. A transfer's end is known
when it starts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from replay_engine.pd_rules import KvLinkRules

__all__ = ["KvLink", "Transfer"]


class Transfer:
    """KV of ``blocks`` blocks (``size`` bytes) on its way to decode engine ``target``, which has ``hit_blocks`` more.

    ``start_ns`` and ``end_ns`` are those of ``attempt`` (from 1 on), -1 until it starts; ``end_ns`` is when it ends if nothing
    comes between.
    """

    __slots__ = ("asked_ns", "attempt", "blocks", "end_ns", "hit_blocks", "request", "size", "source", "start_ns", "target")

    def __init__(self, request: int, source: int, target: int, blocks: int, size: int, asked_ns: int) -> None:
        self.request = request
        self.source = source
        self.target = target
        self.blocks = blocks
        self.size = size
        self.asked_ns = asked_ns
        self.attempt = 1
        self.hit_blocks = 0
        self.start_ns = self.end_ns = -1


class KvLink:
    """``running`` transfers, at most ``concurrent`` (0: any number) at a time, each at full bandwidth; the rest wait.

    ``copy``: moves a transfer's KV when it starts and says how long that took (ns), in place of bandwidth and latency.
    """

    __slots__ = ("_concurrent", "_copy", "_latency_ns", "_per_ns", "_waiting", "down", "running")

    def __init__(self, rules: KvLinkRules, copy: Callable[[Transfer], int] | None = None) -> None:
        self._copy = copy
        self._per_ns = rules.bandwidth
        self._latency_ns = round(rules.latency_s * 1e9)
        self._concurrent = rules.concurrent
        self._waiting: deque[Transfer] = deque()
        self.running: dict[Transfer, None] = {}
        self.down = False

    def __len__(self) -> int:
        """Transfers that run or wait."""
        return len(self.running) + len(self._waiting)

    def duration_ns(self, size: int) -> int:
        """How long ``size`` bytes take. Nothing at all takes no time."""
        return self._latency_ns + round(size / self._per_ns) if size else 0

    def ask(self, transfer: Transfer, now: int) -> list[Transfer]:
        """``transfer`` is wanted at ``now`` (ns). Returns who starts now."""
        self._waiting.append(transfer)
        return self._start(now)

    def finish(self, transfer: Transfer, now: int) -> list[Transfer]:
        """``transfer`` has ended at ``now``. Returns who starts now."""
        del self.running[transfer]
        return self._start(now)

    def drop(self, transfer: Transfer, now: int) -> list[Transfer]:
        """Nobody wants ``transfer`` any more, whether it runs or waits. Returns who starts now in its place."""
        if transfer in self.running:
            del self.running[transfer]
        elif transfer in self._waiting:
            self._waiting.remove(transfer)
        return self._start(now)

    def fail(self) -> list[Transfer]:
        """The link goes down: what runs is broken off, and stands first in line for when it is back. Returns what ran."""
        self.down = True
        broken = list(self.running)
        self.running = {}
        for transfer in reversed(broken):
            transfer.attempt += 1
            transfer.start_ns = transfer.end_ns = -1
            self._waiting.appendleft(transfer)
        return broken

    def back(self, now: int) -> list[Transfer]:
        """The link is up again at ``now``. Returns who starts now."""
        self.down = False
        return self._start(now)

    def _start(self, now: int) -> list[Transfer]:
        started: list[Transfer] = []
        while self._waiting and not self.down and not 0 < self._concurrent <= len(self.running):
            transfer = self._waiting.popleft()
            took = self.duration_ns(transfer.size) if self._copy is None else self._copy(transfer)
            transfer.start_ns, transfer.end_ns = now, now + took
            self.running[transfer] = None
            started.append(transfer)
        return started

"""A plain per-sequence continuous-batching loop written for speed: what the O(changes) scheduler is measured against.

Every iteration looks at every running sequence once. Caching off, first come first served, synchronous, counters only, no
event log; decisions and times are those of the full scheduler under the same limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

__all__ = ["Latency", "lean_replay"]

Latency = Callable[[int, int, int, int], int]
"""(prefill tokens, sum of query * context + query**2 // 2, decoding sequences, sum of their KV after the iteration) -> ns."""


class _Seq:
    """``comp`` of ``known`` tokens computed, ``room`` tokens fit the held blocks, done when ``total`` are computed."""

    __slots__ = ("comp", "decoding", "index", "known", "room", "total")

    def __init__(self, index: int, prompt: int, output: int) -> None:
        self.index = index
        self.known = prompt
        self.total = prompt + output - 1
        self.comp = self.room = 0
        self.decoding = False


def lean_replay(
    arrival_ns: Sequence[int],
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    budget: int,
    max_seqs: int,
    blocks: int,
    block_size: int,
    latency: Latency,
) -> tuple[list[int], list[int], int]:
    """Replay requests sorted by arrival. Returns per request the times (ns) of its first and last token, and the iterations.

    ``blocks`` counts usable KV blocks (one less than ``num_gpu_blocks``); every request must fit them alone.
    """
    count = len(arrival_ns)
    first_ns, end_ns = [-1] * count, [-1] * count
    running: list[_Seq] = []
    waiting: deque[_Seq] = deque()
    free, now, arrived, iterations = blocks, 0, 0, 0
    while running or waiting or arrived < count:
        if not running and not waiting and arrival_ns[arrived] > now:
            now = arrival_ns[arrived]
        while arrived < count and arrival_ns[arrived] <= now:
            waiting.append(_Seq(arrived, prompt[arrived], output[arrived]))
            arrived += 1
        left, prefill, qk, decodes, decode_kv = budget, 0, 0, 0, 0
        sampled: list[_Seq] = []
        finishing = preempted = False
        for seq in running:  # the victim is always the last: the iterator sees the list shrink
            if left == 0:
                break
            comp = seq.comp
            tokens = 1 if seq.decoding else min(seq.known - comp, left)
            if comp + tokens > seq.room:
                need = -(-(comp + tokens - seq.room) // block_size)
                while need > free and running[-1] is not seq:
                    victim = running.pop()
                    preempted = True
                    free += victim.room // block_size
                    victim.known = max(victim.known, victim.comp + victim.decoding)
                    victim.comp = victim.room = 0
                    victim.decoding = False
                    waiting.appendleft(victim)
                if need > free:
                    running.pop()
                    preempted = True
                    free += seq.room // block_size
                    seq.known = max(seq.known, comp + seq.decoding)
                    seq.comp = seq.room = 0
                    seq.decoding = False
                    waiting.appendleft(seq)
                    break
                free -= need
                seq.room += need * block_size
            left -= tokens
            seq.comp = comp = comp + tokens
            if seq.decoding:
                decodes += 1
                decode_kv += comp
            else:
                prefill += tokens
                qk += tokens * (comp - tokens) + tokens * tokens // 2
                if comp == seq.known:
                    sampled.append(seq)
            if comp == seq.total:
                finishing = True
        while waiting and left and len(running) < max_seqs and not preempted:
            seq = waiting[0]
            if -(-seq.known // block_size) > free:
                break
            seq.comp = tokens = min(seq.known, left)
            need = -(-tokens // block_size)
            free -= need
            seq.room = need * block_size
            left -= tokens
            prefill += tokens
            qk += tokens * tokens // 2
            if tokens == seq.known:
                sampled.append(seq)
                finishing |= tokens == seq.total
            running.append(waiting.popleft())
        now += latency(prefill, qk, decodes, decode_kv)
        iterations += 1
        for seq in sampled:
            seq.decoding = True
            if first_ns[seq.index] < 0:
                first_ns[seq.index] = now
        if finishing:
            for seq in running:
                if seq.comp == seq.total:
                    end_ns[seq.index] = now
                    free += seq.room // block_size
            running = [seq for seq in running if seq.comp < seq.total]
    return first_ns, end_ns, iterations

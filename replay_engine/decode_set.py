"""The standing set of decoding sequences: nothing is written per token.

A member that has computed ``c`` tokens after iteration ``s`` keeps ``origin = s - c``; after ``schedule(it)`` it has computed
exactly ``it - origin``. It needs a KV block when that count was a multiple of the block size, so members lie in a cyclic
calendar of block growth; the iteration of a member's last token is known when it joins, so they lie in a calendar of finishes.
"""

from __future__ import annotations

from replay_engine.shares import FairShares
from replay_engine.types import SeqState, Sequence

__all__ = ["DecodeSet"]

_DECODE = int(SeqState.DECODE)


class DecodeSet:
    """Members, their sums, and the two calendars. ``count`` sequences hold ``kv`` computed tokens in all."""

    __slots__ = ("buckets", "calendar", "count", "kv", "newest", "shares", "size")

    def __init__(self, block_size: int, shares: FairShares | None = None) -> None:
        self.size = block_size
        self.shares = shares
        self.count = 0
        self.kv = 0
        self.newest = -1
        """Highest ticket that ever joined: stale-high values only cost a needless walk."""
        self.buckets: list[dict[int, Sequence]] = [{} for _ in range(block_size)]
        self.calendar: dict[int, list[Sequence]] = {}

    def join(self, seq: Sequence, iteration: int) -> None:
        """``seq`` has computed all its known tokens in ``iteration`` and decodes from the next one on. Its first token is not
        the set's: ``shares`` are told of both by the caller."""
        comp = seq.comp
        origin = seq.origin = iteration - comp
        seq.state = _DECODE
        self.count += 1
        self.kv += comp
        if seq.ticket > self.newest:
            self.newest = seq.ticket
        self.buckets[(origin + 1) % self.size][seq.ticket] = seq
        end = seq.leaves_at = origin + seq.total
        leaving = self.calendar.get(end)
        if leaving is None:
            self.calendar[end] = [seq]
        else:
            leaving.append(seq)

    def leave(self, seq: Sequence, comp: int, served: int) -> None:
        """``seq`` leaves with ``comp`` computed tokens, ``served`` being its last iteration; a stale calendar entry is
        recognised by
        ``leaves_at``."""
        self.count -= 1
        self.kv -= comp
        del self.buckets[(seq.origin + 1) % self.size][seq.ticket]
        seq.leaves_at = -1
        seq.comp = comp
        if self.shares is not None:
            self.shares.left(seq, served)

    def beside(self, comp: int, iteration: int) -> None:
        """A decode that is not (or no longer) a member has ``comp`` computed tokens in ``iteration``: nothing to this set."""

    def retire(self, iteration: int) -> list[Sequence]:
        """Members whose last token is computed in ``iteration``, removed, in ticket order."""
        due = self.calendar.pop(iteration, None)
        if due is None:
            return []
        gone = []
        for seq in due:
            if seq.leaves_at == iteration:  # and not filed twice, as when it lost its seat and got it back within an iteration
                seq.comp = seq.total
                self.count -= 1
                self.kv -= seq.total
                del self.buckets[(seq.origin + 1) % self.size][seq.ticket]
                seq.leaves_at = -1
                if self.shares is not None:
                    self.shares.left(seq, iteration)
                gone.append(seq)
        if len(gone) > 1:
            gone.sort(key=_ticket)
        return gone


def _ticket(seq: Sequence) -> int:
    return seq.ticket

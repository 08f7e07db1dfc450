"""What carries a sequence's KV from one engine to another where it is real; the simulator only says how long that takes."""

from __future__ import annotations

from typing import Protocol

from replay_engine.types import Sequence

__all__ = ["KvConnector"]


class KvConnector(Protocol):
    """Engines are numbered through, prefill engines first, as in the rows."""

    def move(self, source: int, past: Sequence, target: int, seq: Sequence, blocks: int) -> int:
        """Copy ``blocks`` blocks of ``past``, computed on engine ``source``, into those of ``seq`` on engine ``target``, which
        has the first ``seq.fetch_hit`` already. Returns how long it took, ns."""
        ...

    def sampled(self, source: int, seq: Sequence) -> int:
        """The token that prefill engine ``source`` has sampled for ``seq``. Asked once."""
        ...

    def tell(self, target: int, request: int, token: int) -> None:
        """Engine ``target`` goes on with ``request`` behind its first output ``token``, whose KV it computes itself."""
        ...

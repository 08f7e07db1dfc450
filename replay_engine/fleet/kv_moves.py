"""All links of a replay with separate pools, one a prefill engine, and the rows that say what went over them."""

from __future__ import annotations

from collections.abc import Callable

from replay_engine.fleet.kv_link import KvLink, Transfer
from replay_engine.pd_rules import KvLinkRules
from replay_engine.rows import RowBuffer
from replay_engine.tables import TransferEnd
from replay_engine.types import EventSink

__all__ = ["KvMoves"]


class KvMoves:
    """Moves between ``sources`` prefill engines and decode engines, which are numbered after them. ``sink``: where rows go by
    engine, ``None``: nowhere; ``copy``: see ``KvLink``."""

    __slots__ = ("_rows", "links")

    def __init__(
        self, rules: KvLinkRules, sources: int, sink: Callable[[int], EventSink] | None,
        copy: Callable[[Transfer], int] | None = None,
    ) -> None:  # fmt: skip
        self.links = [KvLink(rules, copy) for _ in range(sources)]
        self._rows = [] if sink is None else [RowBuffer("transfers", sink(i).append) for i in range(sources)]

    def ask(self, transfer: Transfer, at: int) -> list[Transfer]:
        """``transfer`` is wanted at ``at`` (ns). Returns who starts now."""
        return self.links[transfer.source].ask(transfer, at)

    def finish(self, transfer: Transfer, at: int) -> list[Transfer] | None:
        """``transfer`` was to end at ``at``. Returns who starts now; ``None``: it had been broken off."""
        link = self.links[transfer.source]
        if transfer not in link.running or transfer.end_ns != at:
            return None
        self._write(transfer, at, TransferEnd.done)
        return link.finish(transfer, at)

    def drop(self, transfer: Transfer, at: int, why: TransferEnd) -> list[Transfer]:
        """``transfer`` is not wanted any more. Returns who starts now."""
        if transfer in self.links[transfer.source].running:
            self._write(transfer, at, why)
        return self.links[transfer.source].drop(transfer, at)

    def flush(self) -> None:
        """All rows reach their sinks."""
        for rows in self._rows:
            rows.flush()

    def _write(self, transfer: Transfer, at: int, ended: TransferEnd) -> None:
        if self._rows:
            self._rows[transfer.source].add(
                transfer.asked_ns, transfer.start_ns, at, transfer.size, transfer.request, transfer.source,
                len(self.links) + transfer.target, transfer.blocks, transfer.hit_blocks, transfer.attempt, int(ended),
            )  # fmt: skip

    @property
    def down(self) -> bool:
        """Whether the links are down: they fail and come back together."""
        return self.links[0].down

    def fail(self, at: int) -> None:
        """The links go down at ``at``; what ran on them starts over when they are back."""
        for link in self.links:
            for transfer in link.running:
                self._write(transfer, at, TransferEnd.link_failed)
            link.fail()

    def back(self, at: int) -> list[Transfer]:
        """The links are up again at ``at``. Returns who starts now."""
        return [transfer for link in self.links for transfer in link.back(at)]

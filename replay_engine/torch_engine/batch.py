"""The persistent batch: which sequence has which row of the device's tables, kept up to date by the plans' deltas.

Everything an iteration needs to know goes to the device as one packed int32 buffer. Decoding sequences cost no Python each:
their positions advance by one vector operation. On the device a row has a block table and the tokens it has sampled; prompt
tokens come from the host, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from replay_engine.types import BatchPlan, PrefillEntry, Request, SeqState, Sequence

__all__ = ["Layout", "PersistentBatch", "TableSizes", "emptied"]

_DECODE, _GONE = int(SeqState.DECODE), int(SeqState.GONE)
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSizes:
    """``rows`` of the device's tables, row 0 being for padding; ``blocks`` of the longest sequence, and its
    sampled ``tokens``."""

    rows: int
    blocks: int
    tokens: int


@dataclass(slots=True, kw_only=True)
class Layout:
    """Where the parts of an iteration's packed buffer lie, and what the host knows of them.

    The buffer: four arrays of ``tokens`` (codes, rows, positions, keys), then ``entries + 1`` query starts, ``entries`` rows and
    ``entries`` KV lengths, then ``samples`` packed rows, targets and keys (only beside entries), then ``updates`` cells and
    values of the block table, then ``void`` blocks. The first ``decodes`` tokens are decodes, ``padding`` of them nobody's.
    A code is a token id, or ``-1 - cell`` of the table of sampled tokens.
    """

    decodes: int = 0
    padding: int = 0
    tokens: int = 0
    entries: int = 0
    samples: int = 0
    updates: int = 0
    void: int = 0
    decode_blocks: int = 0
    prefill_blocks: int = 0
    max_query_len: int = 0

    @property
    def size(self) -> int:
        """Elements of the buffer."""
        head = 4 * self.tokens + (3 * self.entries + 1 + 3 * self.samples if self.entries else 0)
        return head + 2 * self.updates + self.void


class PersistentBatch:
    """Rows, the decode set in batch order, and the packing of one iteration.

    ``ids_of`` gives a request's prompt tokens (int32) when it is first admitted; they are kept as long as its row.
    """

    def __init__(self, sizes: TableSizes, block_size: int, ids_of: Callable[[Request], Ints]) -> None:
        self.sizes = sizes
        self.order: list[Sequence] = []
        """Decoding sequences; a position of this list is a packed row."""
        self._size = block_size
        self._ids_of = ids_of
        self._place: dict[Sequence, int] = {}
        self._row: dict[Sequence, int] = {}
        self._prompt: dict[Sequence, Ints] = {}
        self.told: dict[int, int] = {}
        """First output tokens that other engines have sampled, by request, until it has its row: known as the prompt's are."""
        self._free = list(range(sizes.rows - 1, 0, -1))
        self._ending: list[Sequence] = []
        self.table = np.zeros((sizes.rows, sizes.blocks), np.int32)
        """The host's copy of the block tables."""
        self._sent = [0] * sizes.rows
        self._head = np.zeros((4, sizes.rows), np.int32)
        """Codes, rows, positions and keys of the decodes, in batch order, as of ``_steps`` iterations ago: with each one codes
        fall and positions rise by 1."""
        self._steps = 0
        self._plain: Layout | None = None
        """Of an iteration that only decodes, while nothing changes."""
        self._growing: list[dict[Sequence, int]] = [{} for _ in range(block_size)]
        """Decodes by the iteration, modulo the block size, in which they take a block; with the number of that block."""
        self._phase: dict[Sequence, int] = {}
        self._ahead: int | None = None
        self._cells, self._blocks = list[int](), list[int]()

    def blocks_of(self, seq: Sequence, tokens: int) -> list[int]:
        """Blocks that hold the first ``tokens`` tokens of ``seq``, as the device last knew them, freed ones included."""
        found: list[int] = self.table[self._row[seq], : -(-tokens // self._size)].tolist()
        return found

    def follow(self, plan: BatchPlan) -> None:
        """Take over what changed since the last plan."""
        self._cells, self._blocks = [], []
        self._steps = self._steps + 1 if self.order else 0
        if plan.joined or plan.left:
            for seq in plan.joined:
                self._join(seq, plan.iteration)
            for seq in plan.left:
                self._leave(seq)
            self._changed()
        for seq in self._ending:
            self._forget(seq)
        self._ending = list(plan.finishing)
        for seq, _, _ in plan.admitted:
            if seq not in self._row:
                self._give_row(seq)
            self._sent[self._row[seq]] = 0
        for seq, _ in plan.loading:  # who may be swapped out again before it computes anything
            self._send_blocks(seq, seq.comp)
        growing = self._growing[plan.iteration % self._size]
        if growing:
            self._changed()
            self._grow_blocks(growing)

    def _changed(self) -> None:
        self._plain = self._ahead = None

    def _longest(self) -> int:
        if self._ahead is None:
            self._ahead = int(self._head[2, : len(self.order)].max()) + 1
        return self._ahead + self._steps

    def longest(self, plan: BatchPlan) -> int:
        """The longest context that decodes in ``plan``, its new token counted; 0: nobody does."""
        found = self._longest() if self.order else 0
        return max([found, *(entry.kv_len for entry in plan.prefill if entry.decode)])

    def _grow_blocks(self, growing: dict[Sequence, int]) -> None:
        """Decodes that have filled their last block got another one."""
        width, table, sent = self.sizes.blocks, self.table, self._sent
        for seq, block in growing.items():
            row, found = self._row[seq], seq.blocks[block]
            table[row, block] = found
            self._cells.append(row * width + block)
            self._blocks.append(found)
            sent[row] = growing[seq] = block + 1

    def _join(self, seq: Sequence, iteration: int) -> None:
        place = self._place[seq] = len(self.order)
        self.order.append(seq)
        row, position = self._row[seq], iteration - seq.origin - 1
        code = -1 - self._cell(row, position - seq.prompt_tokens)
        self._head[:, place] = code + self._steps, row, position - self._steps, seq.index
        phase = self._phase[seq] = (seq.origin + 1) % self._size
        self._growing[phase][seq] = -(-position // self._size)

    def _leave(self, seq: Sequence) -> None:
        """The last of the batch takes the place of ``seq``."""
        place = self._place.pop(seq)
        del self._growing[self._phase.pop(seq)][seq]
        last = self.order.pop()
        if last is not seq:
            self.order[place] = last
            self._place[last] = place
            self._head[:, place] = self._head[:, len(self.order)]

    def _cell(self, row: int, token: int) -> int:
        return row * self.sizes.tokens + token

    def _give_row(self, seq: Sequence) -> None:
        if not self._free:
            for other in [other for other in self._row if other.state == _GONE and other not in self._place]:
                self._forget(other)
        if not self._free:
            self._grow()
        if -(-seq.total // self._size) > self.sizes.blocks or seq.output_limit > self.sizes.tokens:
            raise RuntimeError(f"request {seq.index} is longer than the longest the engine was told of")
        self._row[seq] = self._free.pop()
        ids = self._ids_of(seq.request)
        told = self.told.pop(seq.index, None)
        self._prompt[seq] = ids if told is None else np.append(ids, np.int32(told))

    def _grow(self) -> None:
        """Twice the rows: urgent arrivals can preempt more sequences than there are seats, and all keep their sampled tokens."""
        rows = self.sizes.rows
        self.sizes = replace(self.sizes, rows=2 * rows)
        self._free = list(range(2 * rows - 1, rows - 1, -1))
        self.table = np.concatenate((self.table, np.zeros_like(self.table)))
        self._sent += [0] * rows
        self._head = np.concatenate((self._head, np.zeros_like(self._head)), axis=1)
        self._changed()

    def _forget(self, seq: Sequence) -> None:
        row = self._row.pop(seq, None)
        if row is not None:
            self._free.append(row)
            del self._prompt[seq]

    def _send_blocks(self, seq: Sequence, kv_len: int) -> None:
        """The device learns the blocks of ``seq`` up to ``kv_len`` tokens."""
        row, until = self._row[seq], -(-kv_len // self._size)
        known = self._sent[row]
        if until <= known:
            return
        new = seq.blocks[known:until]
        self.table[row, known:until] = new
        first = row * self.sizes.blocks
        self._cells += range(first + known, first + until)
        self._blocks += new
        self._sent[row] = until

    def lay_out(self, plan: BatchPlan, bucket: int, void: list[int]) -> Layout:
        """The layout of ``plan``'s iteration, its decodes padded to ``bucket`` rows (at least their number). The very one of the
        iteration before where only codes and positions differ from it, each code 1 less and each position 1 more."""
        plain = not plan.prefill and not void and not self._cells
        if plain and self._plain is not None and self._plain.decodes == bucket:
            return self._plain
        real = len(self.order)
        layout = Layout(decodes=bucket, padding=bucket - real, void=len(void))
        if real:
            layout.decode_blocks = -(-self._longest() // self._size)
        tokens = bucket
        for entry in plan.prefill:
            self._send_blocks(entry.seq, entry.kv_len)
            tokens += entry.query_len
            layout.max_query_len = max(layout.max_query_len, entry.query_len)
            layout.prefill_blocks = max(layout.prefill_blocks, -(-entry.kv_len // self._size))
        layout.tokens, layout.entries, layout.updates = tokens, len(plan.prefill), len(self._cells)
        if plan.prefill:
            layout.samples = len(self.order) + len(plan.sampled)
        self._plain = layout if plain else None
        return layout

    def pack(self, plan: BatchPlan, layout: Layout, void: list[int], out: Ints) -> None:
        """Fill the packed buffer ``out`` [layout.size]."""
        n, tokens, real, steps = layout.decodes, layout.tokens, len(self.order), self._steps
        head = out[: 4 * tokens].reshape(4, tokens)
        head[:, :real] = self._head[:, :real]
        head[0, :real] -= steps
        head[2, :real] += steps
        if n > real:
            head[:, real:n] = 0
            head[2, real:n] = -1
        at = 4 * tokens
        if layout.entries:
            at = _pack_entries(self, plan, layout, head, out)
        rest = self._cells + self._blocks + void
        if rest:
            out[at : at + len(rest)] = rest

    def sampling(self, plan: BatchPlan) -> Ints:
        """Request indices of the tokens that ``plan`` samples, in the order of its samples."""
        keys = self._head[3, : len(self.order)].copy()
        return np.concatenate((keys, np.array([s.index for s in plan.sampled], np.int32))) if plan.sampled else keys


def emptied(batch: PersistentBatch) -> PersistentBatch:
    """A batch of the same extent that knows nobody."""
    return PersistentBatch(batch.sizes, batch._size, batch._ids_of)


def _pack_entries(batch: PersistentBatch, plan: BatchPlan, layout: Layout, head: Ints, out: Ints) -> int:
    """Everything beside ``head`` that prefill entries bring; returns where it ends."""
    count, samples, real = layout.entries, layout.samples, len(batch.order)
    at = 4 * layout.tokens
    starts, rows, lens = out[at : at + count + 1], out[at + count + 1 : at + 2 * count + 1], out[at + 2 * count + 1 :]
    at += 3 * count + 1
    packed, targets, keys = (out[at + k * samples : at + (k + 1) * samples] for k in range(3))
    packed[:real] = np.arange(real)
    targets[:real], keys[:real] = -head[0, :real], head[3, :real]
    where = layout.decodes
    starts[0] = 0
    sample = real
    sampled = set(plan.sampled)
    for i, entry in enumerate(plan.prefill):
        seq, row = entry.seq, batch._row[entry.seq]
        end = where + entry.query_len
        _pack_tokens(head[:, where:end], entry, row, batch._prompt[seq], batch.sizes.tokens)
        starts[i + 1], rows[i], lens[i] = end - layout.decodes, row, entry.kv_len
        if seq in sampled:
            packed[sample], keys[sample] = end - 1, seq.index
            targets[sample] = batch._cell(row, entry.kv_len - seq.prompt_tokens)
            sample += 1
        where = end
    return at + 3 * samples


def _pack_tokens(head: Ints, entry: PrefillEntry, row: int, prompt: Ints, width: int) -> None:
    """An entry's tokens: its ``prompt``'s (and what another engine sampled) by id, tokens it sampled (and recomputes now) by
    their cell; ``width`` cells a row."""
    low, high, own = entry.kv_len - entry.query_len, entry.kv_len, len(prompt)
    known = max(min(high, own) - low, 0)
    head[0, :known] = prompt[low : low + known]
    if known < entry.query_len:
        first = row * width + low + known - entry.seq.prompt_tokens
        head[0, known:] = np.arange(-1 - first, -1 - first - (entry.query_len - known), -1)
    head[1], head[3] = row, entry.seq.index
    head[2] = np.arange(low, high)

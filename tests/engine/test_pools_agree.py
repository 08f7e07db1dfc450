"""The pool that keeps runs of blocks gives the same answers as the one that keeps every block, call by call."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.config import SchedulerConfig
from replay_engine.kv_counted import BlockPool
from replay_engine.kv_identified import IdentifiedPool
from replay_engine.kv_traced import TracedPool
from replay_engine.loop import Replay
from replay_engine.prefix import BlockKeys, block_keys
from replay_engine.profile import Latency
from replay_engine.simulator import SimExecutor
from replay_engine.sinks import MemorySink
from replay_engine.types import PrefixRuns, Request, Sequence
from tests.engine.traffic import Row, RowSource, schedulers, traffic

__all__: list[str] = []


def chains(rng: random.Random, size: int) -> list[tuple[int, list[int]]]:
    """Prompt lengths, and the keys of all full blocks each request may compute; equal keys mean equal prefixes. New content gets
    consecutive keys or scattered ones."""
    made: list[tuple[int, list[int]]] = []
    step, fresh = rng.choice((1, 1, 7)), 0
    for _ in range(rng.randint(2, 40)):
        keys: list[int] = []
        if made and rng.random() < 0.8:
            other = rng.choice(made)[1]
            keys = other[: rng.randint(0, len(other))]
        for _ in range(rng.randint(0 if keys else 1, rng.choice((2, 12)))):
            keys.append(fresh)
            fresh += step
        fresh += rng.randint(0, 3)
        made.append((rng.randint(1, size * len(keys) + size - 1), keys))
    rng.shuffle(made)
    return made


class Twin:
    """One request in both pools."""

    def __init__(self, pair: Pair, index: int, prompt: int, keys: list[int], shareable: list[int]) -> None:
        request = Request(index=index, request_id=str(index), arrival_ns=0, prompt_tokens=prompt, output_tokens=10_000)
        self.seqs = (Sequence(request, 10_000), Sequence(request, 10_000))
        self.most = len(keys) * pair.size + pair.size - 1
        self.waits = True
        self.comp = 0
        self.in_use = 0
        pair.pools[0].bind(self.seqs[0], keys)
        pair.pools[1].bind(self.seqs[1], shareable)


class Pair:
    """Both pools, and what is true of them after each call."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.size = rng.choice((1, 2, 3))
        content = chains(rng, self.size)
        longest = max(len(keys) for _, keys in content) + 1
        blocks = longest + rng.randint(0, 2 * longest)
        real = IdentifiedPool(blocks, self.size, 0, caching=True)
        self.pools: tuple[BlockPool, BlockPool] = (real, TracedPool(blocks, self.size, 0))
        seen = Counter(key for _, keys in content for key in keys)
        self.twins = []
        for index, (prompt, keys) in enumerate(content):
            shared = next((at for at, key in enumerate(keys) if seen[key] < 2), len(keys))
            self.twins.append(Twin(self, index, prompt, keys, keys[:shared]))

    def agree(self, changes: int | None) -> None:
        one, two = self.pools
        assert (one.free, one.blank, one.evicted) == (two.free, two.blank, two.evicted)
        running = [twin for twin in self.twins if not twin.waits]
        entries = [
            pool.entries([(twin.seqs[k], twin.comp // self.size) for twin in running]) for k, pool in enumerate(self.pools)
        ]
        assert entries[0] == entries[1]
        for twin in self.twins:
            if twin.waits:
                found = [pool.hits(seq) for pool, seq in zip(self.pools, twin.seqs, strict=True)]
                assert found[0] == found[1]
                in_use = found[0][0] - found[0][1]
                assert changes is None or in_use - twin.in_use <= two.changes - changes, "what may raise in-use hits is counted"
                twin.in_use = in_use

    def step(self) -> None:
        twin = self.rng.choice(self.twins[: self.size * 4])
        changes: int | None = self.pools[1].changes
        if twin.waits:
            self.admit(twin)
            changes = None  # whoever is admitted may hold what only was cached
        elif self.rng.random() < 0.8:
            self.compute(twin)
        else:
            self.release(twin, resumes=twin.comp < twin.most and self.rng.random() < 0.5)
        self.agree(changes)

    def admit(self, twin: Twin) -> None:
        hit, revived = self.pools[0].hits(twin.seqs[0])
        self.pools[1].hits(twin.seqs[1])
        left = twin.seqs[0].nt - hit * self.size
        tokens = self.rng.randint(1, left) if self.rng.random() < 0.5 else left
        need = -(-(hit * self.size + tokens) // self.size) - hit
        if need + revived > self.pools[0].free:
            return
        for pool, seq in zip(self.pools, twin.seqs, strict=True):
            pool.adopt(seq)
            assert seq.nblocks == hit
        twin.waits, twin.comp = False, hit * self.size
        self.compute(twin, tokens)

    def compute(self, twin: Twin, tokens: int = 0) -> None:
        tokens = tokens or min(self.rng.choice((1, self.size, 20)), twin.most - twin.comp)
        need = -(-(twin.comp + tokens) // self.size) - twin.seqs[0].nblocks
        if tokens < 1 or need > self.pools[0].free:
            return
        twin.comp += tokens
        for pool, seq in zip(self.pools, twin.seqs, strict=True):
            if need:
                pool.grow(seq, need)
            seq.nblocks += need
            pool.commit(seq, twin.comp)

    def release(self, twin: Twin, *, resumes: bool) -> None:
        for pool, seq in zip(self.pools, twin.seqs, strict=True):
            seq.nt = twin.comp + 1
            pool.release(seq, seq.nblocks, twin.comp // self.size, resumes=resumes)
        twin.waits, twin.comp, twin.in_use = True, 0, 1 << 40
        if not resumes:  # it has ended, and nobody else has the rest of its keys
            self.twins.remove(twin)


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_same_answers_call_by_call(rng: random.Random) -> None:
    pair = Pair(rng)
    for _ in range(rng.randint(5, 80)):
        if pair.twins:
            pair.step()


@pytest.mark.parametrize("group", range(4))
def test_same_answers_to_the_end(group: int) -> None:
    for seed in range(75):
        pair = Pair(random.Random(75 * group + seed))
        while pair.twins:
            pair.step()


class Counting(IdentifiedPool):
    """The pool of one free list, whose count of blank blocks is held against the list each time it is asked for."""

    __slots__ = ()

    @property
    def blank(self) -> int:
        assert super().blank == sum(1 for block in self.free_list() if block not in self._key_of)
        return super().blank


@settings(deadline=None)
@given(schedulers(), traffic(cancels=True))
def test_blank_blocks_of_one_free_list_are_counted(config: SchedulerConfig, rows: list[Row]) -> None:
    pool = Counting(
        config.usable_blocks, config.block_size, int(config.async_scheduling), caching=config.enable_prefix_caching,
        split_free_list=False,
    )  # fmt: skip
    run = Replay(RowSource(rows), config, SimExecutor(Latency(a_ns=1000), asynchronous=config.async_scheduling), MemorySink(),
                 pool=pool)  # fmt: skip
    run.run()


@given(st.lists(st.integers(0, 12), unique=True))
def test_keys_are_kept_as_runs(keys: list[int]) -> None:
    runs = BlockKeys.of(keys)
    assert list(runs) == keys
    assert len(runs) == len(keys)
    assert len(runs.runs) == sum(1 for at, key in enumerate(keys) if not at or key != keys[at - 1] + 1)


def test_keys_end_before_one_that_comes_again() -> None:
    assert list(BlockKeys.of([5, 6, 7, 1, 6, 9])) == [5, 6, 7, 1]


def test_trace_blocks_become_engine_blocks() -> None:
    prefix = PrefixRuns(block_tokens=32, runs=((0, 10, 2), (2, 50, 3)), shared_blocks=4)
    assert list(block_keys(prefix, 1000, 16)) == [20, 21, 22, 23, 100, 101, 102, 103]
    assert list(block_keys(prefix, 87, 16)) == [20, 21, 22, 23, 100]
    assert list(block_keys(prefix, 1000, 48)) == [11 * 32 + 15, 50 * 32 + 31]


def test_a_very_long_prompt_costs_its_runs() -> None:
    """A turn of an agent: 55,000 blocks, all but a few of them there already."""
    blocks = 60_000
    pool = TracedPool(blocks, 16, 0)
    began = 0.0
    for turn in range(200):
        if turn == 1:  # the first one makes what the others find
            began = time.process_time()
        keys = BlockKeys([(0, 55_000, 0), (55_000, 55_000 + turn, 100_000 - 55_000)])
        tokens = len(keys) * 16 + 5
        seq = Sequence(Request(index=turn, request_id=str(turn), arrival_ns=0, prompt_tokens=tokens, output_tokens=1), 1)
        pool.bind(seq, keys)
        hit, _ = pool.hits(seq)
        assert hit == (55_000 + turn - 1 if turn else 0)
        pool.adopt(seq)
        pool.grow(seq, len(keys) + 1 - hit)
        pool.commit(seq, seq.prompt_tokens)
        pool.release(seq, len(keys) + 1, len(keys), resumes=False)
    assert time.process_time() - began < 0.1

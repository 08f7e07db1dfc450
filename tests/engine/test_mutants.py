"""Each known trap of O(changes) scheduling, built in on purpose, is told from the real scheduler by the oracle."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replay_engine.types import Request, Sequence
from tests.oracle.cases import BIASES, random_case
from tests.oracle.compare import Replay, difference, oracle_records, pools_for
from tests.oracle.mutants import MUTANTS, Mutant, load

__all__: list[str] = []

MOST_SEEDS = 3_000
"""Where the hinted seeds show nothing (the generator changed), so many more are tried."""


@functools.cache
def expected(seed: int, bias: str) -> list[dict[str, Any]] | None:
    return oracle_records(random_case(seed, bias))


def seeds(mutant: Mutant) -> Iterator[tuple[int, str]]:
    yield from mutant.hints
    for seed in range(MOST_SEEDS):
        yield seed, BIASES[seed % len(BIASES)]


def tells(replay: Replay, seed: int, bias: str) -> bool:
    """Whether the case of this seed shows a difference (or a crash) under some pool."""
    case, records = random_case(seed, bias), expected(seed, bias)
    if records is None:
        return False
    try:
        return any(difference(case, replay, pool, records) for pool in pools_for(case[0]))
    except Exception:  # a mutant may also fall over
        return True


@pytest.mark.parametrize("number", range(len(MUTANTS)), ids=[mutant.trap for mutant in MUTANTS])
def test_mutant_is_told(number: int, tmp_path: Path) -> None:
    mutant = MUTANTS[number]
    replay = load(tmp_path, f"mutant_{number}", "parity", mutant.changes).replay_case
    found = next(((seed, bias) for seed, bias in seeds(mutant) if tells(replay, seed, bias)), None)
    assert found is not None, f"no seed tells this mutant: {mutant.trap}"


def test_the_hinted_cases_pass_unchanged(tmp_path: Path) -> None:
    replay = load(tmp_path, "mutant_none", "parity", ()).replay_case
    for seed, bias in sorted({hint for mutant in MUTANTS for hint in mutant.hints}):
        assert not tells(replay, seed, bias), f"seed {seed}, {bias}"


def seconds_to_evict(folder: Path, name: str, changes: tuple[tuple[str, str, str], ...], blocks: int) -> float:
    """CPU time in which a pool of ``blocks`` cached blocks is handed out again one by one."""
    module = load(folder, name, "kv_identified", changes)
    pool = module.IdentifiedPool(blocks, 1, 0, caching=True)
    for start, key in ((True, 0), (False, blocks)):
        seq = Sequence(Request(index=key, request_id=str(key), arrival_ns=0, prompt_tokens=blocks, output_tokens=1), 1)
        pool.bind(seq, list(range(key, key + blocks)))
        begin = time.process_time()
        for _ in range(blocks):
            pool.grow(seq, 1)
        if start:
            pool.commit(seq, blocks)
            pool.release(seq, blocks, blocks, resumes=False)
    return time.process_time() - begin


def test_the_oldest_cached_block_is_found_at_once(tmp_path: Path) -> None:
    # Trap 9: the front of a plain dict costs as much as was ever taken from it.
    plain = (
        ("kv_identified", "from collections import OrderedDict\n", "OrderedDict = dict\n"),
        ("kv_identified", "block, _none = self._lru.popitem(last=False)", "block = next(iter(self._lru)); del self._lru[block]"),
    )
    blocks = 30_000
    assert seconds_to_evict(tmp_path, "lru_dict", plain, blocks) > 5 * seconds_to_evict(tmp_path, "lru_ordered", (), blocks)


def test_sequences_are_compared_by_identity() -> None:
    # Trap 9: they are keys of dicts in the hot path, and two of them may look alike.
    request = Request(index=0, request_id="r", arrival_ns=0, prompt_tokens=1, output_tokens=1)
    first, second = Sequence(request, 1), Sequence(request, 1)
    assert first != second
    assert len({first, second}) == 2
    assert Sequence.__hash__ is object.__hash__

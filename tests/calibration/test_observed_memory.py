"""Memory that nobody named: read from who waited and who lost their place, with what prompts share counted once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.calibration.serving import SETS, Load, served
from tracekit.calibration.observed.fit import ObservedFit, fit_observed, source_of
from tracekit.calibration.observed.limits import Limit, crowd_of
from tracekit.calibration.observed.observations import Observations
from tracekit.calibration.observed.settings import known_settings
from tracekit.calibration.observed.shared_prefix import Sharing
from tracekit.traces.load import read_trace
from tracekit.traces.source import TraceSource

__all__: list[str] = []
FEW = ("max_num_seqs=256", "max_num_batched_tokens=1024", "max_model_len=3500", *SETS[4:])
Run = tuple[int, int, int]


def limits_of(found: ObservedFit) -> dict[str, Limit]:
    return {limit.knob: limit for limit in found.limits}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> TraceSource:
    file = tmp_path_factory.mktemp("shared") / "few.jsonl"
    served(file, Load(requests=8))
    return source_of(read_trace(str(file)), known_settings(None, SETS, None))


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=3), min_size=8, max_size=8),
    cut=st.lists(st.integers(0, 12), min_size=8, max_size=8),
    there=st.sets(st.integers(0, 7)),
)
def test_what_several_hold_is_counted_once(
    source: TraceSource, prompts: list[list[tuple[int, int]]], cut: list[int], there: set[int]
) -> None:
    """Against the ids written out one by one; no prompt holds an id twice."""
    held: list[list[int]] = []
    runs: list[Run] = []
    for runs_of in prompts:
        mine: list[int] = []
        for first, length in runs_of:
            if not set(range(first, first + length)) & set(mine):
                runs.append((len(mine), first, length))
                mine += range(first, first + length)
        held.append(mine)
    offsets, at = [0], 0
    for mine in held:
        length = 0
        while length < len(mine):
            length += runs[at][2]
            at += 1
        offsets.append(at)
    source.block_tokens, source.run_offsets = 32, np.array(offsets, np.int64)
    source.run_pos, source.run_first, source.run_len = np.array(runs, np.int64).reshape(-1, 3).T
    source.shared_blocks = np.array(cut, np.int64)
    ids = [block for k in there for block in held[k][: cut[k]]]
    assert Sharing(source).repeated(np.array(sorted(there), np.int64)) == 32 * (len(ids) - len(set(ids)))


@pytest.mark.parametrize("caching", [True, False])
def test_a_crowd_holds_a_common_beginning_once(tmp_path: Path, caching: bool) -> None:
    """All memory is full of a beginning that all share; without a cache each has its own."""
    file = tmp_path / "alike.jsonl"
    sets = (*SETS[1:], "max_num_seqs=24", "trace.shared_prefix=256", f"enable_prefix_caching={str(caching).lower()}")
    served(file, Load(requests=120), sets=sets)
    loaded, known = read_trace(str(file)), known_settings(None, sets, None)
    there = source_of(loaded, known)
    seen = Observations.of(there, None, loaded.report.obs_clock)
    plain = known_settings(None, SETS, None)
    apart = crowd_of(source_of(loaded, plain), seen, 16, caching=caching)
    alike = crowd_of(there, seen, 16, caching=caching)
    assert apart is not None and alike is not None
    saved = apart.blocks - alike.blocks
    most = 16 * (alike.running - 1)  # each but one leaves out at most 256 tokens
    assert (saved <= most).all() and (saved >= 0).all()
    assert bool(saved.any()) is caching


@pytest.mark.parametrize(("blocks", "gap_s", "preempted"), [(400, 0.8, True), (370, 1.0, True), (430, 1.0, False)])
def test_memory_that_was_full_once_is_told_by_who_lost_their_place(
    tmp_path: Path, blocks: int, gap_s: float, preempted: bool
) -> None:
    file = tmp_path / "once.jsonl"
    run = served(file, Load(requests=120, gap_s=gap_s, prompt=100.0, output=400.0), sets=(*FEW, f"num_gpu_blocks={blocks}"))
    assert bool(run.preemptions) is preempted and run.preemptions < 5
    limit = limits_of(fit_observed(read_trace(str(file)), known_settings(None, FEW, None), None))["num_gpu_blocks"]
    if preempted:
        assert limit.known == "by replay" and limit.value == pytest.approx(blocks, rel=0.04)
    else:
        assert limit.known == "at least"


def test_budget_and_memory_that_nobody_named_are_found_together(tmp_path: Path) -> None:
    """Either alone could be what everybody waited for; and the prompts share their beginning."""
    file = tmp_path / "full.jsonl"
    rest = ("max_num_seqs=256", "max_model_len=9000", "trace.shared_prefix=512", *SETS[4:])
    sets = (*rest, "max_num_batched_tokens=2048", "num_gpu_blocks=700")
    run = served(file, Load(requests=60, gap_s=0.1, prompt=1500.0, output=60.0), sets=sets)
    assert int(run.waiting.max()) > 10
    found = limits_of(fit_observed(read_trace(str(file)), known_settings(None, rest, None), None))
    assert found["max_num_batched_tokens"].value == 2048
    assert found["num_gpu_blocks"].known == "by replay"
    assert found["num_gpu_blocks"].value == pytest.approx(700, rel=0.04)

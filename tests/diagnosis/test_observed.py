"""Observed traces: what their own columns tell, counted by hand, and nothing claimed that they do not tell."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.config import SchedulerConfig
from tests.engine.policy_runs import MILLISECOND, knobs, tell
from tests.engine.traffic import Row
from tracekit.diagnosis.levels import Lives, levels_of
from tracekit.diagnosis.observed import Observed, observe, parts_of
from tracekit.traces.load import read_trace
from tracekit.traces.source import TraceSource

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
lives = st.lists(
    st.tuples(*(st.integers(0, 60) for _ in range(4)), st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=25
)


def drawn(rows: list[tuple[int, ...]]) -> Lives:
    """Arrival, wait, prefill and decode times, prompt and output; who decodes 60 is never told to have ended."""
    table = np.array(rows, np.int64)
    moments = np.cumsum(table[:, :4], axis=1)
    end = np.where(table[:, 3] == 60, -1, moments[:, 3])
    return Lives(moments[:, 0], moments[:, 1], moments[:, 2], end, table[:, 4], table[:, 5])


@settings(max_examples=200, deadline=None)
@given(rows=lives)
def test_levels_are_counted_right(rows: list[tuple[int, ...]]) -> None:
    told = drawn(rows)
    levels = levels_of(told)
    assert (np.diff(levels.at_ns) > 0).all()
    for k, middle in enumerate((levels.at_ns[:-1] + levels.at_ns[1:]) / 2):
        whole = told.end >= 0
        assert levels.in_flight[k] == (whole & (told.arrival <= middle) & (middle < told.end)).sum()
        assert levels.waiting[k] == (whole & (told.arrival <= middle) & (middle < told.scheduled)).sum()
        runs = whole & (told.scheduled <= middle) & (middle < told.end)
        assert levels.running[k] == runs.sum()
        grown = np.clip((middle - told.first) / np.maximum(told.end - told.first, 1), 0, 1) * told.output
        assert levels.tokens[k] == pytest.approx(float((told.prompt + grown)[runs].sum()), abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(rows=lives, modulo=st.integers(1, 3))
def test_waiting_through_somebodys_prefill_is_an_overlap(rows: list[tuple[int, ...]], modulo: int) -> None:
    told = drawn(rows)
    mine = np.arange(len(rows)) % modulo == 0
    source = observed(told)
    found = source.waited_through(mine)
    for j in range(len(rows)):
        expected = 0
        for i in np.flatnonzero(mine & told.whole & told.whole[j]):
            expected += max(min(told.scheduled[i], told.first[j]) - max(told.arrival[i], told.scheduled[j]), 0)
        assert found[j] == pytest.approx(expected, abs=1e-6)


def observed(told: Lives) -> Observed:
    queue, ttft = told.scheduled - told.arrival, told.first - told.arrival
    later = np.where(told.end >= 0, told.end - told.first, -1)
    parts = parts_of(queue, ttft, later, np.where(told.end >= 0, told.end - told.arrival, -1))
    return Observed(attribution=parts, lives=told, has=("queue", "ttft", "e2e"), disabled={})


def written(folder: Path, rows: list[Row], config: SchedulerConfig) -> TraceSource:
    """A replay, exported with the moments of each request, as the trace that somebody observed."""
    outcomes = tell(rows, config).outcomes
    path = folder / "seen.jsonl"
    with path.open("w") as file:
        for row in outcomes:
            arrival = int(row["arrival_ns"]) / 1e9
            moments = {
                "queued_ts": arrival, "scheduled_ts": arrival + int(row["queue_ns"]) / 1e9,
                "first_token_ts": arrival + int(row["ttft_ns"]) / 1e9, "last_token_ts": arrival + int(row["e2e_ns"]) / 1e9,
            }  # fmt: skip
            line = {"request_id": f"r{row['request']}", "input_toks": int(row["prompt_tokens"]), "arrival_time": arrival + 1e9}
            file.write(json.dumps(line | {"output_toks": int(row["output_tokens"])} | moments) + "\n")
    return TraceSource.from_loaded(read_trace(path))


SEATS = [Row(2 * MILLISECOND, 10 + 17 * k % 40, 20 + 13 * k % 50) for k in range(60)]
LUMPS = [Row(2 * MILLISECOND, 20 + 61 * k % 200, 30 + 29 * k % 90) for k in range(60)]


def test_which_limit_was_reached(tmp_path: Path) -> None:
    seats = observe(written(tmp_path, SEATS, knobs(max_num_seqs=4, num_gpu_blocks=2000)))
    assert seats.limit(4, 1999 * 4).what == "seats" and seats.limit(4, 1999 * 4).share > 0.9
    assert seats.limit().what == "count"
    assert seats.limit(64, 1999 * 4).what is None  # four ran, and it was not for seats
    blocks = knobs(max_num_seqs=64, num_gpu_blocks=151, scheduler_reserve_full_isl=True)
    kv = observe(written(tmp_path, LUMPS, blocks))
    assert kv.limit(64, 150 * 4).what == "kv"
    assert kv.limit().what in ("kv", None)
    idle = observe(written(tmp_path, [Row(500 * MILLISECOND, 10, 5) for _ in range(5)], knobs()))
    assert idle.limit().because == "nobody waited" and idle.limit(4, 4000).what is None


def test_parts_are_the_columns(tmp_path: Path) -> None:
    source = written(tmp_path, SEATS, knobs(max_num_seqs=4))
    outcomes = tell(SEATS, knobs(max_num_seqs=4)).outcomes
    found = observe(source)
    assert found.has == ("queue", "ttft", "tpot", "e2e")
    close = {"atol": 2000}  # moments were written in seconds since 2001
    assert np.allclose(found.attribution.of("queue"), outcomes["queue_ns"], **close)
    assert np.allclose(found.attribution.of("prefill"), outcomes["ttft_ns"] - outcomes["queue_ns"], **close)
    assert np.allclose(found.attribution.of("decode"), outcomes["e2e_ns"] - outcomes["ttft_ns"], **close)
    assert np.array_equal(found.attribution.first.sum(axis=1), found.attribution.first_total)


def without(source: TraceSource, *parts: str) -> TraceSource:
    less = copy.copy(source)
    for part in parts:
        setattr(less, f"obs_{part}_ns", None)
    return less


def test_what_cannot_be_found_is_said(tmp_path: Path) -> None:
    source = written(tmp_path, SEATS, knobs(max_num_seqs=4))
    full = observe(source)
    assert {"QUEUE_SEATS", "QUEUE_KV", "HOL_LONG_PROMPT", "OVERLOAD", "BURST", "CLIENT_LIMIT", "NONE"}.isdisjoint(full.disabled)
    assert "no iterations" in full.disabled["QUEUE_BUDGET"] and "priorities" in full.disabled["STARVATION"]
    blind = observe(without(source, "queue"))
    assert blind.disabled["QUEUE_SEATS"] == "the trace has no queue times"
    assert set(blind.attribution.parts) == {"queue_or_prefill", "decode"}
    assert blind.limit(4, 100).what is None
    bare = observe(without(source, "queue", "ttft", "tpot", "e2e"))
    assert bare.attribution.parts == () and bare.has == () and bare.levels is None and bare.plateaus() == ()
    assert set(full.disabled) < set(bare.disabled) and "BURST" not in bare.disabled
    only = observe(without(source, "queue", "ttft", "tpot"))
    assert only.attribution.parts == ("not_explained",)
    mean = observe(without(source, "e2e"))
    assert np.allclose(mean.attribution.of("decode"), full.attribution.of("decode"), atol=2000)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no measured traces beside the checkout")
@pytest.mark.parametrize(
    ("name", "seats", "kv", "limit"), [("rtx4090", 256, 41_408, "kv"), ("rtxpro6000", 128, 400_000, "seats")]
)
def test_measured_runs_are_named_right(name: str, seats: int, kv: int, limit: str) -> None:
    path = SHARED / f"vllm_measured_llama8b_{name}.requests.jsonl"
    found = observe(TraceSource.from_loaded(read_trace(path))).limit(seats, kv)
    assert found.what == limit and found.share > 0.9

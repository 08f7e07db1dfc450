"""Capacity under other lengths, hardware, precision and fewer replicas: by value, against arithmetic done here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay_engine.config import ConfigError
from replay_engine.profile import load_profile
from tests.traces.samples import samples
from tracekit.errors import UsageError
from tracekit.slices import slice_lines
from tracekit.store import Store
from tracekit.traces.load import load_trace
from tracekit.traces.slicing import Slice
from tracekit.traces.source import TraceSource
from tuner import CapacityReport, capacity
from tuner.what_if import with_fp8_kv, with_hardware, with_tensor_parallel

H100 = load_profile("h100")
SMALL: dict[str, Any] = {"slo": "ttft=2s", "windows": 1, "length": "10s"}


def test_eight_bit_kv_is_half_of_it_and_nothing_else() -> None:
    found = with_fp8_kv(H100)
    assert found.model is not None and H100.model is not None
    assert found.model.kv_bytes_per_token * 2 == H100.model.kv_bytes_per_token
    assert found.latency.e_ns == pytest.approx(H100.latency.e_ns / 2)
    assert (found.latency.floor_ns, found.latency.b_ns, found.latency.c_ns) == (
        H100.latency.floor_ns, H100.latency.b_ns, H100.latency.c_ns)  # fmt: skip
    assert found.provenance["kind"].startswith("estimate")
    with pytest.raises(ConfigError, match="8 bits already"):
        with_fp8_kv(found)


@pytest.mark.parametrize("cards", [2, 4, 8])
def test_more_cards_cost_less_but_not_by_their_number(cards: int) -> None:
    found, cost = with_tensor_parallel(H100, cards), H100.latency
    assert found.hardware is not None and found.hardware.tensor_parallel == cards
    assert found.latency.c_ns == pytest.approx(cost.c_ns / cards)  # attention is split, and nothing of it is exchanged
    assert found.latency.e_ns == pytest.approx(cost.e_ns / cards)
    for name in ("floor_ns", "b_ns"):  # all-reduces are not
        assert getattr(cost, name) / cards < getattr(found.latency, name) < getattr(cost, name)
    assert found.latency.h0_ns == cost.h0_ns


def test_one_card_is_the_profile_itself_and_back_again() -> None:
    assert with_tensor_parallel(H100, 1).latency == H100.latency
    back = with_tensor_parallel(with_tensor_parallel(H100, 4), 1).latency
    assert back.floor_ns == pytest.approx(H100.latency.floor_ns) and back.b_ns == pytest.approx(H100.latency.b_ns)
    with pytest.raises(ConfigError, match="attention heads"):
        with_tensor_parallel(H100, 3)


def test_other_hardware_reads_weights_as_fast_as_its_memory() -> None:
    h20, h200 = with_hardware(H100, "h20", None), with_hardware(H100, "h200", None)
    assert h200.latency.floor_ns < H100.latency.floor_ns and h20.latency.b_ns > 3 * H100.latency.b_ns
    with pytest.raises(ConfigError, match="no such accelerator"):
        with_hardware(H100, "h9000", None)


@pytest.fixture(scope="module")
def report(bursts: str, tmp_path_factory: pytest.TempPathFactory) -> CapacityReport:
    db = tmp_path_factory.mktemp("what_if") / "a.duckdb"
    questions = ["fleet.replicas=2 fleet.router=least_tokens", "fleet.replicas=2 fleet.router=least_tokens lose=1",
                 "tensor_parallel=2", "hardware=h200"]  # fmt: skip
    return capacity(bursts, db=db, what_if=questions, **SMALL)


def test_one_of_two_replicas_lost_is_one(report: CapacityReport) -> None:
    two, left, _, _ = report.document["what_if"]
    assert two["cards"] == 2 and left["cards"] == 1
    assert left["factor"] == report.document["factor"] < two["factor"]


def test_cards_are_counted_and_an_estimate_is_said_to_be_one(report: CapacityReport) -> None:
    _, _, parallel, other = report.document["what_if"]
    assert parallel["cards"] == 2
    assert parallel["requests_per_s_per_card"] * 2 == pytest.approx(parallel["requests_per_s"])
    assert report.document["factor"] < parallel["factor"] < 2.5 * report.document["factor"]
    assert all("ESTIMATE: " in row["notes"][0] for row in (parallel, other))
    assert report.text.count("ESTIMATE: ") == 2


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("lose=1", "expected fewer than there are"),
        ("tensor_parallel=0", "expected a whole number above 0"),
        ("kv_cache_dtype=int4", "expected fp8"),
        ("hardware=none", "no such accelerator"),
        ("profile=none", "no such profile"),
    ],
)
def test_what_cannot_be_asked_is_one_line(question: str, expected: str, light: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=expected) as refused:
        capacity(light, db=tmp_path / "a.duckdb", what_if=[question], slo="ttft=2s", windows=1, length="10s", rate_scale=20)
    assert str(refused.value).startswith("--what-if") and "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, int]:
    """A trace with prefix blocks."""
    folder = tmp_path_factory.mktemp("lengths")
    store = Store(folder / "a.duckdb")
    (folder / "mooncake.jsonl").write_bytes(samples()["mooncake"][0])
    with store.write("load a trace") as con:
        number = load_trace(con, [str(folder / "mooncake.jsonl")], fmt="mooncake").trace
    assert number is not None
    return store, number


@pytest.mark.parametrize(("isl", "osl"), [(2.0, 1.0), (0.3, 1.0), (1.0, 3.0), (0.5, 0.1)])
def test_lengths_are_scaled_and_prefixes_end_with_their_prompts(shared: tuple[Store, int], isl: float, osl: float) -> None:
    store, number = shared
    with store.read() as con:
        before = TraceSource.from_database(con, number)
        after = TraceSource.from_database(con, number, Slice(isl_scale=isl, osl_scale=osl))
    assert np.array_equal(after.prompt_tokens, np.maximum(np.rint(before.prompt_tokens * isl), 1))
    assert np.array_equal(after.output_tokens, np.maximum(np.rint(before.output_tokens * osl), 1))
    assert np.array_equal(after.arrival_ns, before.arrival_ns) and after.obs_ttft_ns is None
    assert before.run_offsets is not None and after.run_offsets is not None
    for request in range(before.total):
        had, has = blocks_of(before, request), blocks_of(after, request)
        assert has == had[: -(-int(after.prompt_tokens[request]) // after.block_tokens)]
    said = " ".join(slice_lines(after))
    assert f"prompts x{isl:g}, outputs x{osl:g}" in said
    assert ("prefix hashes break" in said) == (isl != 1.0)


def blocks_of(source: TraceSource, request: int) -> list[int]:
    """The block identities of a prompt, in order."""
    assert source.run_offsets is not None
    runs = range(int(source.run_offsets[request]), int(source.run_offsets[request + 1]))
    return [int(source.run_first[run]) + at for run in runs for at in range(int(source.run_len[run]))]


def test_longer_prompts_lower_the_knee(bursts: str, tmp_path: Path, report: CapacityReport) -> None:
    longer = capacity(bursts, db=tmp_path / "a.duckdb", isl_scale=2.0, **SMALL)
    assert longer.document["factor"] < 0.8 * report.document["factor"]
    assert any("lengths: prompts x2" in line for line in longer.lines)
    with pytest.raises(UsageError, match="--isl-scale 0"):
        capacity(bursts, db=tmp_path / "a.duckdb", isl_scale=0.0, **SMALL)

"""Planted coefficients come back: under noise, with outliers, with a knee; and what cannot be told is refused."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.buckets import padding_of
from replay_engine.calibration.cases import default_cases
from replay_engine.calibration.fit import fit_device, fit_host, fit_latency, held_out, predicted_device
from replay_engine.calibration.many import MOST, fit_many
from replay_engine.calibration.nonnegative import nonnegative
from replay_engine.calibration.outcome import calibrate_samples, implied, joined, known_peaks, profile_of
from replay_engine.calibration.samples import Samples, samples_of_cases, samples_of_rows
from replay_engine.config import ConfigError
from replay_engine.profile import HardwareFacts, Latency, ModelFacts, load_profile, parse_profile
from replay_engine.simulator import SimExecutor
from replay_engine.tables import MODES
from tracekit.profile_diff import diff_profiles
from tracekit.store.split_view import PADDED

CASES = default_cases(longest=8192, seats=64, budget=4096)
H100 = load_profile("h100").latency


def planted(latency: Latency, noise: float = 0.0, outliers: float = 0.0, seed: int = 0) -> Samples:
    """The default batches as ``latency`` says, ``noise`` (a share) on each, an ``outliers`` share up to five times as long."""
    draw = np.random.default_rng(seed)
    plain = samples_of_cases(CASES, [1.0] * len(CASES), [0] * len(CASES), ["eager"] * len(CASES))
    exact = SimExecutor(latency, asynchronous=False)
    times = [exact.predict(c.tokens, c.qk, len(c.decodes), sum(c.decodes), 1, 0)[1] for c in CASES]
    factor = np.exp(draw.normal(0, noise, len(CASES)))
    slow = draw.random(len(CASES)) < outliers
    return replace(plain, device_ns=np.array(times) * factor * np.where(slow, draw.uniform(1.5, 5, len(CASES)), 1.0))


@pytest.mark.parametrize("seed", range(10))
def test_planted_costs_come_back_exactly(seed: int) -> None:
    """Whatever the coefficients and the knee: noiseless times are predicted to a percent."""
    draw = np.random.default_rng(seed)
    floor, b, c, d, e = draw.uniform((1e5, 1e3, 0, 0, 0), (1e7, 1e5, 10, 1e5, 100)).tolist()
    share, none = draw.choice([0.0, 1.0, draw.uniform()]), draw.integers(0, 3)
    latency = Latency(
        floor_ns=floor, a_ns=floor * share, b_ns=b, c_ns=0.0 if none == 1 else c, d_ns=0.0 if none == 2 else d, e_ns=e
    )
    samples = planted(latency)
    assert np.abs(predicted_device(fit_device(samples), samples) / samples.device_ns - 1).max() < 0.01


def test_planted_coefficients_come_back_under_noise_and_outliers() -> None:
    found = fit_device(planted(H100, noise=0.03, outliers=0.1, seed=5))
    for name, share in (("floor_ns", 0.03), ("b_ns", 0.04), ("c_ns", 0.2), ("d_ns", 0.5), ("e_ns", 0.1)):
        assert getattr(found, name) == pytest.approx(getattr(H100, name), rel=share), name
    knee = (found.floor_ns - found.a_ns) / found.b_ns
    assert knee == pytest.approx((H100.floor_ns - H100.a_ns) / H100.b_ns, rel=0.35)


def test_without_the_knee_the_error_would_be_larger() -> None:
    """The form is needed: forced linear, the same batches are predicted worse."""
    samples = planted(replace(H100, a_ns=0.0))
    linear = fit_device(samples.part(samples.tokens == 0))
    hinge = fit_device(samples)
    small = samples.part((samples.tokens > 0) & (samples.tokens < 200))
    slope = replace(hinge, a_ns=linear.floor_ns, floor_ns=linear.floor_ns)
    worst = [np.abs(predicted_device(each, small) / small.device_ns - 1).max() for each in (hinge, slope)]
    assert worst[0] < 0.02 < worst[1]


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_nonnegative_least_squares_is_the_optimum(seed: int) -> None:
    """Karush-Kuhn-Tucker: no coefficient below 0, no gradient that an allowed step could follow."""
    draw = np.random.default_rng(seed)
    matrix, target = draw.normal(size=(12, 4)), draw.normal(size=12)
    found = nonnegative(matrix, target)
    gradient = matrix.T @ (matrix @ found - target)
    assert (found >= 0).all()
    assert (gradient > -1e-8).all()
    assert np.abs(gradient * found).max() < 1e-8


def rows_of(latency: Latency, count: int = 200, seed: int = 1) -> dict[str, np.ndarray]:
    """Rows of ``iterations`` as the simulator would write them, every tenth without a token."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(0, 512, count) * (draw.random(count) < 0.4)
    seqs = np.where(tokens == 0, draw.integers(1, 40, count), draw.integers(0, 40, count))
    tokens[::10], seqs[::10] = 0, 0
    columns = {
        "prefill_tokens": tokens, "prefill_qk": tokens * draw.integers(1, 3000, count), "decode_seqs": seqs,
        "decode_kv_tokens": seqs * draw.integers(16, 4000, count), "running": seqs + draw.integers(0, 5, count),
        "admitted": draw.integers(0, 3, count), "finished": draw.integers(0, 3, count), "preempted": draw.integers(0, 2, count),
    }  # fmt: skip
    executor = SimExecutor(latency, asynchronous=False)
    changes = columns["admitted"] + columns["finished"] + columns["preempted"]
    order = [columns[k].tolist() for k in ("prefill_tokens", "prefill_qk", "decode_seqs", "decode_kv_tokens", "running")]
    times = [executor.predict(*row)[1:] for row in zip(*order, changes.tolist(), strict=True)]
    return columns | {"device_ns": np.array([d for d, _ in times]), "host_ns": np.array([h for _, h in times])}


def test_rows_of_a_replay_give_all_nine_coefficients_back() -> None:
    planted_costs = replace(H100, h0_ns=4e5, h1_ns=2e3, h2_ns=3e4)
    samples = samples_of_rows(rows_of(planted_costs))
    assert len(samples) == 180, "iterations that computed nothing are left out"
    found = fit_latency(samples)
    for name in ("floor_ns", "b_ns", "c_ns", "d_ns", "e_ns", "h0_ns", "h1_ns", "h2_ns"):
        assert getattr(found, name) == pytest.approx(getattr(planted_costs, name), rel=0.02), name


def test_what_pads_decodes_comes_back_from_rows_that_tell_it() -> None:
    """With the rows' padding its cost is a coefficient, within 2 % under noise; a log without says nothing, and has none."""
    costs = replace(H100, p_ns=9e4)
    rows = rows_of(costs, 400)
    rows["device_ns"] = rows["device_ns"] * np.exp(np.random.default_rng(3).normal(0, 0.01, 400))
    assert fit_latency(samples_of_rows(rows)).p_ns == 0.0
    rows["padded_tokens"] = padding_of(rows["prefill_tokens"], rows["decode_seqs"])
    found = calibrate_samples(samples_of_rows(rows))
    for name in ("floor_ns", "b_ns", "p_ns"):
        assert getattr(found.latency, name) == pytest.approx(getattr(costs, name), rel=0.02), name
    assert found.error < 0.012
    profile = profile_of(found, name="padded", kind="fitted", model=None, hardware=None, peaks=False)
    assert profile.provenance["p_ns"] == "fitted"
    model = load_profile("h100").model
    assert model is not None and ("rows of padding", "0.1785 TFLOP/s") in implied(replace(costs, p_ns=9e7), model, None)
    other = replace(profile, latency=replace(profile.latency, p_ns=0.0))
    told = {each.what: each.percent for each in diff_profiles(profile, other).coefficients}
    assert told["p_ns"] == -100.0 and told["floor_ns"] == 0.0
    longer = {each.what: each.percent for each in diff_profiles(other, profile).iterations}["decode=33*1@1024"]
    assert longer is not None and longer > 5.0
    assert "p_ns" not in {each.what for each in diff_profiles(other, other).coefficients}


def skewed_rows(latency: Latency, count: int, noise: float, seed: int = 3) -> dict[str, np.ndarray]:
    """Rows with the longest context among the decodes: by two to eight times the mean, by nothing where one decodes."""
    draw = np.random.default_rng(seed)
    rows = rows_of(replace(latency, s_ns=0.0), count)
    seqs, kv = rows["decode_seqs"], rows["decode_kv_tokens"]
    mean = kv / np.maximum(seqs, 1)
    longest = np.where(seqs > 1, np.minimum(mean * draw.uniform(1, 8, count), kv), kv).astype(np.int64)
    more = latency.s_ns * np.where(seqs > 1, longest - mean, 0.0)
    vary = np.exp(draw.normal(0, noise, count))
    return rows | {"device_ns": (rows["device_ns"] + more) * vary, "decode_longest_tokens": longest}


@pytest.mark.parametrize("planted", [120.0, 900.0])
def test_what_the_longest_context_costs_comes_back_from_rows_that_tell_it(planted: float) -> None:
    costs = replace(H100, s_ns=planted)
    rows = skewed_rows(costs, 600, 0.01)
    found = calibrate_samples(samples_of_rows(rows))
    assert found.latency.s_ns == pytest.approx(planted, rel=0.04)
    for name in ("floor_ns", "b_ns"):
        assert getattr(found.latency, name) == pytest.approx(getattr(costs, name), rel=0.02), name
    assert found.error < 0.012
    profile = profile_of(found, name="skewed", kind="fitted", model=None, hardware=None, peaks=False)
    assert profile.provenance["s_ns"] == "fitted"
    longest = rows["decode_longest_tokens"] - rows["decode_kv_tokens"] / np.maximum(rows["decode_seqs"], 1)
    assert profile.fit["fitted_skew_tokens"] == pytest.approx([0.0, float(longest.max())])
    assert parse_profile(profile.to_toml(), "again").latency == profile.latency
    model = load_profile("h100").model
    assert model is not None
    assert ("KV reads of the longest context alone", f"{131072 / planted:.4g} GB/s") in implied(costs, model, None)
    other = replace(profile, latency=replace(profile.latency, s_ns=0.0))
    told = {each.what: each.percent for each in diff_profiles(profile, other).coefficients}
    assert told["s_ns"] == -100.0
    longer = {each.what: each for each in diff_profiles(other, profile).iterations}["decode=1@16384,31*1@1024"]
    assert longer.other - longer.one == pytest.approx(found.latency.s_ns * (16384 - (16384 + 31 * 1024) / 32) / 1e6)
    assert not {"s_ns", "decode=1@16384,31*1@1024"} & {each.what for each in diff_profiles(other, other).coefficients}


@pytest.mark.parametrize("seed", range(8))
def test_noise_is_not_taken_for_a_cost_of_the_longest_context(seed: int) -> None:
    """It is held to be 0 or more, so that half of all noise would come out above 0."""
    rows = skewed_rows(H100, 400, 0.03, seed)
    assert fit_latency(samples_of_rows(rows)).s_ns == 0.0


def test_rows_that_do_not_tell_the_longest_context() -> None:
    """Without the column, or where hardly anybody tells it, nothing is fitted; the few that do not tell it are left out."""
    costs = replace(H100, s_ns=900.0)
    rows = skewed_rows(costs, 600, 0.0)
    busy = rows["decode_seqs"] > 1
    silent = dict(rows)
    del silent["decode_longest_tokens"]
    assert fit_latency(samples_of_rows(silent)).s_ns == 0.0
    for unknown in (np.nan, 0.0):
        some = rows["decode_longest_tokens"].astype(np.float64)
        some[::7] = unknown
        samples = samples_of_rows(rows | {"decode_longest_tokens": some})
        assert len(samples) == len(samples_of_rows(rows)) - int((busy[::7] & (np.arange(600)[::7] % 10 > 0)).sum())
        assert fit_latency(samples).s_ns == pytest.approx(900.0, rel=0.02)
        some[::2] = some[1::4] = unknown
        assert not samples_of_rows(rows | {"decode_longest_tokens": some}).above.any()


def test_as_many_rows_as_there_are_tell_padding_and_the_longest_context() -> None:
    """More rows than the knee is looked for in: the last step over all of them has the same terms."""
    costs = replace(H100, s_ns=300.0, p_ns=9e4)
    rows = skewed_rows(costs, 45_000, 0.01)
    rows["padded_tokens"] = padding_of(rows["prefill_tokens"], rows["decode_seqs"])
    samples = samples_of_rows(rows)
    assert len(samples) > 2 * MOST
    found = fit_many(samples)
    for name in ("floor_ns", "b_ns", "e_ns", "p_ns", "s_ns"):
        assert getattr(found, name) == pytest.approx(getattr(costs, name), rel=0.02), name


def test_late_iterations_do_not_count() -> None:
    rows = rows_of(H100)
    rows["mode"] = np.array([MODES[1] if i % 7 == 0 else "graph 8" if i % 2 else "eager" for i in range(200)])
    rows["device_ns"] = np.where(rows["mode"] == MODES[1], 50 * rows["device_ns"], rows["device_ns"])
    samples = samples_of_rows(rows)
    assert set(samples.mode.tolist()) == {"graph", "eager"}
    assert fit_device(samples).b_ns == pytest.approx(H100.b_ns, rel=0.02)


def test_rows_without_device_times_are_refused() -> None:
    rows = rows_of(H100)
    rows["device_ns"] = np.zeros(200)
    with pytest.raises(ConfigError, match="none with a measured device time"):
        samples_of_rows(rows)


def test_too_few_iterations_are_refused_and_host_time_is_left_at_none() -> None:
    few = planted(H100).part(np.arange(len(CASES)) < 5)
    with pytest.raises(ConfigError, match="5 iterations cannot tell"):
        fit_device(few)
    assert fit_host(few) == Latency()
    assert held_out(few) is None


def test_held_out_shapes_are_unseen() -> None:
    """One of the shapes is wrong: held out, it must show as an error, and the others must not."""
    samples = planted(H100)
    held = held_out(samples)
    assert held is not None
    assert held.p90 < 0.01
    wrong = held.shapes[3].shape
    spoiled = replace(samples, device_ns=np.where(samples.shape == wrong, 1.3 * samples.device_ns, samples.device_ns))
    again = held_out(spoiled)
    assert again is not None
    errors = {each.shape: each.error for each in again.shapes}
    if wrong in errors:  # its place in the order may have changed
        assert errors[wrong] == pytest.approx(1 / 1.3 - 1, abs=0.02)
    assert sum(abs(error) > 0.02 for error in errors.values()) <= 1


def test_each_mode_has_its_own_curve() -> None:
    eager, graph = planted(H100), planted(replace(H100, floor_ns=2e6, a_ns=2e6))
    both = eager + replace(graph, mode=np.full(len(graph), "graph"))
    found = calibrate_samples(both)
    assert found.by_mode["graph"].floor_ns == pytest.approx(2e6, rel=0.02)
    assert found.by_mode["eager"].floor_ns == pytest.approx(H100.floor_ns, rel=0.02)


def test_padded_rows_are_the_feature_of_a_mode() -> None:
    base = planted(H100)
    padded = np.where(base.seqs > 0, 8.0, 0.0)
    samples = replace(base, padded=padded, device_ns=base.device_ns + H100.d_ns * padded)
    assert fit_device(samples, padded=True).d_ns == pytest.approx(H100.d_ns, rel=0.02)


def test_batches_are_raised_to_what_they_cost_in_a_replay() -> None:
    batches = planted(H100)
    replay = replace(planted(H100, seed=9), device_ns=1.2 * batches.device_ns)
    both, factor = joined(batches, replay)
    assert factor == pytest.approx(1.2, rel=0.01)
    assert fit_device(both).b_ns == pytest.approx(1.2 * H100.b_ns, rel=0.02)
    assert both.weight[: len(batches)].sum() == pytest.approx(1.0)


MODEL = ModelFacts(
    name="M", dtype="float32", parameters=1000, weight_bytes=4000, layers=1, kv_heads=1, head_dim=8, kv_bytes_per_token=64,
    hidden_size=8, intermediate_size=8, vocab_size=9, max_model_len=100,
)  # fmt: skip


def test_the_profile_reads_back_as_it_was_written() -> None:
    hardware = HardwareFacts(name="x CPU", memory_bytes=10**9, peak_flops=1.0, bandwidth_bytes_s=1.0)
    found = calibrate_samples(planted(H100, noise=0.02), factor=1.1, sources={"device": "measured", "host": "guessed"})
    profile = profile_of(found, name="p", kind="measured here", model=MODEL, hardware=hardware, peaks=False)
    again = parse_profile(profile.to_toml())
    assert again == profile
    assert again.provenance["b_ns"] == "measured"
    assert again.provenance["h1_ns"] == "guessed"
    assert again.synthetic
    assert "no peak" in again.fit["note"]
    assert "measured here" in again.describe()
    assert "synthetic" not in again.describe()


def test_a_fit_that_beats_the_hardware_is_refused() -> None:
    h100 = load_profile("h100")
    found = calibrate_samples(planted(replace(H100, floor_ns=1e6, a_ns=1e6)))
    with pytest.raises(ConfigError, match="below the physical floor"):
        profile_of(found, name="p", kind="measured", model=h100.model, hardware=h100.hardware, peaks=True)


def test_what_the_coefficients_imply() -> None:
    h100 = load_profile("h100")
    assert h100.model is not None
    lines = dict(implied(H100, h100.model, h100.hardware))
    assert lines["prompt tokens"].startswith("819.4 TFLOP/s, 83%")
    assert lines["KV reads"].startswith("3174 GB/s, 95%")
    low = dict(implied(replace(H100, c_ns=0.4, d_ns=5_000.0), h100.model, h100.hardware))
    assert low["attention of prompts"] == (
        "1311 TFLOP/s, beyond the peak: too low a cost for this card; what was fitted hardly tells it"
    ), "attention hides behind nothing"
    assert low["decoding sequences"].endswith("beyond the peak: hidden behind the reads of the weights")
    assert dict(implied(Latency(floor_ns=1.0), MODEL, None))["KV reads"].startswith("nothing")


def test_peaks_are_known_by_the_drivers_name() -> None:
    found = known_peaks("NVIDIA H200", 150_000_000_000)
    assert found is not None
    assert found.bandwidth_bytes_s == 4.8e12
    assert found.memory_bytes == 150_000_000_000
    assert known_peaks("x86_64 CPU", 1) is None


def test_padding_in_the_database_is_what_the_simulator_adds() -> None:
    """The view of an iteration's parts has it as SQL: the same for every batch, with prompts and without."""
    with duckdb.connect() as con:
        rows = con.execute(
            f"SELECT prefill_tokens, decode_seqs, {PADDED} FROM (SELECT unnest([0, 1]) AS prefill_tokens) CROSS JOIN"
            " (SELECT unnest(range(700)) AS decode_seqs)"
        ).fetchall()
    tokens, seqs, padded = (np.array(column) for column in zip(*rows, strict=True))
    assert padded.max() == 15
    assert np.array_equal(padded, padding_of(tokens, seqs))

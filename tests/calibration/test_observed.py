"""Profiles from observed latencies: planted coefficients and limits come back, and what cannot be told is said not to be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_engine.config import ConfigError
from replay_engine.profile import Latency, load_profile
from tests.calibration.serving import PLANTED, SETS, Load, served, write_served
from tracekit.calibration.observed.errors import errors_between, errors_of
from tracekit.calibration.observed.first_guess import between, first_guess
from tracekit.calibration.observed.fit import ObservedFit, fit_observed, source_of
from tracekit.calibration.observed.observations import COUNTING, Observations, predictions
from tracekit.calibration.observed.replays import Replayed, Replayer
from tracekit.calibration.observed.report import profile_from, report_of
from tracekit.calibration.observed.sensitivity import sensitivities
from tracekit.calibration.observed.settings import known_settings
from tracekit.calibration.observed.terms import NAMES, OUTSIDE, Delivered, delivered_of, latency_of, vector_of
from tracekit.cli.main import main
from tracekit.errors import InputError, UsageError
from tracekit.traces.load import read_trace

__all__: list[str] = []
TRUTH = dict(zip(NAMES, vector_of(PLANTED).tolist(), strict=True))


def fitted(file: Path, sets: tuple[str, ...] = SETS, **options: object) -> ObservedFit:
    return fit_observed(read_trace(str(file)), known_settings(None, sets, None), None, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Full seats, a queue: everything shows."""
    file = tmp_path_factory.mktemp("served") / "busy.jsonl"
    run = served(file)
    assert int(run.running.max()) == 24
    assert int(run.waiting.max()) > 10
    return file


@pytest.fixture(scope="module")
def half(busy: Path) -> ObservedFit:
    """Fitted to every other request."""
    return fitted(busy, used=np.arange(400) % 2 == 0)


def test_planted_coefficients_come_back_where_the_trace_tells_them(half: ObservedFit) -> None:
    told = {each.name: each for each in half.told}
    assert {name for name, each in told.items() if each.verdict == "identified"} >= {"floor", "b"}
    for name, each in told.items():
        if each.verdict == "identified":
            assert each.value == pytest.approx(TRUTH[name], rel=0.05), name
        if each.absent:
            assert TRUTH[name] < 1, name
        elif name not in OUTSIDE:
            assert each.low * 0.95 <= TRUTH[name] <= each.high * 1.05, name


def test_requests_that_the_fit_did_not_look_at_are_predicted(half: ObservedFit) -> None:
    best = half.best
    errors = errors_of(half.problem.seen, best.run, best.misfit.counting, delivered_of(best.vector), ~half.problem.seen.used)
    assert {each.metric for each in errors} == {"queue", "ttft", "tpot", "e2e"}
    for each in errors:
        assert each.n == 200
        assert abs(each.mean) < 0.02, each
        assert abs(each.p90) < 0.03, each


def test_latencies_of_requests_that_are_not_to_be_looked_at_change_nothing(busy: Path, half: ObservedFit, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in busy.read_text(encoding="utf-8").splitlines()]
    for row in rows[1::2]:
        row["last_token_ts"] += 7.0
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    again = fitted(other, used=np.arange(400) % 2 == 0)
    assert again.best.vector.tolist() == half.best.vector.tolist()
    assert [each.value for each in again.limits] == [each.value for each in half.limits]


def test_seats_that_nobody_named_are_found(busy: Path) -> None:
    found = fitted(busy, SETS[1:])
    limit = next(each for each in found.limits if each.knob == "max_num_seqs")
    assert (limit.value, limit.known) == (24, "by replay")
    assert found.problem.replayer.policy.scheduler.max_num_seqs == 24


def test_memory_that_nobody_named_is_found(tmp_path: Path) -> None:
    file = tmp_path / "full.jsonl"
    sets = (SETS[1], *SETS[4:], "max_num_seqs=256", "num_gpu_blocks=900", "max_model_len=14000")
    run = served(file, Load(requests=250, output=150.0), sets=sets)
    assert int(run.waiting.max()) > 10
    found = fitted(file, tuple(each for each in sets if "blocks" not in each))
    limit = next(each for each in found.limits if each.knob == "num_gpu_blocks")
    assert limit.known == "by replay"
    assert limit.value == pytest.approx(900, rel=0.03)


def test_how_plans_are_made_is_told_from_the_latencies(tmp_path: Path) -> None:
    """Synchronous plans see an arrival one iteration earlier."""
    file = tmp_path / "synchronous.jsonl"
    sets = (*SETS[:-1], "async_scheduling=false")
    served(file, Load(requests=150, gap_s=0.4), sets=sets)
    found = fitted(file, SETS[:-1])
    limit = next(each for each in found.limits if each.knob == "async_scheduling")
    assert (limit.value, limit.known) == (False, "by replay")


def test_an_idle_trace_cannot_tell_what_never_happened(tmp_path: Path) -> None:
    """One request at a time, short and all of one prompt: no decode beside another, no context to speak of."""
    file = tmp_path / "idle.jsonl"
    served(file, Load(requests=60, gap_s=20.0, prompt=300.0, output=40.0))
    found = fitted(file)
    told = {each.name: each for each in found.told}
    assert told["floor"].value + told["d"].value == pytest.approx(TRUTH["floor"] + TRUTH["d"], rel=0.03)
    assert "identified" not in {told[name].verdict for name in ("c", "d", "e")}
    known = {each.knob: each.known for each in found.limits}
    assert known["num_gpu_blocks"] == "given"
    loose = fitted(file, ("max_model_len=16384", "engine_version=0.24.0"))
    limits = {each.knob: each for each in loose.limits}
    assert limits["max_num_seqs"].known == limits["num_gpu_blocks"].known == "at least"
    assert limits["max_num_batched_tokens"].value == 1024  # some prompts are longer, and took several iterations


def test_the_unknown_stays_where_the_profile_has_it(tmp_path: Path) -> None:
    file = tmp_path / "idle.jsonl"
    served(file, Load(requests=60, gap_s=20.0, prompt=300.0, output=40.0))
    prior = load_profile("l40s")
    found = fit_observed(read_trace(str(file)), known_settings(None, SETS, prior), prior)
    profile = profile_from(found, known_settings(None, SETS, prior), prior, "idle")
    assert profile.latency.e_ns == pytest.approx(prior.latency.e_ns, rel=0.1)
    assert prior.name in profile.provenance["e_ns"]
    assert not profile.synthetic


def test_a_fit_never_goes_below_what_the_card_can_do(busy: Path) -> None:
    """The planted engine is faster than an L40S can be: the fit stops on its bounds, and says so."""
    prior = load_profile("l40s")
    found = fit_observed(read_trace(str(busy)), known_settings(None, SETS, prior), prior)
    profile = profile_from(found, known_settings(None, SETS, prior), prior, "busy")  # would raise, were it below
    assert "on its physical bound" in {each.verdict for each in found.told}
    assert profile.latency.floor_ns >= profile.latency.a_ns >= 0


@pytest.mark.parametrize("term", range(6))
def test_slopes_are_those_of_the_replay(tmp_path: Path, term: int) -> None:
    """Where the schedule stays as it is (requests a minute apart), slopes of one replay are those of two."""
    file = tmp_path / "single.jsonl"
    rows = [
        {"request_id": str(k), "input_toks": 40 + 300 * k, "output_toks": 5 + 7 * k, "arrival_time": 1.7e9 + 60 * k}
        for k in range(12)
    ]
    write_served(file, rows, None)
    known = known_settings(None, SETS, None)
    replayer = Replayer(source_of(read_trace(str(file)), known), known.policy)
    vector = vector_of(PLANTED)
    step = np.zeros(len(NAMES))
    step[term] = 1e-3
    low, high = (predictions(replayer.run(latency_of(vector * np.exp(s * step), PLANTED)), "arrival") for s in (-1, 1))
    slopes = sensitivities(replayer.run(PLANTED), vector, "arrival", asynchronous=True)
    for group in ("ttft", "prefill", "tpot", "e2e"):
        both = (high[group] - low[group]) / 2e-3
        assert slopes[group][:, term] == pytest.approx(both, rel=0.02, abs=2e3), group


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    return served(tmp_path_factory.mktemp("served") / "lived.jsonl", Load(requests=60))


@pytest.mark.parametrize("way", COUNTING)
@pytest.mark.parametrize("ingress", [0.0, 5e6])
def test_ways_of_counting_differ_by_where_they_begin(lived: Replayed, way: str, ingress: float) -> None:
    plain, found = predictions(lived, "arrival"), predictions(lived, way, Delivered(ingress))
    wait = (lived.queued - lived.arrived).astype(float)
    before = -wait if way == "engine" else np.full(len(wait), ingress)
    assert found["ttft"] == pytest.approx(plain["ttft"] + before)
    assert found["e2e"] - found["ttft"] == pytest.approx(plain["e2e"] - plain["ttft"])
    ahead = (lived.scheduled - lived.planned).astype(float)
    assert found["queue"] == pytest.approx(plain["queue"] - (0.0 if way == "arrival" else wait + ahead))
    assert (lived.planned >= lived.queued).all()
    before_it = np.searchsorted(lived.start, lived.scheduled) - 1
    made_ahead = ahead > 0
    assert made_ahead.any()
    assert (lived.planned == lived.start[before_it])[made_ahead].all()
    assert found["tpot"] == pytest.approx(plain["tpot"])
    assert (wait >= 0).all()
    assert wait.max() > 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 300), st.floats(0.1, 9)), min_size=1, max_size=12),
       st.integers(0, 400), st.integers(0, 400))  # fmt: skip
def test_what_others_do_meanwhile_is_summed_exactly(spans: list[tuple[int, int, float]], low: int, length: int) -> None:
    begin, end = (np.array([float(v) for v in column]) for column in zip(*((b, b + n) for b, n, _ in spans), strict=True))
    rate = np.array([r for _, _, r in spans])
    summed = between(begin, end, rate, np.array([float(low)]), np.array([float(low + length)]))
    lasts = np.maximum(np.minimum(end, low + length) - np.maximum(begin, low), 0)
    assert summed[0] == pytest.approx(float((lasts * rate).sum()), abs=1e-6)


def test_the_first_guess_of_a_steady_batch_is_near(busy: Path) -> None:
    known = known_settings(None, SETS, None)
    source = source_of(read_trace(str(busy)), known)
    seen = Observations.of(source)
    guess = first_guess(seen, source.arrival_ns, source.prompt_tokens.astype(float), source.output_tokens.astype(float))
    assert guess[0] == pytest.approx(TRUTH["floor"], rel=0.6)
    assert guess[2] == pytest.approx(TRUTH["b"], rel=0.6)


def test_settings_are_read_from_what_vllm_logs() -> None:
    line = (
        "INFO 11-30 12:00:00 [utils.py:253] non-default args: {'model': 'm', 'max_num_seqs': 32, 'enable_prefix_caching': False,"
        " 'max_model_len': 8192, 'num_gpu_blocks_override': 4000, 'seed': 1}"
    )
    known = known_settings(line, ("max_num_batched_tokens=512", "engine_version=0.19.0"), None)
    scheduler = known.policy.scheduler
    assert (scheduler.max_num_seqs, scheduler.num_gpu_blocks, scheduler.max_num_batched_tokens) == (32, 4000, 512)
    assert not scheduler.enable_prefix_caching
    assert scheduler.engine_version == "0.20.0"
    assert any("0.20.0 is assumed for vLLM 0.19.0" in note for note in known.notes)
    assert known.given >= {"max_num_seqs", "num_gpu_blocks", "max_num_batched_tokens", "enable_prefix_caching"}
    for text, release in (("0.24.0", "0.24.0"), ("v0.25.1", "0.24.0"), ("0.33.0", "0.33.0"), ("1.2", "0.33.0")):
        assert known_settings(None, (f"engine_version={text}",), None).policy.scheduler.engine_version == release
    with pytest.raises(ConfigError, match="expected a release of vLLM"):
        known_settings(None, ("engine_version=latest",), None)
    with pytest.raises(UsageError, match="non-default args"):
        known_settings("non-default args: {'a': b}", (), None)
    with pytest.raises(ConfigError):
        known_settings(None, ("no_such_knob=1",), None)


def test_prompts_that_begin_alike_are_computed_once(tmp_path: Path) -> None:
    file = tmp_path / "alike.jsonl"
    served(file, Load(requests=40, gap_s=60.0))
    loaded = read_trace(str(file))
    apart, alike = (known_settings(None, (*SETS, *more), None) for more in ((), ("trace.shared_prefix=256",)))
    tokens = [float(Replayer(source_of(loaded, known), known.policy).run(PLANTED).tokens.sum()) for known in (apart, alike)]
    prompts = source_of(loaded, alike).prompt_tokens
    saved = cached = 0
    for prompt in prompts.tolist():  # one after the other; a prompt's last token is always computed
        saved += 16 * min(cached, (prompt - 1) // 16)
        cached = max(cached, min(256, prompt) // 16)
    assert tokens[0] - tokens[1] == saved > 0
    with pytest.raises(UsageError, match="whole number of tokens"):
        known_settings(None, ("trace.shared_prefix=many",), None)


def test_without_latencies_there_is_nothing_to_fit(tmp_path: Path) -> None:
    file = tmp_path / "plain.csv"
    rows = "".join(f"2023-11-16 18:15:{k % 60:02d}.0000000,100,20\n" for k in range(30))
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows, encoding="utf-8")
    with pytest.raises(InputError, match="latencies of 0 requests"):
        fitted(file)


def test_the_command(busy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "p.toml"
    sets = [part for each in SETS for part in ("--set", each)]
    assert main(["calibrate", str(busy), *sets, "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["source"] == "latencies"
    assert {each["name"] for each in document["terms"]} == set(NAMES)
    profile = load_profile(out)
    assert profile.latency.b_ns == document["profile"]["latency"]["b_ns"]
    assert profile.fit["settings"]["max_num_seqs"] == 24
    assert "identified by the latencies of busy" in profile.provenance["floor_ns"]
    for arguments, said in (
        (["--model", "tiny"], "--model: means nothing to a trace with observed latencies"),
        (["--set", "max_num_seqs=0"], "max_num_seqs = 0: expected at least 1"),
        (["--set", "fleet.replicas=2", "--set", "max_model_len=16384"], "expected the trace and the settings of one"),
    ):
        assert main(["calibrate", str(busy), *arguments, "--json"]) == 2
        assert said in json.loads(capsys.readouterr().out)["error"]


def test_a_report_can_be_read(half: ObservedFit, busy: Path) -> None:
    """A term that the fit does not have has no value and no range, a queue of microseconds no error in percent; knobs are written
    as policy files have them."""
    known = known_settings(None, SETS, None)
    report = report_of(half, known, None, "busy")
    terms, limits, errors = report.tables
    rows = {row[0]: row for row in terms.rows}
    assert rows["egress"][2:] == (None, None, None, "", "no term here")
    assert rows["skew"][2:] == (None, None, None, "", "no term here")
    assert rows["floor"][2] == pytest.approx(PLANTED.floor_ns, rel=0.05)
    assert {"true", "false"} >= {row[1] for row in limits.rows if row[0] in ("async_scheduling", "scheduler_reserve_full_isl")}
    assert [row[0] for row in errors.rows] == ["queue", "TTFT", "TPOT", "E2E"]
    assert errors.head[3:] == ("mean error %", "P50 %", "P90 %", "P99 %", "per request, median %", "P90 %")
    assert "e+0" not in " ".join(report.profile.provenance.values())
    told = {each["name"]: (each["verdict"], each["value"]) for each in report.document["terms"]}
    assert told["egress"] == ("no term here", 0.0)


def test_errors_of_a_queue_of_microseconds_are_none() -> None:
    ours, theirs = np.array([6e7, 6e7, 6e7, 2e9]), np.array([11e3, 11e3, 11e3, 1e9])
    queue, ttft = errors_between("queue", ours, theirs), errors_between("ttft", ours, theirs)
    assert np.isnan(queue.p50) and queue.each_p50 == pytest.approx(1.0) and queue.mean > 1
    assert ttft.p50 == pytest.approx(6e7 / 11e3 - 1)


def test_a_profile_that_is_all_host_is_not_moved(tmp_path: Path) -> None:
    """Where the host takes longer than the device, latencies say nothing of the device: the fit says that."""
    file = tmp_path / "host.jsonl"
    slow = replace(PLANTED, h0_ns=400e6)
    served(file, Load(requests=40, gap_s=3.0), latency=slow)
    prior = replace(load_profile("l40s"), latency=replace(load_profile("l40s").latency, h0_ns=400e6))
    found = fit_observed(read_trace(str(file)), known_settings(None, SETS, prior), prior)
    assert {each.verdict for each in found.told if each.name not in OUTSIDE} <= {
        "not identified", "on its physical bound", "no term here",
    }  # fmt: skip
    assert isinstance(profile_from(found, known_settings(None, SETS, prior), prior, "host").latency, Latency)

"""What lies outside the sums of an iteration: the way back to a client, and what a batch's longest context costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from replay_engine.profile import Profile, parse_profile
from tests.calibration.serving import PLANTED, SETS, Load, served
from tracekit.calibration.observed.fit import fit_observed, source_of
from tracekit.calibration.observed.observations import Observations
from tracekit.calibration.observed.replays import Replayed, Replayer
from tracekit.calibration.observed.report import profile_from
from tracekit.calibration.observed.search import Problem
from tracekit.calibration.observed.settings import known_settings
from tracekit.calibration.observed.skew import above_mean, skew_of
from tracekit.calibration.observed.terms import Delivered, expected_from, vector_of
from tracekit.traces.load import LoadedTrace, read_trace

__all__: list[str] = []
WAY = Delivered(before=25e6, after=60e6)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedTrace, Replayed]:
    file = tmp_path_factory.mktemp("outside") / "busy.jsonl"
    run = served(file, Load(requests=240, output=60.0))
    return read_trace(str(file)), run


def at_the_client(folder: Path, run: Replayed, loaded: LoadedTrace) -> Path:
    """The same as a client's log, by plain columns."""
    prompt = loaded.arrivals["input_tokens"].to_pylist()
    rows = [
        {"arrival": int(a), "prompt": p, "answer": int(o), "ttft": (f - a + WAY.before) / 1e9, "e2e": (last - a + sum(WAY)) / 1e9}
        for a, p, o, f, last in zip(run.arrived.tolist(), prompt, run.output.tolist(), run.first.tolist(), run.last.tolist(),
                                    strict=True)
    ]  # fmt: skip
    file = folder / "client.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


MAPPED = ["arrival=arrival:ns", "input_tokens=prompt", "output_tokens=answer", "obs_ttft=ttft:s", "obs_e2e=e2e:s"]


def test_the_way_back_is_fitted_where_a_client_counted(busy: tuple[LoadedTrace, Replayed], tmp_path: Path) -> None:
    loaded, run = busy
    client = read_trace(str(at_the_client(tmp_path, run, loaded)), mapping=MAPPED)
    client = replace(client, report=replace(client.report, obs_clock="client"))
    known = known_settings(None, SETS, None)
    found = fit_observed(client, known, None)
    told = {each.name: each for each in found.told}
    assert told["egress"].value == pytest.approx(WAY.after, rel=0.1)
    assert told["egress"].low < WAY.after < told["egress"].high or told["egress"].verdict == "identified"
    assert told["floor"].value == pytest.approx(PLANTED.floor_ns, rel=0.05)
    fit = profile_from(found, known, None, "client").fit
    assert (fit["ingress_ns"] + fit["egress_ns"]) == pytest.approx(sum(WAY), rel=0.15)
    assert fit["settings"]["engine_version"] == "0.24.0"
    assert fit["settings"]["max_model_len"] == 16384
    assert fit["known"]["max_num_seqs"] == "given"
    assert not any("egress is 0" in line for line in fit["left_out"])


def test_a_clock_of_the_engine_has_no_way_back(busy: tuple[LoadedTrace, Replayed]) -> None:
    loaded, _ = busy
    known = known_settings(None, (*SETS[:-2], SETS[-1]), None)
    found = fit_observed(loaded, known, None)
    fit = profile_from(found, known, None, "busy").fit
    assert fit["egress_ns"] == 0.0
    assert any("egress is 0: latencies of a server clock" in line for line in fit["left_out"])
    assert any("skew of context lengths is no term" in line for line in fit["left_out"])
    assert fit["known"]["engine_version"] == "assumed"


def test_the_longest_context_is_followed_token_by_token(busy: tuple[LoadedTrace, Replayed]) -> None:
    loaded, run = busy
    prompt = np.array(loaded.arrivals["input_tokens"].to_pylist(), float)
    above = above_mean(run, prompt)
    checked = 0
    for place in range(len(run.start) // 2, len(run.start) // 2 + 40):
        inside = np.flatnonzero((run.first <= run.start[place]) & (run.last >= run.end[place]))
        if len(inside) < 2 or len(inside) != run.seqs[place]:
            continue
        made = [np.count_nonzero((run.start >= run.first[who]) & (run.start <= run.start[place])) for who in inside]
        context = prompt[inside] + made
        assert above[place] == pytest.approx(context.max() - run.kv[place] / run.seqs[place], abs=1.5)
        checked += 1
    assert checked > 5


@pytest.mark.parametrize("planted", [0.0, 400.0])
def test_a_cost_of_the_longest_context_is_seen_if_it_is_there(busy: tuple[LoadedTrace, Replayed], planted: float) -> None:
    loaded, run = busy
    known = known_settings(None, SETS, None)
    source = source_of(loaded, known)
    above = np.concatenate(([0.0], np.cumsum(above_mean(run, source.prompt_tokens.astype(float)))))
    ends = [np.searchsorted(run.end, moment, side="right") for moment in (run.first, run.last)]
    gaps = np.maximum(run.output - 1, 1)
    noise = np.random.default_rng(2).normal(1.0, 0.005, source.total)
    tpot = ((run.last - run.first) / gaps + planted * (above[ends[1]] - above[ends[0]]) / gaps) * noise
    seen = replace(Observations.of(source, None, "server"), tpot=np.where(run.output > 1, tpot, np.nan))
    vector = vector_of(PLANTED)
    problem = Problem(replayer=Replayer(source, known.policy), seen=seen, expected=expected_from(None, vector, clock="server"),
                      free=np.arange(len(vector)) < 6, counting="engine")  # fmt: skip
    found = skew_of(problem, problem.trial(vector))
    assert found is not None
    assert found.value_ns == pytest.approx(planted, rel=0.1, abs=25.0)
    assert found.matters == (planted > 0)
    assert ("shows" in found.words) == (planted > 0)
    few = replace(problem, seen=replace(seen, used=np.arange(source.total) < 30))
    assert skew_of(few, few.trial(vector)) is None


def test_a_cost_of_the_longest_context_becomes_a_term(tmp_path: Path) -> None:
    """Decodes stand in for it as far as they can; with the term free the others come back to what they are."""
    costs = replace(PLANTED, s_ns=400.0)
    run = served(tmp_path / "skewed.jsonl", Load(requests=240, output=60.0), costs)
    assert 0.02 < 400.0 * run.above.sum() / run.device.sum() < 0.1
    loaded = read_trace(str(tmp_path / "skewed.jsonl"))
    known = known_settings(None, SETS, None)
    found = fit_observed(loaded, known, None)
    told = {each.name: each for each in found.told}
    assert told["skew"].value == pytest.approx(400.0, rel=0.05)
    assert told["skew"].verdict in ("identified", "weak") and told["skew"].share > 0.02
    assert told["floor"].value == pytest.approx(PLANTED.floor_ns, rel=0.02)
    assert told["e"].value == pytest.approx(PLANTED.e_ns, rel=0.1)
    assert told["d"].value == pytest.approx(PLANTED.d_ns, rel=0.2)
    profile = profile_from(found, known, None, "skewed")
    assert profile.latency.s_ns == told["skew"].value
    assert profile.fit["fitted_skew_tokens"] == pytest.approx([0.0, float(found.best.run.above.max())], abs=0.1)
    assert "by the latencies of skewed" in profile.provenance["s_ns"]
    assert not any("skew" in line for line in profile.fit["left_out"])
    assert parse_profile(profile.to_toml(), "again").latency == profile.latency


def test_a_profile_that_has_the_term_is_a_prior_for_it(busy: tuple[LoadedTrace, Replayed]) -> None:
    """Where it costs nothing the term is fitted down from what the profile says, to where it is not felt."""
    loaded, _ = busy
    prior = Profile(name="prior", latency=replace(PLANTED, s_ns=60.0), synthetic=True)
    known = known_settings(None, SETS, prior)
    found = fit_observed(loaded, known, prior)
    told = {each.name: each for each in found.told}
    assert told["skew"].value < 20.0 and told["skew"].share < 0.003
    assert told["floor"].value == pytest.approx(PLANTED.floor_ns, rel=0.02)


def test_without_the_term_it_is_held_at_nothing(busy: tuple[LoadedTrace, Replayed]) -> None:
    loaded, _ = busy
    known = known_settings(None, SETS, None)
    found = fit_observed(loaded, known, None)
    told = {each.name: each for each in found.told}["skew"]
    assert (told.verdict, told.value, told.low, told.high, told.share) == ("no term here", 0, 0, 0, 0)
    profile = profile_from(found, known, None, "busy")
    assert profile.latency.s_ns == 0.0 and "s_ns" not in profile.provenance
    assert "\ns_ns" not in profile.to_toml()

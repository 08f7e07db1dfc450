"""The trust report against what is planted: our own engine observes, a profile of known error predicts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay_engine.config import ConfigError
from replay_engine.policy import build_policy
from replay_engine.profile import Profile, load_profile
from tracekit.cli.main import main
from tracekit.diagnosis.run_data import RunData
from tracekit.traces.load import read_trace
from tracekit.traces.source import TraceSource
from tracekit.trust import check_profile
from tracekit.trust.accuracy import Latencies
from tracekit.trust.check import setup_on
from tracekit.trust.drift import drift_of
from tracekit.trust.regime import regime_words, slowed

TRUE = load_profile("h100")
SEATS = (8, 16, 32, 96)


def requests(folder: Path, count: int = 240, gap_s: float = 0.12) -> Path:
    draw = np.random.default_rng(5)
    at = np.cumsum(draw.exponential(gap_s, count))
    rows = [
        {"timestamp": float(t), "input_length": int(i), "output_length": int(o)}
        for t, i, o in zip(at, draw.integers(50, 3000, count), draw.integers(20, 300, count), strict=True)
    ]
    file = folder / "plain.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def observed(folder: Path, name: str, profile: Profile, *sets: str) -> Path:
    """What an engine that costs ``profile`` would have measured of ``requests``, as vLLM's own columns."""
    source = TraceSource.from_loaded(read_trace([str(requests(folder))]))
    data = RunData.replayed(setup_on(profile, build_policy(profile, None, sets), source))
    lines = []
    for row in data.outcomes:
        arrival = float(row["arrival_ns"]) / 1e9
        times = {
            "queued_ts": arrival,
            "scheduled_ts": arrival + row["queue_ns"] / 1e9,
            "first_token_ts": arrival + row["ttft_ns"] / 1e9,
        }
        lines.append({
            "request_id": f"r{row['request']}", "input_toks": int(row["prompt_tokens"]), "output_toks": int(row["output_tokens"]),
            "arrival_time": 1.7e9 + arrival, **times, "last_token_ts": arrival + row["e2e_ns"] / 1e9,
        })  # fmt: skip
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trust")
    text = []
    for seats in SEATS:
        observed(folder, f"seats-{seats}", TRUE, f"max_num_seqs={seats}")
        text.append(f'[[config]]\nname = "{seats} seats"\ntrace = "seats-{seats}.jsonl"\nset = ["max_num_seqs={seats}"]\n')
    (folder / "configs.toml").write_text("\n".join(text), encoding="utf-8")
    return folder


def checked(folder: Path, profile: Profile, **options: Any) -> Any:
    return check_profile(profile, str(folder / "seats-16.jsonl"), sets=("max_num_seqs=16",), **options)


def test_the_profile_that_made_the_trace_is_good_for_milliseconds(folder: Path) -> None:
    report = checked(folder, TRUE)
    assert report.drift is not None and not report.drift.drifts and abs(report.drift.moved) < 1e-3
    assert report.verdict.milliseconds
    assert report.verdict.words.startswith("good for milliseconds (TTFT mean")
    for name in ("ttft", "tpot", "e2e"):
        each = report.parts["all"][name]
        assert each["n"] == 240
        assert all(abs(error) < 1e-4 for error in each["error"].values()), name
        assert each["per_request"]["p90"] < 1e-4
    assert report.makespan_s[0] == pytest.approx(report.makespan_s[1], rel=1e-6)
    for name in ("running", "waiting", "kv_tokens"):
        assert report.over_time[name]["mean_error"] < 0.01
        assert report.over_time[name]["predicted_max"] == pytest.approx(report.over_time[name]["observed_max"], rel=0.02)
    assert report.over_time["running"]["observed_max"] == pytest.approx(16, abs=1)


@pytest.mark.parametrize(("factor", "serves", "words"), [(1.12, None, "not for milliseconds"), (1.6, False, "does not serve: ")])
def test_the_words_follow_the_error(factor: float, serves: bool | None, words: str, folder: Path) -> None:
    report = checked(folder, slowed(TRUE, factor))
    assert report.verdict.serves is serves
    assert report.verdict.words.startswith(words)
    error = report.parts["all"]["tpot"]["error"]["mean"]
    assert factor - 1 < error < 1.6 * (factor - 1), "of the step time, and of the few requests more that run beside"


def test_configurations_are_ranked(folder: Path) -> None:
    report = checked(folder, slowed(TRUE, 1.12), configs=folder / "configs.toml")
    assert report.ranked["e2e_mean"].configs == len(SEATS)
    assert report.ranked["e2e_mean"].tau == pytest.approx(1.0)
    assert report.ranked["e2e_mean"].regret == 0
    assert report.verdict.words.startswith("good for ranking, not for milliseconds")
    only = check_profile(TRUE, None, configs=folder / "configs.toml")
    assert only.ranked.keys() == report.ranked.keys()
    assert only.trace == "seats-8"


def test_which_configuration_is_best_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By name, on both sides, with the figures they were ranked by."""
    assert main(["calibrate", "--check", "h100", "--configs", str(folder / "configs.toml")]) == 0
    lines = [[cell.strip() for cell in re.split("  +", line)] for line in capsys.readouterr().out.splitlines()]
    (by,) = (line for line in lines if line[0] == "mean E2E")
    assert by[:5] == ["mean E2E", "4", "1", "0", "32 seats, 96 seats"], "no more than 32 are served at once: alike"
    assert by[5] in ("32 seats", "96 seats", by[4]), "as far as rounded moments tell"
    at = next(number for number, line in enumerate(lines) if line[0] == "configuration")
    assert lines[at] == ["configuration", "mean E2E ms, predicted", "observed", "error %"]
    rows = lines[at + 1 : at + 5]
    assert [row[0] for row in rows][2:] == ["16 seats", "8 seats"], "the best one first"
    assert all(row[1] == row[2] and row[3] == "0" for row in rows)
    (note,) = (line[0] for line in lines if line[0].startswith("no TRACE was given"))
    assert note.endswith("is of the first configuration, 8 seats")


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ('trace = "seats-8.jsonl"', "all 2 configurations come out alike"),
        ('trace = "silent.jsonl"', "nothing was observed under config 2"),
    ],
)
def test_configurations_that_cannot_be_ranked_are_said(second: str, says: str, folder: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (folder / "seats-8.jsonl").read_text(encoding="utf-8").splitlines()]
    for name in ("seats-8.jsonl", "silent.jsonl"):
        kept = rows if name == "seats-8.jsonl" else [{k: v for k, v in row.items() if not k.endswith("_ts")} for row in rows]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    (tmp_path / "two.toml").write_text(f'[[config]]\ntrace = "seats-8.jsonl"\n[[config]]\n{second}\n', encoding="utf-8")
    report = check_profile(TRUE, None, configs=tmp_path / "two.toml")
    assert not report.ranked
    assert [says in note for note in report.notes if note.startswith("rank agreement")] == [True]
    (tmp_path / "two.toml").write_text('[[config]]\ntrace = "gone.jsonl"\n' * 2, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"two.toml, config 1: trace = gone.jsonl: no such file"):
        check_profile(TRUE, None, configs=tmp_path / "two.toml")


@pytest.mark.parametrize(
    ("busy", "waiting", "name"),
    [(0.33, 0.56, "loaded in bursts"), (0.97, 0.56, "overloaded"), (0.97, 0.2, "loaded"), (0.2, 0.0, "light")],
)
def test_an_engine_that_idles_is_not_overloaded(busy: float, waiting: float, name: str) -> None:
    load = {"busy": busy, "waiting": waiting, "refused_by": {}}
    assert regime_words(load, 1.1).startswith(f"load regime: {name}; ")


def test_a_profile_of_another_kind_ranks_wrong(folder: Path) -> None:
    # an engine on which every further seat costs more than it brings
    costly = replace(TRUE, latency=replace(TRUE.latency, d_ns=5_000_000.0))
    report = checked(folder, costly, configs=folder / "configs.toml")
    assert report.ranked["tpot_mean"].tau > 0
    assert report.verdict.serves is False


def test_a_split_judges_the_half_that_is_held_out(folder: Path) -> None:
    whole = checked(folder, TRUE, split="time")
    assert {name: part["e2e"]["n"] for name, part in whole.parts.items()} == {"all": 240, "first half": 120, "held out": 120}
    drawn = checked(folder, TRUE, split="random")
    assert drawn.parts["held out"]["e2e"]["observed_ns"] != whole.parts["held out"]["e2e"]["observed_ns"]
    assert list(drawn.parts) == ["all", "other half", "held out"], "a random half is not the first one"


def test_figures_that_disagree_in_a_usual_way_name_where_to_look(folder: Path) -> None:
    """The right engine under other seats: TPOT fits and E2E does not. A light replay of an overloaded engine says whose load it
    tells of. Neither is said of the profile that made the trace."""
    few = check_profile(TRUE, str(folder / "seats-8.jsonl"), sets=("max_num_seqs=10",))
    many = check_profile(TRUE, str(folder / "seats-8.jsonl"), sets=("max_num_seqs=96",))
    right = check_profile(TRUE, str(folder / "seats-8.jsonl"), sets=("max_num_seqs=8",))
    settings = [[note for note in report.notes if "look first at the settings" in note] for report in (few, many, right)]
    whose = [[note for note in report.notes if "the replay's, not the engine's" in note] for report in (few, many, right)]
    assert [len(each) for each in settings] == [1, 0, 0], "of 96 seats TPOT is off by a fifth"
    assert settings[0][0].startswith("TPOT agrees (mean +6%) and E2E does not (-43%): look first")
    assert [len(each) for each in whose] == [0, 1, 0]
    assert many.over_time is not None
    waited = many.over_time["waiting"]
    assert whose[1][0].startswith(
        f"the replay has at most {waited['predicted_max']:,.0f} requests waiting, the engine had {waited['observed_max']:,.0f}:"
    )
    assert waited["predicted_max"] < 10 < waited["observed_max"]


def test_the_clock_and_rows_that_are_not_in_the_trace_are_said(folder: Path) -> None:
    lines = (folder / "seats-16.jsonl").read_text(encoding="utf-8").splitlines()
    lines[3] = json.dumps({**json.loads(lines[3]), "output_toks": -4})
    (folder / "less.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    seats = ("max_num_seqs=16",)
    whole, less = (check_profile(TRUE, str(folder / f"{name}.jsonl"), sets=seats).notes for name in ("seats-16", "less"))
    clock, gone = "observed latencies are by the server's clock", "trace: 1 of 240 rows were left out (negative 1)"
    assert (clock in whole, clock in less, gone in whole, gone in less) == (True, True, False, True)


@pytest.mark.parametrize(
    ("knob", "said"),
    [
        ("max_num_seq=8", "max_num_seq: unknown knob; did you mean max_num_seqs"),
        ("num_gpu_blocks=-3", "num_gpu_blocks = -3: expected"),
        ("max_num_seqs=many", "max_num_seqs"),
        ("max_num_seqs", "expected knob=value"),
    ],
)
def test_settings_of_a_configuration_that_are_wrong_are_said_with_its_place(knob: str, said: str, folder: Path) -> None:
    tables = [f'[[config]]\ntrace = "seats-{seats}.jsonl"\nset = ["{knob if seats == 32 else ""}"]\n' for seats in (8, 16, 32)]
    (folder / "bad.toml").write_text("".join(tables).replace('set = [""]\n', ""), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.toml, config 3: ") as caught:
        check_profile(TRUE, None, configs=folder / "bad.toml")
    assert said in str(caught.value)


def test_a_queue_of_microseconds_has_no_error_in_percent(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside a predicted wait it would be one of so many hundred thousand."""
    lines = [json.loads(line) for line in (folder / "seats-96.jsonl").read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line["scheduled_ts"] = line["queued_ts"] + 11e-6
    (folder / "quick.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert main(["calibrate", str(folder / "quick.jsonl"), "--check", "h100", "--set", "max_num_seqs=16"]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("queue"))
    assert row.split()[4:] == ["-"] * 6


def told_of(draw: np.random.Generator, count: int = 200) -> Latencies:
    """Latencies without a queue."""
    ttft, tpot, output = draw.uniform(1e7, 9e7, count), draw.uniform(1e7, 3e7, count), draw.integers(2, 300, count) * 1.0
    return Latencies(arrival=np.arange(count) * 1e8, prompt=np.full(count, 100.0), output=output, queue=np.zeros(count),
                     ttft=ttft, tpot=tpot, e2e=ttft + (output - 1) * tpot)  # fmt: skip


def test_a_trace_that_drifts_is_told_from_one_whose_queue_differs() -> None:
    """Found within its interval: an engine 30 % slower in the later half. Noise of 10 % does not drift, nor does a queue that the
    prediction misses early on: that is named."""
    everything, later, wrong = np.ones(200, np.bool_), np.arange(200) >= 100, 0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        predicted = told_of(draw)
        noisy = replace(predicted, tpot=predicted.tpot * np.exp(draw.normal(0, 0.1, 200)))
        calm = drift_of(predicted, noisy, everything)
        assert calm is not None
        wrong += calm.drifts
        slow = drift_of(predicted, replace(noisy, tpot=noisy.tpot * np.where(later, 1.3, 1.0)), everything)
        assert slow is not None and slow.drifts and slow.low < slow.moved < slow.high
        assert slow.moved == pytest.approx(1.3 * (1 + calm.moved) - 1)
        assert slow.words.startswith("the trace drifts: from its earlier half to its later one observed over predicted TPOT mo")
        # a profile of another engine is off by what the load makes of it, and no trace drifts for that
        for factor in (0.4, 2.5):
            other = replace(predicted, tpot=predicted.tpot * np.where(later, 1.2, 1.0) * factor)
            bent = drift_of(other, noisy, everything)
            assert bent is not None and bent.another and not bent.drifts
            assert bent.words.startswith("drift: not told; observed TPOT")
        half = drift_of(predicted, replace(noisy, tpot=noisy.tpot * np.where(later, 2.0, 1.0)), everything)
        assert half is not None and half.drifts, "one half right, the other not: that is drift, however far"
    assert wrong <= 1
    queued = replace(predicted, ttft=predicted.ttft * np.where(later, 1.0, 4.0), queue=predicted.ttft * np.where(later, 0, 3.0))
    told = drift_of(predicted, queued, everything)
    assert told is not None and not told.drifts and told.moved == pytest.approx(0.0)
    assert told.figures["TTFT mean"] == (pytest.approx(-0.75), pytest.approx(0.0))
    assert "TTFT P90 -75% and +0%; who queued is what differs" in told.words
    prompts = drift_of(*(replace(each, tpot=np.full(200, np.nan)) for each in (predicted, queued)), everything)
    assert prompts is not None and prompts.service == "TTFT less its wait"
    assert drift_of(predicted, queued, np.arange(200) < 59) is None


def test_prompts_that_a_fit_took_to_begin_alike_begin_alike_in_its_check(folder: Path) -> None:
    """By ``--set`` as for the fit, and without it on the trace of the fit, from the profile: the same figures."""
    fitted = replace(TRUE, fit={"shared_prefix": 1024}, provenance={"floor_ns": "identified by the latencies of seats-16"})
    sets, where = ("max_num_seqs=16", "trace.shared_prefix=1024"), str(folder / "seats-16.jsonl")
    said, kept = check_profile(TRUE, where, sets=(*sets, "engine_version=0.19.0"), limit=60), checked(folder, fitted, limit=60)
    apart = check_profile(fitted, where, sets=(*sets[:1], "trace.shared_prefix=0"), limit=60)
    ttft = [each.parts["all"]["ttft"]["predicted_ns"]["mean"] for each in (said, kept, apart)]  # type: ignore[index]
    assert ttft[0] == ttft[1] < ttft[2]
    assert any("1,024 tokens" in note for note in kept.notes) and not any("begin with" in note for note in apart.notes)


def test_sensitivity_grows_with_the_load(folder: Path) -> None:
    light = check_profile(TRUE, str(folder / "seats-96.jsonl"), sets=("max_num_seqs=96",))
    heavy = checked(folder, TRUE)
    assert light.sensitivity is not None
    assert heavy.sensitivity > light.sensitivity > 0.5
    assert light.load["waiting"] < heavy.load["waiting"]
    assert next(iter(heavy.load["refused_by"])) == "max_num_seqs"
    assert "(the first of the queue for max_num_seqs in " in heavy.regime


def test_leaving_the_fitted_range_is_said(folder: Path) -> None:
    narrow = replace(TRUE, fit={"fitted_decode_seqs": [1, 10], "fitted_prefill_tokens": [1, 8192]})
    seqs, tokens = sorted(checked(folder, narrow).extrapolated, key=lambda each: each["what"])
    assert seqs["time_outside"] > 0.5
    assert seqs["reached"][1] == 16
    assert tokens["time_outside"] == 0


def test_so_is_leaving_the_range_of_skew(folder: Path) -> None:
    """Of a profile for which the longest context costs; one for which it does not writes nothing down that could be outside."""
    skewed = replace(TRUE, latency=replace(TRUE.latency, s_ns=1.0))
    for most, beyond in ((100.0, True), (1e6, False)):
        (found,) = checked(folder, replace(skewed, fit={"fitted_skew_tokens": [0.0, most]})).extrapolated
        assert found["what"] == "tokens of the longest context above the mean" and found["fitted"] == [0.0, most]
        assert (found["time_outside"] > 0.5) is beyond and 1000 < found["reached"][1] < 3300
    assert checked(folder, replace(TRUE, fit={"fitted_skew_tokens": [0.0, 100.0]})).extrapolated == []


def test_the_command_and_the_line_in_the_matrix(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, out, db = folder / "seats-16.jsonl", folder / "checked.toml", str(folder / "db.duckdb")
    sets = ["--set", "max_num_seqs=16"]
    assert main(["calibrate", str(trace), "--check", "h100", *sets, "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "tracekit.trust/1"
    assert document["verdict"]["milliseconds"]
    assert document["drift"]["drifts"] is False
    assert not (folder / "tracekit.duckdb").exists(), "a check writes no database"
    assert load_profile(out).fit["trust"] == f"{document['verdict']['words']}; checked on seats-16 (240 requests)"
    said = {}
    for profile, file in (("h100", "plain"), (str(out), "plain"), ("h100", "seats-16")):
        command = ["replay", str(folder / f"{file}.jsonl"), "--engine", "sim", "--profile", profile, *sets, "--db", db, "--json"]
        assert main(command) == 0
        said[profile, file] = json.loads(capsys.readouterr().out)["matrix"]["profile"]["trust"]
    assert said["h100", "plain"]["reason"].startswith("never checked")
    assert said[str(out), "plain"] == load_profile(out).fit["trust"]
    assert said["h100", "seats-16"].startswith("on this trace: good for milliseconds")
    assert (
        main(["calibrate", str(trace), "--check", "h100", *sets, "--split", "time", "--configs", str(folder / "configs.toml")])
        == 0
    )
    text = capsys.readouterr().out
    for words in (
        "verdict: good for milliseconds",
        "held out:",
        "Kendall tau",
        "makespan: ",
        "load regime: ",
        "extrapolation: none",
        "no drift: from the earlier half to the later one observed over predicted TPOT moves by ",
    ):
        assert words in text


def test_a_recorded_run_is_an_observed_configuration(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db, text = str(folder / "runs.duckdb"), []
    for seats in (8, 32):
        command = [
            "replay",
            str(folder / "plain.jsonl"),
            "--engine",
            "sim",
            "--profile",
            "h100",
            "--set",
            f"max_num_seqs={seats}",
        ]
        assert main([*command, "--name", f"run-{seats}", "--db", db, "--json"]) == 0
        text.append(f'[[config]]\nrun = "run-{seats}"\n')
    (folder / "runs.toml").write_text("".join(text), encoding="utf-8")
    report = check_profile("h100", None, configs=folder / "runs.toml", db=db)
    assert report.ranked["e2e_mean"].tau == 1
    for each in report.configs:
        predicted, seen = each["objectives"]["e2e_mean"]
        assert predicted == pytest.approx(seen, rel=1e-9)
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--check", "h100"], "nothing to check on"),
        (["plain.jsonl", "--split", "time"], "expected --check PROFILE"),
        (["plain.jsonl", "--check", "nobody"], "no such profile"),
        (["plain.jsonl", "--check", "h100", "--cases", "decode=1"], "--cases and --check"),
        (["plain.jsonl", "--check", "h100", "--configs", "none.toml"], "--configs none.toml"),
        (["plain.jsonl", "--check", "h100", "--configs", "one.toml"], "two or more [[config]]"),
        (["plain.jsonl", "--check", "h100", "--configs", "odd.toml"], "config 2: expected either trace"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], said: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (folder / "one.toml").write_text("[[config]]\ntrace = 'plain.jsonl'\n", encoding="utf-8")
    (folder / "odd.toml").write_text("[[config]]\ntrace = 'plain.jsonl'\n[[config]]\nname = 'x'\n", encoding="utf-8")
    assert main(["calibrate", *arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    assert said in json.loads(out)["error"]
    assert err.count("\n") == 1


def test_a_profile_fitted_to_latencies_brings_its_settings_and_what_comes_before_the_engine(folder: Path) -> None:
    fit = {"settings": {"max_num_seqs": 16, "scheduler_reserve_full_isl": True}, "counting": "arrival", "ingress_ns": 5e7}
    told = replace(TRUE, fit=fit, provenance=TRUE.provenance | {"b_ns": "identified by the latencies of seats-16, 1 to 2"})
    found, plain = check_profile(told, str(folder / "seats-16.jsonl")), checked(folder, TRUE)
    assert "same-run check: the profile was fitted on this trace" in found.notes
    assert not any("same-run" in note for note in plain.notes)
    for name, before in (("ttft", 5e7), ("e2e", 5e7), ("tpot", 0.0), ("queue", 0.0)):
        ours, theirs = (report.parts["all"][name]["predicted_ns"]["mean"] for report in (found, plain))
        assert ours - theirs == pytest.approx(before, abs=1), name
    within = check_profile(replace(told, fit=fit | {"counting": "engine"}), str(folder / "seats-16.jsonl"))
    assert within.parts == plain.parts, "its latencies count from the engine on"


def test_a_trace_without_latencies_gives_no_verdict(folder: Path) -> None:
    report = check_profile(TRUE, str(folder / "plain.jsonl"))
    assert report.verdict.serves is None
    assert report.verdict.words == "unknown: the trace has no observed latencies"
    assert report.over_time is None

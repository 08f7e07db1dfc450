"""Whole studies: trials 0 and 1, the answer by value, what a kill leaves, workers, jobs, and the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from tests.tuner.workers import workers
from tracekit.cli.main import main
from tracekit.errors import UsageError
from tracekit.jobs import list_jobs
from tracekit.store import Store
from tracekit.store.files import read_json
from tuner import TuneReport, tune
from tuner.ahead import first_wants
from tuner.cells import CellFile, Replays
from tuner.gains import gain_of
from tuner.lookup import Lookup
from tuner.plan import TunePlan
from tuner.report import render_report
from tuner.study import TuneStudy, open_study
from tuner.windows import WindowSources

SLO = "stall=60ms"
SMALL: dict[str, Any] = {"slo": SLO, "windows": 3, "holdout": 3, "trials": 8, "workers": 1}
COMMAND = [sys.executable, "-m", "tracekit.cli.main", "tune"]
OPTIONS = ["--slo", SLO, "--windows", "3", "--holdout", "3", "--trials", "8"]


def folder_of(db: Path) -> Path:
    (found,) = (Store(db).folder / "tune").iterdir()
    return found


def study_of(db: Path) -> TuneStudy:
    folder = folder_of(db)
    document = read_json(folder / "plan.json")
    assert document is not None
    return open_study(TunePlan.from_dict(document), folder, None)


def cells_of(db: Path) -> list[str]:
    return [json.loads(line)["key"] for line in (folder_of(db) / "cells.jsonl").read_text().splitlines() if line]


def told(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in ("wall_s", "replays")}


@pytest.fixture(scope="module")
def report(bursts: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[TuneReport, Path]:
    db = tmp_path_factory.mktemp("tune") / "a.duckdb"
    return tune(bursts, db=db, **SMALL), db


def test_a_smaller_budget_is_found_and_proved_on_windows_not_searched(report: tuple[TuneReport, Path]) -> None:
    document = report[0].document
    assert document["recommended"] and document["gain"]["verdict"] == "better"
    winner = document["winner"]["point"]
    assert winner["max_num_batched_tokens"] < 4096 or 0 < winner["long_prefill_token_threshold"] < 4096
    assert document["gain"]["n"] == 3 and document["gain"]["estimate"] > 0.1
    assert document["gain"]["low"] < document["gain"]["estimate"] < document["gain"]["high"]
    searched = {window["begin_ns"] for window in document["windows"]["search"]}
    assert not searched & {window["begin_ns"] for window in document["windows"]["held"]}
    changed = [change["knob"] for change in document["changes"] if not change["derived"]]
    assert changed and {row["knob"] for row in document["ablation"]["plus"]} == set(changed)
    assert all(f"{knob}=" in " ".join(document["sets"]) for knob in changed)
    assert [row["case"] for row in document["robustness"]][:2] == ["rate x0.8", "rate x1.2"]
    assert document["losers"]["won"] > document["losers"]["lost"]
    for line in ("CHANGE: ", "  vLLM flags:  --", "Neighbours, one step of one knob: ", "The same gain under other conditions:"):
        assert line in report[0].text


def test_another_trace_is_said_to_agree_only_beyond_the_noise(report: tuple[TuneReport, Path]) -> None:
    def results(*met: int) -> list[dict[str, Any]]:
        return [{"met": each, "n": 100, "window_s": 10.0} for each in met]

    base = results(50, 52, 49)
    levels = {"up": results(70, 73, 70), "down": results(30, 33, 28), "same": base, "noise": results(49, 54, 50)}
    said = {name: gain_of(base, level).to_dict() for name, level in levels.items()}
    text = render_report({**report[0].document, "also": [{"trace": name, "gain": gain} for name, gain in said.items()]})
    lines = {line.split()[1]: line for line in text.splitlines() if line.startswith("On ")}
    for name, expected in (("up", "holds: +41.1 %"), ("down", "DOES NOT HOLD: -"), ("same", "changes nothing: +0.0 %"),
                           ("noise", "cannot be told from no change: +")):  # fmt: skip
        assert lines[name].startswith(f"On {name} it {expected}"), lines[name]


def test_an_interval_is_spoken_of_where_there_is_one(report: tuple[TuneReport, Path]) -> None:
    def results(*met: int) -> list[dict[str, Any]]:
        return [{"met": each, "n": 100, "window_s": 10.0} for each in met]

    for base, number, said in (((50, 52), "n = 2 windows, 200", True), ((50,), "n = 1 window, 100", False)):
        gain = gain_of(results(*base), results(*(met + 20 for met in base))).to_dict()
        text = render_report({**report[0].document, "gain": gain})
        assert ("the interval is where 90 %" in text) is said and number in text


def test_an_answer_of_an_older_version_is_still_rendered(report: tuple[TuneReport, Path]) -> None:
    """It does not say of how many trials importance is, nor why this one of those that come to the same."""
    document = {**report[0].document, "importance": {"max_num_seqs": 0.75, "max_num_batched_tokens": 0.25}}
    document["alike"] = [*document["alike"], document["alike"][0]]
    document["winner"] = {name: value for name, value in document["winner"].items() if name != "why"}
    del document["importance_of"]
    text = render_report(document)
    assert "this one is nearest to the current policy" in text
    assert "max_num_seqs 75 %, max_num_batched_tokens 25 % (n = " in text


def test_the_first_trials_are_what_runs_and_the_defaults(bursts: str, tmp_path: Path) -> None:
    tune(bursts, db=tmp_path / "a.duckdb", sets=["max_num_batched_tokens=4096"], **{**SMALL, "trials": 2, "windows": 2})
    first, second = study_of(tmp_path / "a.duckdb").trials()
    assert (first.number, first.user_attrs["role"], first.params["max_num_batched_tokens"]) == (0, "current policy", 4096)
    assert (second.number, second.user_attrs["role"], second.params["max_num_batched_tokens"]) == (1, "engine's defaults", 8192)


def test_no_configuration_is_tried_twice_and_no_cell_replayed_twice(report: tuple[TuneReport, Path]) -> None:
    trials = study_of(report[1]).trials()
    points = [tuple(trial.params.items()) for trial in trials]
    assert len(points) == len(set(points)) == 8
    keys = cells_of(report[1])
    rows = [json.loads(line) for line in (folder_of(report[1]) / "cells.jsonl").read_text().splitlines()]
    own = [row for row in rows if row["result"]["of"] == row["key"]]
    assert len(keys) == len(set(keys)) and len(own) == report[0].replayed
    proved = [row for row in rows if row["result"]["of"] != row["key"]]  # their replay is there, and gave the same
    there = {row["key"]: row["result"] for row in own}
    assert proved and all({**row["result"], "cpu_s": 0} == {**there[row["result"]["of"]], "cpu_s": 0} for row in proved)


def test_a_pruned_trial_was_far_behind_on_the_same_windows(report: tuple[TuneReport, Path]) -> None:
    trials = study_of(report[1]).trials()
    best = max(t.values[0] for t in trials if t.state == TrialState.COMPLETE and t.values)
    pruned = [t for t in trials if t.state == TrialState.PRUNED]
    assert all(t.user_attrs["full_value"] < 0.9 * best and len(t.intermediate_values) < 3 for t in pruned)


def test_the_same_command_again_replays_nothing_and_says_the_same(report: tuple[TuneReport, Path], bursts: str) -> None:
    again = tune(bursts, db=report[1], **SMALL)
    assert again.replayed == 0
    assert told(again.document) == told(report[0].document)


def test_workers_share_the_trials_and_each_cell_is_replayed_once(bursts: str, tmp_path: Path) -> None:
    db = tmp_path / "a.duckdb"
    shared = tune(bursts, db=db, **{**SMALL, "workers": 2})
    trials = study_of(db).trials()
    assert sorted(trial.number for trial in trials) == list(range(8))
    points = [tuple(trial.params.items()) for trial in trials]
    assert len(set(points)) == 8
    assert shared.document["recommended"]
    keys = cells_of(db)
    assert len(keys) - len(set(keys)) <= 1  # a want and a trial of the same cell may only meet in two processes at once


def test_workers_answer_what_one_process_answers(report: tuple[TuneReport, Path], bursts: str, tmp_path: Path) -> None:
    """Every replay anew, and the questions that are no cell: only the trials are there."""
    db = tmp_path / "a.duckdb"
    shutil.copytree(report[1].parent, tmp_path, dirs_exist_ok=True)
    (folder_of(db) / "cells.jsonl").unlink()
    again = tune(bursts, db=db, **{**SMALL, "workers": 2})
    assert told(again.document) == told(report[0].document)
    assert again.replayed == 0 and again.document["losers"]["won"] > 0


def test_workers_begin_with_what_any_search_begins_with(bursts: str, tmp_path: Path) -> None:
    """The defaults whole and half of each first move; without defaults of their own, all of the moves."""
    for sets, name in ((["max_num_batched_tokens=4096"], "a"), ([], "b")):
        db = tmp_path / f"{name}.duckdb"
        tune(bursts, db=db, sets=sets, **{**SMALL, "trials": 4, "search_only": True})
        plan, trials = study_of(db).plan, study_of(db).trials()
        begun = [dict(trial.params) for trial in trials[1:]]
        own = {plan.cell(plan.policy, window).key() for window in plan.trace.search}
        rows = (folder_of(db) / "cells.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / name).write_text("".join(row for row in rows if json.loads(row)["key"] in own))
        lookup = Lookup(plan, Replays(WindowSources(Store(db)), CellFile(tmp_path / name)))
        for count in (2, 3):
            shares = [[(want.point, want.window) for want in share] for share in first_wants(lookup, count)]
            moves = [pair for share in shares[bool(sets) :] for pair in share]
            tried = begun[1:] if sets else begun[:2]
            assert shares[0] == [(begun[0], at) for at in range(3)] or not sets
            assert sorted(map(repr, moves)) == sorted(repr((point, at)) for point in tried for at in range(2 if sets else 3))
            assert max(map(len, shares[bool(sets) :])) - min(map(len, shares[bool(sets) :])) <= 1


def test_a_study_that_is_killed_goes_on_where_it_stopped(bursts: str, tmp_path: Path, report: tuple[TuneReport, Path]) -> None:
    """Killed with -9 in the middle of its trials: the trial under way is taken over by its number, nothing is replayed twice,
    and the answer is that of a study nobody killed."""
    db = tmp_path / "a.duckdb"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [*COMMAND, bursts, *OPTIONS, "--workers", "1", "--db", str(db)]
    for least in (1, 5):
        child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        waited = time.monotonic() + 120
        while child.poll() is None and time.monotonic() < waited:
            folders = list((Store(db).folder / "tune").glob("*/cells.jsonl"))
            if folders and len(folders[0].read_bytes().splitlines()) >= least + 3:
                break
            time.sleep(0.05)
        child.send_signal(signal.SIGKILL)
        child.wait()
    before = cells_of(db)
    found = tune(bursts, db=db, **SMALL)
    after = cells_of(db)
    assert after[: len(before)] == before and len(after) == len(set(after))
    assert [trial.number for trial in study_of(db).trials()] == list(range(8))
    assert told(found.document) == told(report[0].document)
    assert [job.state for job in list_jobs(Store(db).folder)][-1] == "finished"


def test_a_worker_that_is_killed_loses_no_trial(bursts: str, tmp_path: Path) -> None:
    db, killed = tmp_path / "a.duckdb", []

    def kill_one(done: int, _total: int, note: str) -> None:
        children = workers()
        if note.startswith("best so far") and done >= 2 and not killed and children:
            killed.append(children[0])
            os.kill(killed[0], signal.SIGKILL)

    tune(bursts, db=db, progress=kill_one, **{**SMALL, "workers": 2})
    assert killed
    trials = study_of(db).trials()
    assert [trial.number for trial in trials] == list(range(8))
    assert all(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in trials)


def test_where_everybody_is_served_nothing_is_searched(light: str, tmp_path: Path) -> None:
    db = tmp_path / "a.duckdb"
    found = tune(light, slo="ttft=5s,tpot=200ms", db=db, windows=2, holdout=2, workers=1)
    assert not found.document["recommended"]
    assert "nothing to gain" in found.document["no_search"] and "No change recommended." in found.text
    assert found.document["trials"]["complete"] == 0 and not (folder_of(db) / "study.journal").exists()


def test_without_a_window_to_prove_it_on_nothing_is_recommended(bursts: str, tmp_path: Path) -> None:
    found = tune(bursts, db=tmp_path / "a.duckdb", **{**SMALL, "trials": 6, "windows": 2, "holdout": 0})
    assert not found.document["recommended"] and found.document["gain"] is None and found.document["losers"] is None
    assert "no window to prove a gain on" in found.text and found.document["changes"]


def test_failed_trials_are_counted_with_their_reason(bursts: str, tmp_path: Path) -> None:
    space = tmp_path / "space.toml"
    space.write_text('[space]\n"preemption.mode" = ["recompute", "pause"]\nmax_num_batched_tokens = [1024, 8192]\n')
    db = tmp_path / "a.duckdb"
    found = tune(bursts, db=db, space=str(space), **{**SMALL, "trials": 4, "windows": 2, "holdout": 2})
    trials = found.document["trials"]
    assert trials["failed"] == 2 and trials["complete"] + trials["pruned"] == 2
    (reason,) = trials["reasons"]
    assert "preemption.mode" in reason or "pause" in reason
    assert "failed 2x" in found.text


def test_two_commands_that_answer_together_replay_nothing_twice(bursts: str, tmp_path: Path) -> None:
    db = tmp_path / "a.duckdb"
    command = [*COMMAND, bursts, *OPTIONS, "--workers", "1", "--db", str(db)]
    subprocess.run([*command, "--search-only"], check=True, capture_output=True)
    both = [subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [each.communicate() for each in both]
    keys = cells_of(db)
    assert len(set(keys)) == len(keys), "a cell of the answer was replayed by both"
    answers = [told(json.loads(out)) for out, _ in said]
    assert answers[0] == answers[1] and len(answers[0]["neighbours"]) > 0


def test_several_objectives_give_a_front(bursts: str, tmp_path: Path) -> None:
    found = tune(bursts, db=tmp_path / "a.duckdb", objective="goodput,cost", price_per_hour=2.0,
                 **{**SMALL, "trials": 5, "windows": 2, "holdout": 2})  # fmt: skip
    front = found.document["pareto"]
    assert front and all(set(row["values"]) == {"goodput", "cost"} for row in front)
    lines = [line for line in found.text.splitlines() if line.startswith("Pareto: goodput ")]
    assert lines and all(" requests/s, cost " in line and " per million tokens: " in line for line in lines)
    values = [line.partition(" per million tokens: ")[0] for line in lines]
    assert len(set(values)) == len(values), "what comes to the same is one line"
    for at, name in enumerate(("goodput", "cost")):
        reached = found.document["reached"][at]
        base = study_of(tmp_path / "a.duckdb").trials()[0].values[at]
        assert reached["name"] == name and reached["current"] == base
    assert any(line.startswith("On the windows searched: goodput ") and ", cost " in line for line in found.text.splitlines())


def test_a_target_that_no_trial_reaches_is_named_with_what_comes_nearest(bursts: str, tmp_path: Path) -> None:
    found = tune(bursts, db=tmp_path / "a.duckdb", objective="cost", price_per_hour=2.0, target=1.0,
                 **{**SMALL, "slo": "ttft=1us", "trials": 3, "windows": 2, "holdout": 2})  # fmt: skip
    trials = study_of(tmp_path / "a.duckdb").trials()
    most = max(t.user_attrs["attainment"] for t in trials if t.state == TrialState.COMPLETE)
    assert not found.document["recommended"] and most < 1
    assert f"trials serves the 100% of the requests that --target asks for; the most is {most:.1%}" in found.document["why"]


def test_a_job_file_that_is_not_there_is_said_in_plain_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--job", str(tmp_path / "no.toml")]) == 2
    said = capsys.readouterr().err
    assert "no.toml: No such file or directory; expected a TOML file" in said and "Errno" not in said


def test_a_job_file_says_all_and_the_command_line_wins(bursts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.toml"
    job.write_text(f"""
[tune]
trace = "{bursts}"
slo = "{SLO}"
windows = 2
holdout = 2
trials = 50
workers = 1
set = ["max_num_seqs=512"]
out = {{ report = "answer.txt", json = "answer.json" }}
""")
    assert main(["tune", "--job", str(job), "--trials", "3", "--db", str(tmp_path / "a.duckdb"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert sum(document["trials"][state] for state in ("complete", "pruned", "failed")) == 3
    assert document["current"]["max_num_seqs"] == 512
    assert json.loads((tmp_path / "answer.json").read_text()) == document
    assert (tmp_path / "answer.txt").read_text().startswith("bursts: ")


def test_a_dry_run_says_what_it_would_take(bursts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", bursts, *OPTIONS, "--workers", "1", "--dry-run", "--db", str(tmp_path / "a.duckdb")]) == 0
    said = capsys.readouterr().out
    first, *parts = said.splitlines()
    assert re.fullmatch(r"up to 231 replays, about \d+ s if all are needed: \d\.\d\d s each with 1 worker", first)
    assert [line.split(maxsplit=1)[0] for line in parts] == ["24", "153", "54"]  # 3 steps, 6 neighbours, 3 windows
    assert [line.split(maxsplit=1)[1] for line in parts[:2]] == [
        "for 8 trials, fewer where one is pruned", "for the answer, fewer where it changes few knobs",
    ]  # fmt: skip
    assert parts[2].split(maxsplit=1)[1].startswith("only if all that is best stands beside a cliff; about ")
    assert not (folder_of(tmp_path / "a.duckdb") / "study.journal").exists()


def test_a_dry_run_takes_what_replays_take_from_a_few_configurations(bursts: str, tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Some take many times what others do. They are measured on the longest window and not kept: nobody may ask for them."""
    seen: list[Any] = []

    def measured(cell: Any, sources: Any) -> dict[str, Any]:
        seen.append(cell)
        return {"cpu_s": len(seen) ** 2 / 10}

    monkeypatch.setattr("tuner.estimate.replay_cell", measured)
    said = tune(bursts, db=tmp_path / "a.duckdb", dry_run=True, **SMALL).document
    assert said["seconds_each"] == pytest.approx((0.1 + 0.4 + 0.9 + 1.6) / 4)  # so many steps are there
    assert said["minutes"] == pytest.approx((said["replays"] * said["seconds_each"] + 2 + 8 * 0.02) / 60, abs=0.006)
    assert len({cell.key() for cell in seen}) == 4 and len({cell.window.begin_ns for cell in seen}) == 1
    assert len(cells_of(tmp_path / "a.duckdb")) == 1  # the current policy's
    monkeypatch.setattr("tuner.estimate.replay_cell", lambda cell, sources: (measured(cell, sources), {"cpu_s": 5.0})[1])
    assert tune(bursts, db=tmp_path / "a.duckdb", dry_run=True, **SMALL).document["seconds_each"] == 5.0 and len(seen) == 5


@pytest.mark.parametrize("more", [
    {}, {"split": "past"}, {"objective": "capacity"}, {"objective": "goodput,replicas"}, {"space": "policy"}, {"also": True},
    {"workers": 2}, {"trials": 12, "seed": 1}, {"trials": 12, "seed": 2, "slo": "ttft=800ms"},
    {"objective": "replicas", "sets": ["fleet.replicas=3"]},
], ids=str)  # fmt: skip
def test_a_study_takes_no_more_replays_than_a_dry_run_says(more: dict[str, Any], bursts: str, light: str, tmp_path: Path) -> None:
    """Whatever is searched; and what is there is said, and not counted again."""
    given = {**SMALL, "trials": 3, "windows": 2, "holdout": 2, **more, **({"also": [light]} if more.get("also") else {})}
    said = tune(bursts, db=tmp_path / "a.duckdb", dry_run=True, **given).document
    found = tune(bursts, db=tmp_path / "a.duckdb", **given)
    assert found.replayed <= len(cells_of(tmp_path / "a.duckdb")) <= said["replays"] and said["trials_there"] == 0
    assert all(row["winner"] is not None for row in found.document["reached"])
    again = tune(bursts, db=tmp_path / "a.duckdb", dry_run=True, **given)
    trials = given["trials"]
    assert (again.document["trials_there"], again.replayed) == (trials, 0)
    assert again.document["replays"] == again.document["answer_replays"] + again.document["ahead_replays"] < said["replays"]
    assert again.document["seconds_each"] > 0 and f"{trials} of {trials} are there from before" in again.text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "--slo: nothing says which requests are good"),
        (["--slo", SLO, "--target", "2"], "--target 2.0: expected a share"),
        (["--slo", SLO, "--objective", "cost"], "expected --price-per-hour"),
        (["--slo", SLO, "--split", "random"], "--split random: expected alternate or past"),
        (["--slo", SLO, "--storage", "mysql://x"], "expected postgresql://"),
        (["--slo", SLO, "--space", "none.toml"], "neither scheduler nor policy, nor a file"),
        (["--slo", SLO, "--job", "none.toml"], "expected a TOML file with a table [tune]"),
    ],
)
def test_what_cannot_be_done_is_one_line(options: list[str], expected: str, bursts: str, tmp_path: Path,
                                         capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    assert main(["tune", bursts, *options, "--workers", "1", "--db", str(tmp_path / "a.duckdb")]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("tracekit: ") and expected in last


def test_an_unknown_key_of_a_job_file_is_named_with_the_nearest(bursts: str, tmp_path: Path) -> None:
    from tuner.job_file import read_job

    job = tmp_path / "job.toml"
    job.write_text("[tune]\ntrails = 3\n")
    with pytest.raises(UsageError, match=r"trails: unknown; .*trials"):
        read_job(str(job), {"trials": 60}, set())
    job.write_text('[tune]\ntrials = "3"\n')
    with pytest.raises(UsageError, match="expected int"):
        read_job(str(job), {"trials": 60}, set())


def test_what_is_not_recommended_is_called_that_and_a_change_that_cannot_stand_alone_says_why(
    report: tuple[TuneReport, Path],
) -> None:
    row = {"knob": "max_num_batched_tokens", "level": 512, "gain": None, "reason": "max_num_seqs = 1024 is above the budget"}
    found = {**report[0].document, "recommended": False, "why": "noise", "ablation": {"plus": [row], "minus": []}}
    text = render_report(found)
    assert "NO CHANGE RECOMMENDED: noise.\n  what was found and is not recommended:\n  " in text
    assert "on the windows held out:\n  max_num_batched_tokens: no configuration alone (max_num_seqs = 1024 is above" in text
    assert "not recommended" not in report[0].text and "not recommended" not in render_report({**found, "changes": []})

"""The pages on one machine, PostgreSQL and Ray, and the examples for Kubernetes and Slurm: their command lines run here, with
``--dry-run`` in place of a cluster; and a study that was searched is opened by optuna-dashboard."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tuner.servers import eventually, free_port, need
from tracekit.cli.main import main
from tracekit.store import Store
from tuner import tune

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("tuner_one_machine.md", "tuner_postgresql.md", "tuner_ray.md")
EXAMPLES = ROOT / "examples" / "cluster"


@pytest.fixture
def place(light: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the trace and the job file that the pages speak of."""
    shutil.copy(light, tmp_path / "monday.jsonl")
    shutil.copy(EXAMPLES / "job.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commands(page: str) -> list[str]:
    """Shell lines of a page's console blocks."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def tried(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """A ``tracekit tune`` line as far as it goes without a cluster."""
    capsys.readouterr()
    code = main([*words, "--dry-run", "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_the_command_lines_of_the_pages_run(page: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = {line.rpartition(" -- ")[2] for line in commands(page)}
    ours = [shlex.split(line)[1:] for line in sorted(lines) if line.startswith("tracekit ")]
    assert ours
    for words in ours:
        assert tried(words, capsys)["replays"] > 0
    for line in commands(page):
        assert all((ROOT / word).is_file() for word in shlex.split(line) if word.startswith("examples/")), line


@contextmanager
def recorder(place: Path) -> Iterator[dict[str, str]]:
    """An environment in which ``tracekit`` writes down what it was told."""
    folder = place / "bin"
    folder.mkdir()
    (folder / "tracekit").write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > '{place}/told'\n")
    (folder / "tracekit").chmod(0o755)
    yield {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "TRACEKIT_STORAGE": "postgresql://tuner@db.example/tuner"}


def test_the_kubernetes_job_runs_and_only_its_first_pod_answers(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text(encoding="utf-8"))
    assert (document["kind"], document["spec"]["completionMode"]) == ("Job", "Indexed")
    pod = document["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert "TRACEKIT_STORAGE" in {each["name"] for each in container["env"]}
    work = place / "work"
    work.mkdir()
    with recorder(place) as environment:
        environment |= {"WORK": str(work), "JOB": str(place), "TRACES": str(place)}
        for index in ("0", "3"):
            line = [*container["command"], *container["args"]]
            subprocess.run(line, env={**environment, "JOB_COMPLETION_INDEX": index}, check=True)
            told = (place / "told").read_text().split()
            assert ("--search-only" in told) == (index != "0")
    os.chdir(work)
    assert tried(told, capsys)["workers"] == 4 and (work / "pod.duckdb").exists()


def test_the_slurm_array_runs_and_only_its_first_task_answers(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with recorder(place) as environment:
        environment |= {"SLURM_CPUS_PER_TASK": "4", "SLURM_SUBMIT_DIR": str(place), "TMPDIR": str(place)}
        for task in ("0", "5"):
            subprocess.run([str(EXAMPLES / "slurm.sh")], env={**environment, "SLURM_ARRAY_TASK_ID": task}, check=True, cwd="/")
            told = (place / "told").read_text().split()
            assert ("--search-only" in told) == (task != "0")
    assert tried(told, capsys)["trials"] == 200 and (place / "tracekit-5.duckdb").exists()


@contextmanager
def viewer(storage: str) -> Iterator[str]:
    """A running optuna-dashboard; where it answers."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("optuna-dashboard")), storage, "--host", "127.0.0.1", "--port", str(port),
               "--server", "wsgiref"]  # fmt: skip
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            assert server.poll() is None
            try:
                return bool(read(f"{address}/api/studies"))
            except OSError:
                return False

        eventually(answers, "optuna-dashboard answers")
        yield address
    finally:
        server.kill()
        server.wait()


def read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.loads(answer.read())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "postgresql"])
def test_optuna_dashboard_opens_the_study(kind: str, bursts: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    need("optuna_dashboard", "optuna-dashboard (the extra dev)")
    storage = request.getfixturevalue("postgres") if kind == "postgresql" else None
    db = tmp_path / "a.duckdb"
    done = tune(bursts, slo="stall=60ms", windows=2, holdout=0, trials=3, workers=1, seed=11, storage=storage, db=db)
    name = f"tracekit-{done.document['study']}"
    assert any(line.startswith(f"study: {name} in ") for line in done.lines)
    (journal,) = [None] if storage else (Store(db).folder / "tune").glob("*/study.journal")
    with viewer(str(journal) if storage is None else storage.replace("postgresql://", "postgresql+psycopg://")) as address:
        (study,) = [each for each in read(f"{address}/api/studies")["study_summaries"] if each["study_name"] == name]
        trials = read(f"{address}/api/studies/{study['study_id']}")["trials"]
        assert [trial["number"] for trial in trials] == [0, 1, 2]
        assert {param["name"] for param in trials[0]["params"]} == set(done.document["current"])
        best = max(trial["values"][0] for trial in trials if trial["state"] == "Complete")
        assert best >= done.document["winner"]["value"] * 0.99
        with urllib.request.urlopen(f"{address}/dashboard/studies/{study['study_id']}", timeout=60) as page:
            assert page.status == 200

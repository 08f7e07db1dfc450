"""The shipped CI workflow and Kubernetes CronJob: the shell of every step is run, with the files that the job expects.

What a machine without GitHub and a cluster cannot run is not: actions that are only ``uses``, the image, and the installation,
for which ``python -m pip`` is stood in for.
"""

from __future__ import annotations

import gzip
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo_trace.jsonl.gz"
POLICY = '[scheduler]\nmax_num_seqs = 128\n'
WORKFLOW = yaml.safe_load((ROOT / "examples" / "ci" / "gate.yml").read_text())
CRON_JOB = yaml.safe_load((ROOT / "examples" / "kubernetes" / "nightly-gate.yaml").read_text())


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH: tracekit, and a python that installs nothing."""
    folder = tmp_path_factory.mktemp("bin")
    python = f"exec {sys.executable}"
    for name, text in (
        ("tracekit", f'{python} -m tracekit.cli.main "$@"'),
        ("python", f'if [ "$1 $2 $3" = "-m pip install" ]; then echo "$@" >> "$PIP_LOG"; exit 0; fi\n{python} "$@"'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


def shell(command: list[str], where: Path, tools: Path, extra: dict[str, str]) -> subprocess.CompletedProcess[str]:
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PIP_LOG": str(where / "pip.log"), **extra}
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, tools: Path) -> Path:
    """What the repository and the ConfigMap hold: a policy, and a baseline of the demo trace under it."""
    folder = tmp_path_factory.mktemp("serving")
    (folder / "policy.toml").write_text(POLICY)
    words = ["tracekit", "gate", str(DEMO), "--policy", "policy.toml", "--slo", "ttft=500ms,tpot=50ms", "--window", "60s:120s",
             "--gate", "ttft_p95<=2s", "--write-baseline", "baseline.json"]  # fmt: skip
    done = shell(words, folder, tools, {})
    assert done.returncode == 0, done.stderr
    return folder


def step(name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in WORKFLOW["jobs"]["gate"]["steps"] if each.get("name") == name)
    return found


def run_step(name: str, where: Path, tools: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """As GitHub runs a step: bash, which ends at the first error, also in a pipe."""
    values = {**WORKFLOW["jobs"]["gate"]["env"], **extra}
    return shell(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step(name)["run"]], where, tools, values)


@pytest.fixture
def checkout(tmp_path: Path, deployed: Path) -> Path:
    (tmp_path / "serving").mkdir()
    shutil.copy(deployed / "policy.toml", tmp_path / "serving")
    shutil.copy(deployed / "baseline.json", tmp_path / "serving" / "gate-baseline.json")
    return tmp_path


@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("bash") is None, reason="the workflow needs bash and curl")
def test_every_step_of_the_workflow_runs(checkout: Path, tools: Path) -> None:
    summary = checkout / "summary.md"
    secrets = {"TRACE_URL": DEMO.as_uri(), "TRACEKIT_WEBHOOK": "", "GITHUB_STEP_SUMMARY": str(summary)}
    ran = []
    for each in WORKFLOW["jobs"]["gate"]["steps"]:
        if "run" in each and each.get("if") != "failure()":
            done = run_step(each["name"], checkout, tools, **secrets)
            assert done.returncode == 0, f"{each['name']}: {done.stderr}"
            ran.append(each["name"])
    assert ran == ["Install", "Fetch last night's trace", "Is it usable?", "Gate"]
    assert (checkout / "pip.log").read_text() == "-m pip install --quiet tracekit-llm\n"
    assert json.loads((checkout / "gate.json").read_text())["verdict"] == "passed"
    assert "gate: passed" in summary.read_text()
    kept = next(each for each in WORKFLOW["jobs"]["gate"]["steps"] if "upload-artifact" in each.get("uses", ""))
    assert kept["if"] == "always()"
    assert {"gate.json", "gate.xml"} <= set(kept["with"]["path"].split())


def test_another_night_is_gated_and_a_pull_request_on_it_is_refused(checkout: Path, tools: Path) -> None:
    with gzip.open(DEMO, "rt") as whole, gzip.open(checkout / "last-night.jsonl.gz", "wt") as other:
        other.writelines(line for at, line in enumerate(whole) if at % 29)
    nightly = re.fullmatch(r"\$\{\{ github.event_name == 'schedule' && '(\S+)' \|\| '' \}\}", step("Gate")["env"]["MISMATCH"])
    assert nightly is not None
    done = run_step("Gate", checkout, tools, TRACEKIT_WEBHOOK="", MISMATCH="")
    assert done.returncode == 2 and "trace" in done.stderr
    done = run_step("Gate", checkout, tools, TRACEKIT_WEBHOOK="", MISMATCH=nightly[1])
    assert done.returncode in (0, 1, 4), done.stderr
    assert json.loads((checkout / "gate.json").read_text())["verdict"] in ("passed", "failed", "inconclusive")


def test_a_worse_policy_turns_the_workflow_red_and_it_says_why(checkout: Path, tools: Path) -> None:
    shutil.copy(DEMO, checkout / "last-night.jsonl.gz")
    (checkout / "serving" / "policy.toml").write_text("[scheduler]\nmax_num_seqs = 4\n")
    done = run_step("Gate", checkout, tools, TRACEKIT_WEBHOOK="")
    assert done.returncode == 2, "another policy than the baseline's must be said"
    assert "policy max_num_seqs: 128 in the baseline, 4 here" in done.stderr
    (checkout / "serving" / "gate-baseline.json").unlink()
    assert run_step("Gate", checkout, tools, TRACEKIT_WEBHOOK="").returncode == 2
    done = run_step("Why?", checkout, tools)
    assert done.returncode == 0, done.stderr
    assert "QUEUE_SEATS" in (checkout / "diagnosis.txt").read_text()


def test_every_name_a_step_uses_is_set() -> None:
    import re

    job = WORKFLOW["jobs"]["gate"]
    for each in job["steps"]:
        for name in re.findall(r"\$\{?([A-Z_]+)", each.get("run", "")):
            assert name in {**job["env"], **each.get("env", {})}, f"{each['name']}: ${name}"
        assert set(each) <= {"name", "uses", "with", "run", "env", "if"}


class Gateway(http.server.BaseHTTPRequestHandler):
    """A push gateway: keeps what is put."""

    def do_PUT(self) -> None:
        server: Any = self.server
        server.got.append((self.path, self.rfile.read(int(self.headers["Content-Length"])).decode()))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing on the tests' output."""


@pytest.fixture
def gateway() -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    server.got = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join(60)


def container() -> dict[str, Any]:
    found: dict[str, Any] = CRON_JOB["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
    return found


@pytest.mark.parametrize(("seats", "code"), [(128, 0), (4, 1)])
def test_the_cron_job_gates_a_night(deployed: Path, tools: Path, tmp_path: Path, gateway: Any, seats: int, code: int) -> None:
    places = {name: str(tmp_path / name.lower()) for name in ("TRACES", "VERDICTS", "CONFIG", "WORK")}
    for name in ("TRACES", "CONFIG", "WORK"):
        Path(places[name]).mkdir()
    shutil.copy(DEMO, Path(places["TRACES"], "2026-11-29.jsonl.gz"))
    shutil.copy(deployed / "baseline.json", places["CONFIG"])
    Path(places["CONFIG"], "policy.toml").write_text(f"[scheduler]\nmax_num_seqs = {seats}\n")
    values = {each["name"]: each["value"] for each in container()["env"] if "value" in each} | places
    values |= {"DAY": "2026-11-29", "PUSHGATEWAY": f"http://127.0.0.1:{gateway.server_port}", "TRACEKIT_WEBHOOK": "",
               "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}  # fmt: skip
    done = shell([*container()["command"], *container()["args"]], tmp_path, tools, values)
    assert done.returncode == code, done.stderr
    verdict = json.loads(Path(places["VERDICTS"], "2026-11-29.gate.json").read_text())
    assert verdict["exit_code"] == code
    assert Path(places["VERDICTS"], "2026-11-29.gate.xml").exists()
    (path, body), = gateway.got
    assert path == "/metrics/job/tracekit_gate"
    assert f"tracekit_exit_code {code}\n" in body


def test_the_cron_job_is_one() -> None:
    assert (CRON_JOB["apiVersion"], CRON_JOB["kind"]) == ("batch/v1", "CronJob")
    spec = CRON_JOB["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    pod = spec["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert spec["jobTemplate"]["spec"]["backoffLimit"] == 0, "a red gate is not tried again until it is green"
    mounted = {each["name"] for each in container()["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}

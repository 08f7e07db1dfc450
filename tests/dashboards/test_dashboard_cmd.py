"""``tracekit dashboard``: serves, says where, and refuses in one line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from benchmarks.page_asking import Asker, over_http
from tests.dashboards.browser import ROOT, served
from tests.dashboards.runs import recorded
from tracekit.store import Store


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tracekit.cli.main", "dashboard", "--no-open", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def test_it_serves_a_run(store: Store) -> None:
    recorded(store, "first", 30)
    with served(store.path) as url:
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url + "timeline", timeout=30) as answer:
            assert answer.status == 200
        page = Asker(over_http(url)).ask("?run=1")
        assert "30 iterations" in page["summary.children"]


def test_it_ends_quietly_when_interrupted(store: Store) -> None:
    command = [sys.executable, "-m", "tracekit.cli.main", "dashboard", "--no-open", "--port", "0", "--db", str(store.path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "is not there yet: it appears with the first replay" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


def test_a_taken_port_is_one_line(store: Store) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("--db", str(store.path), "--port", str(port), "--json")
    assert done.returncode == 2
    why = "cannot be served on (Address already in use); choose another with --port"
    assert done.stderr == f"tracekit: 127.0.0.1:{port}: {why}\n"
    assert json.loads(done.stdout)["exit_code"] == 2


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--db", "no/such/folder/x.duckdb"], 2, "no such folder"),
        (["--host", "999.1.1.1", "--token", "a-token-long-enough"], 2, "cannot be served on"),
        (["--port", "70000"], 2, "--port"),
        (["--host", "0.0.0.0"], 2, "--host 0.0.0.0: other machines can reach it; expected a token by --token or TRACEKIT_TOKEN"),
        (["--host", "0.0.0.0", "--token", "tooshort"], 2, "token: 8 characters; expected at least 16"),
    ],
)
def test_what_cannot_be_served_is_one_line(words: list[str], code: int, says: str) -> None:
    done = run(*words)
    assert done.returncode == code
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def status(asked: urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_a_token_is_asked_for_and_never_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(store, "first", 30)
    token = "a-token-from-the-environment"
    monkeypatch.setenv("TRACEKIT_TOKEN", token)
    with served(store.path, "--host", "0.0.0.0", "--read-only", "--allow-host", "trace.example") as url:
        assert token not in url
        here = url.replace("0.0.0.0", "127.0.0.1") + "runs"
        cases = (("127.0.0.1", "", 401), ("127.0.0.1", token, 200), ("trace.example", token, 200), ("evil.example", token, 403))
        for host, given, code in cases:
            asked = urllib.request.Request(here, headers={"Host": host, "Authorization": f"Bearer {given}"})
            assert status(asked) == code, host


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.duckdb"
    other.write_text("not a database")
    done = run("--db", str(other))
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1

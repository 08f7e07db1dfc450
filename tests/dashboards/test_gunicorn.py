"""The dashboard behind the real gunicorn with several workers: one sign-in, one answer, whichever worker gives it."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.page_asking import Asker
from tests.dashboards.browser import ROOT
from tests.dashboards.runs import recorded
from tracekit.store import Store, list_runs

TOKEN = "a-token-for-the-workers"
COMMAND = [sys.executable, "-m", "gunicorn", "-c", "python:dashboards.gunicorn_conf", "dashboards.wsgi:application()"]


def environment(store: Store, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TRACEKIT")}
    return {**kept, "PYTHONPATH": str(ROOT), "TRACEKIT_DB": str(store.path), **more}


@contextmanager
def workers(store: Store, log: Path, count: int, **more: str) -> Iterator[int]:
    """A server with so many workers; its port."""
    command = [*COMMAND, "-w", str(count), "-b", "127.0.0.1:0", "--access-logfile", str(log)]
    process = subprocess.Popen(command, env=environment(store, **more), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said: list[str] = []
    try:
        while not (listening := re.search(r"Listening at: \S+:(\d+)", "".join(said))):
            said.append(process.stderr.readline())
            assert said[-1], "".join(said)
        threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True).start()
        yield int(listening[1])
    finally:
        process.terminate()
        process.wait(60)
    assert "Traceback" not in "".join(said), "".join(said)


class Caller:
    """Requests, each on a connection of its own, so that any worker may take it; it keeps its cookie."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""

    def __call__(self, path: str, body: bytes | None, kind: str = "application/json") -> bytes:
        status, answer, _ = self.full(path, body, kind)
        assert status == 200, (path, status)
        return answer

    def full(self, path: str, body: bytes | None = None, kind: str = "application/json") -> tuple[int, bytes, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"Content-Type": kind, "Cookie": self.cookie, "Connection": "close"}
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        found = answer.status, answer.read(), answer.headers
        connection.close()
        return found

    def sign_in(self) -> None:
        body = urllib.parse.urlencode({"token": TOKEN, "next": "/"}).encode()
        status, _, headers = self.full("/sign-in", body, "application/x-www-form-urlencoded")
        assert status == 303
        self.cookie = headers["Set-Cookie"].split(";")[0]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, int, Path]]:
    """Two workers over one recorded run: the store, the port, the log of accesses."""
    folder = tmp_path_factory.mktemp("workers")
    store, log = Store(folder / "t.duckdb"), folder / "access.log"
    recorded(store, "secret-name", 5000)
    with workers(store, log, 2, TRACEKIT_TOKEN=TOKEN) as port:
        yield store, port, log


def test_one_sign_in_and_one_address_for_all_workers(served: tuple[Store, int, Path]) -> None:
    _, port, log = served
    caller = Caller(port)
    assert caller.full("/")[0] == 401
    assert caller.full(f"/timeline?token={TOKEN}")[0] == 303
    assert json.loads(caller("/health", None))["status"] == "ok"
    caller.sign_in()

    def took_part() -> set[str]:
        return {line.split()[1] for line in log.read_text().splitlines() if "/_dash-update-component" in line}

    shown: list[dict[str, Any]] = []
    while len(took_part()) < 2 and len(shown) < 200:
        shown.append(Asker(caller).ask("?run=1&t=10-20"))
    assert len(took_part()) == 2
    assert len({json.dumps(each["timeline.figure"]) for each in shown}) == 1
    assert {each["summary.children"] for each in shown} == {shown[0]["summary.children"]}
    assert TOKEN not in log.read_text()
    assert "secret-name" not in log.read_text()
    assert "?" not in log.read_text()


def test_workers_go_on_while_a_replay_writes_and_all_see_its_end(served: tuple[Store, int, Path]) -> None:
    store, port, _ = served
    caller = Caller(port)
    caller.sign_in()
    trace = str(ROOT / "examples" / "demo_trace.jsonl.gz")
    words = [
        sys.executable,
        "-m",
        "tracekit.cli.main",
        "replay",
        trace,
        "--limit",
        "60",
        "--db",
        str(store.path),
        "--engine",
        "sim",
    ]
    with subprocess.Popen(words, env=environment(store), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as writer:
        states = []
        while writer.poll() is None:
            states.append(Asker(caller).ask("?run=1")["status.className"].split()[-1])
        assert writer.stderr is not None
        said = writer.stderr.read()
    assert writer.returncode == 0, said
    assert states
    assert set(states) <= {"finished", "busy"}
    after = [Asker(caller).ask("?run=2")["status.children"] for _ in range(8)]
    assert len(list_runs(store)) == 2
    assert len(set(after)) == 1
    assert after[0].startswith("finished: 60 requests")


@pytest.mark.parametrize(
    ("bind", "more", "says"),
    [
        ("0.0.0.0:0", {}, "--host 0.0.0.0: other machines can reach it; expected a token by TRACEKIT_TOKEN"),
        ("0.0.0.0:0", {"TRACEKIT_TOKEN": "short"}, "token: 5 characters; expected at least 16 (TRACEKIT_TOKEN)"),
        ("127.0.0.1:0", {"TRACEKIT_READ_ONLY": "perhaps"}, "TRACEKIT_READ_ONLY=perhaps: expected 1 or 0"),
    ],
)
def test_what_must_not_be_served_is_refused_in_one_line(store: Store, bind: str, more: dict[str, str], says: str) -> None:
    done = subprocess.run([*COMMAND, "-b", bind], env=environment(store, **more), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("tracekit: ")] == [line for line in lines if "[INFO]" not in line]
    assert says in done.stderr

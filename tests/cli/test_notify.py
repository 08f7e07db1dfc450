"""``--notify``: what is told, to whom, and that a server that hangs, refuses or is not there changes nothing."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tracekit.cli.main import main
from tracekit.errors import InputError
from tracekit.notify import MOST_LINES, Message, deliver, error_message, gate_message, prometheus_text, slack_message


class Hook(http.server.BaseHTTPRequestHandler):
    """Answers as its server is told to: a status, or not before ``release`` is set."""

    def do_POST(self) -> None:
        server: Any = self.server
        server.got.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
        if server.hangs:
            server.release.wait(120)
            server.answered = True
        self.send_response(server.status)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing on the tests' output."""


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    server.daemon_threads = True
    server.got, server.status, server.hangs = [], 200, False
    server.answered, server.release = False, threading.Event()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("TRACEKIT_WEBHOOK", f"http://127.0.0.1:{server.server_port}/secret-path")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield server
    server.release.set()
    server.shutdown()
    thread.join(60)


def message(lines: int = 3) -> Message:
    return Message(kind="gate", title="gate: failed (1 failed)", lines=[f"line {i} <&>" for i in range(lines)],
                   numbers={"ttft_p99_seconds": 1.25, "requests": 300.0}, exit_code=1)  # fmt: skip


def told(how: str, what: Message, **options: float) -> tuple[list[str], list[str]]:
    written: list[str] = []
    said: list[str] = []
    deliver([how], what, written.append, said.append, **options)
    return written, said


@pytest.mark.parametrize("lines", [0, 1, 11, 12, 50])
def test_a_message_has_at_most_twelve_lines(lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = message(lines)
    assert len(found.text()) == min(lines + 1, MOST_LINES)
    for name, value in (("SERVER_URL", "https://ci"), ("REPOSITORY", "a/b"), ("RUN_ID", "7")):
        monkeypatch.setenv(f"GITHUB_{name}", value)
    assert len(found.text()) == min(lines + 2, MOST_LINES)
    assert found.text()[-1] == "https://ci/a/b/actions/runs/7"
    blocks = slack_message(found)["blocks"]
    body = "".join(block["text"]["text"] for block in blocks if "text" in block)
    assert body.count("\n") < MOST_LINES
    assert "<" not in body


def test_prometheus_text_is_exposition(tmp_path: Path) -> None:
    text = prometheus_text(message())
    assert all(re.fullmatch(r"[a-z_][a-z0-9_]* [0-9.e+-]+", line) for line in text.splitlines())
    assert "tracekit_ttft_p99_seconds 1.25\n" in text
    assert text.startswith("tracekit_exit_code 1\n")
    written, said = told(f"prometheus={tmp_path / 'out.prom'}", message())
    assert (written, said) == ([], [])
    assert (tmp_path / "out.prom").read_text() == text


@pytest.mark.parametrize(("code", "passed"), [(0, 1), (1, 0), (4, 0)])
def test_a_gates_gauge_is_its_verdict_and_no_count(code: int, passed: int) -> None:
    counts = {"passed": 4, "failed": int(code == 1), "inconclusive": int(code == 4)}
    document = {"verdict": "passed", "exit_code": code, "counts": counts, "gates": [], "figures": {}, "diagnosis": ""}
    text = prometheus_text(gate_message(document))
    assert f"tracekit_gate_passed {passed}\n" in text
    assert "tracekit_gates_passed 4\n" in text
    assert len(text.splitlines()) == len({line.split()[0] for line in text.splitlines()})
    assert "tracekit_gate_passed 0\n" in prometheus_text(error_message("gate", "no such file", 2))


def test_a_webhook_gets_the_message(hook: Any) -> None:
    assert told("webhook", message()) == ([], [])
    headers, body = hook.got[0]
    assert headers["Content-Type"] == "application/json"
    assert json.loads(body) == slack_message(message())


def test_a_hanging_server_holds_nothing_up(hook: Any) -> None:
    hook.hangs = True
    written, said = told("webhook", message(), wait_s=0.2)
    assert written == []
    assert "the work is done all the same" in said[0]
    assert not hook.answered, "it came back while the server was still hanging"


def test_an_unusable_input_is_told_without_its_value() -> None:
    """Whatever a reader objects to is a piece of somebody's trace."""
    error = InputError("not a number", file="/data/t.csv", line=4, column="prompt", value="hello secret", expected="a count")
    for how in ("slack", "prometheus"):
        written, _ = told(how, error_message("gate", error, 3))
        assert "secret" not in "".join(written)
    assert "t.csv: not a number" in "".join(told("slack", error_message("gate", error, 3))[0])


@pytest.mark.parametrize("trouble", ["500", "closed", "unset", "no address"])
def test_trouble_is_a_note(hook: Any, monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    hook.status = 500
    if trouble == "closed":
        monkeypatch.setenv("TRACEKIT_WEBHOOK", "http://127.0.0.1:1/secret-path")
    elif trouble == "unset":
        monkeypatch.delenv("TRACEKIT_WEBHOOK")
    elif trouble == "no address":
        monkeypatch.setenv("TRACEKIT_WEBHOOK", "file:///secret-path")
    _, said = told("webhook", message())
    assert len(said) == 1
    assert "secret-path" not in said[0], "the address of a webhook is a secret"


def test_a_file_that_cannot_be_written_is_a_note(tmp_path: Path) -> None:
    _, said = told(f"slack={tmp_path / 'no' / 'such' / 'folder'}", message())
    assert said[0].startswith("notify slack: not told (FileNotFoundError")


MARK = "tenant-that-must-not-be-told"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("notify") / "night.jsonl"
    rows = [{"arrival_ns": i * 10**8, "input_tokens": 100 + i, "output_tokens": 20, "tenant": MARK, "request_id": f"{MARK}-{i}"}
            for i in range(120)]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_verbs_tell_their_end_and_no_rows(trace: str, tmp_path: Path, hook: Any, capfd: pytest.CaptureFixture[str]) -> None:
    place = ["--db", str(tmp_path / "n.duckdb")]
    gate_file = ["--gate-file", str(tmp_path / "gate.json"), "--seeds", "2"]
    hows = ["--notify", "webhook", "--notify", f"prometheus={tmp_path / 'n.prom'}", "--notify", "slack"]
    assert main(["replay", trace, *place, *hows]) == 0
    assert main(["gate", trace, "--gate", "ttft_p50<=1us", *place, *gate_file, *hows]) == 1
    assert main(["gate", trace, "--gate", "ttft_p50<=1s", "--baseline", "nowhere.json", *place, *gate_file, *hows]) == 2
    out = capfd.readouterr().out
    posted = [json.loads(body) for _, body in hook.got]
    assert [each["text"].split(":")[0] for each in posted] == ["replay", "gate", "gate"]
    assert posted[1]["text"] == "gate: failed (1 failed)"
    assert "nowhere.json: no such file" in json.dumps(posted[2])
    printed = [json.loads(line) for line in out.splitlines() if line.startswith('{"text"')]
    assert printed == posted
    for each in (*posted, (tmp_path / "n.prom").read_text()):
        assert MARK not in json.dumps(each)


def test_json_stays_one_document(trace: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert main(["replay", trace, "--db", str(tmp_path / "n.duckdb"), "--json", "--notify", "slack"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["schema"] == "tracekit.run/1"
    assert '{"text"' in err


def test_a_slip_is_told_before_the_work(trace: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for verb in ("replay", "gate", "tune"):
        assert main([verb, trace, "--db", str(tmp_path / "n.duckdb"), "--notify", "pager"]) == 2
        assert "--notify pager: expected slack" in capfd.readouterr().err
    assert not (tmp_path / "n.duckdb").exists()

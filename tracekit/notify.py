"""What others are told of a run: Slack blocks, Prometheus text for a push gateway, or a post to a webhook.

A message has at most twelve lines and only sums: a verdict, limits, percentiles, names of findings; never a row of a trace. It
is written after the work is done and can neither hold it up (a thread, five seconds) nor fail it (whatever happens is a note).
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracekit import __version__
from tracekit.errors import InputError, UsageError, shown

__all__ = [
    "HOWS", "MOST_LINES", "WEBHOOK_VARIABLE", "Message", "check_hows", "deliver", "error_line", "error_message", "gate_message",
    "prometheus_text", "replay_message", "slack_message", "tune_message",
]  # fmt: skip

WEBHOOK_VARIABLE = "TRACEKIT_WEBHOOK"
HOWS = ("slack", "prometheus", "webhook")
MOST_LINES = 12
WAIT_S = 5.0
CLIP = 200
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A title, up to eleven lines, and the numbers in them: metric name (snake case) to value, in base units (seconds)."""

    kind: str
    title: str
    lines: Sequence[str]
    numbers: Mapping[str, float] = field(default_factory=dict)
    exit_code: int = 0

    def text(self) -> list[str]:
        """At most twelve lines."""
        lines = [shown(self.title, CLIP), *(shown(line, CLIP) for line in self.lines)]
        link = _link()
        room = MOST_LINES - (1 if link else 0)
        if len(lines) > room:
            lines = [*lines[: room - 1], f"and {len(lines) - room + 1} more"]
        return lines + ([link] if link else [])


def _link() -> str | None:
    """The page of the job that runs this, where it is one of GitHub's."""
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    server, repository, run = (os.environ.get(name) for name in names)
    return f"{server}/{repository}/actions/runs/{run}" if server and repository and run else None


def gate_message(document: Mapping[str, Any]) -> Message:
    """Of a ``gate.json``."""
    from tracekit.gate.report import cells_of, headline_of

    order = {"failed": 0, "inconclusive": 1, "passed": 2}
    rows = sorted(document["gates"], key=lambda row: order[row["status"]])
    lines = [f"{row['status']}: {' | '.join(cells_of(row))}" for row in rows]
    numbers = {"gate_passed": float(document["exit_code"] == 0)}
    numbers |= {f"gates_{name}": float(count) for name, count in document["counts"].items()}
    numbers |= _seconds({name: row["value"] for name, row in document["figures"].items()} if document.get("figures") else {})
    lines += [document["diagnosis"]] if document["diagnosis"] else []
    return Message(kind="gate", title=headline_of(document), lines=lines, numbers=numbers, exit_code=document["exit_code"])


def _seconds(figures: Mapping[str, Any]) -> dict[str, float]:
    """The figures that a dashboard shows, times in seconds."""
    found = {}
    for name in ("ttft_p99", "tpot_p99", "e2e_p99"):
        if figures.get(name) is not None:
            found[f"{name}_seconds"] = figures[name] / 1e9
    for name in ("attainment", "goodput", "requests", "preemptions"):
        if figures.get(name) is not None:
            found[name] = float(figures[name])
    return found


def replay_message(run: int, state: str, matrix: Mapping[str, Any], verdict: Sequence[str], exit_code: int) -> Message:
    """Of a run."""
    from tracekit.gate.metrics import METRICS
    from tracekit.sidebyside import figure_at

    names = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "e2e_p99", "attainment", "goodput", "requests", "preemptions")
    figures = {name: figure_at(matrix, METRICS[name].path)[0] for name in names}
    known = [f"{name} {METRICS[name].text(value)}" for name, value in figures.items() if value is not None]
    lines = [", ".join(known), *verdict]
    return Message(kind="replay", title=f"replay: run {run} {state.replace('_', ' ')}", lines=lines, numbers=_seconds(figures),
                   exit_code=exit_code)  # fmt: skip


def tune_message(text: str, exit_code: int) -> Message:
    """Of a tuner's report: its first lines, which are its answer."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return Message(kind="tune", title=f"tune: {lines[0] if lines else 'no answer'}", lines=lines[1:6], exit_code=exit_code)


def error_message(kind: str, error: object, exit_code: int) -> Message:
    """Of work that did not get to its end."""
    numbers = {"gate_passed": 0.0} if kind == "gate" else {}
    return Message(kind=kind, title=f"{kind}: error", lines=[error_line(error)], numbers=numbers, exit_code=exit_code)


def error_line(error: object) -> str:
    """An error as others may hear of it: of an unusable input which file and why, never the value, which is a trace's."""
    said = f"{Path(error.file).name if error.file else 'input'}: {error.reason}" if isinstance(error, InputError) else str(error)
    return shown(" ".join(said.split()), CLIP)


def slack_message(message: Message) -> dict[str, Any]:
    """A message of Slack's: blocks, and the same as plain text for a notification."""
    title, *lines = message.text()
    blocks: list[dict[str, Any]] = [{"type": "header", "text": {"type": "plain_text", "text": title[:150]}}]
    if lines:
        body = "\n".join(line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for line in lines)
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": body}})
    said = f"tracekit {__version__}, exit code {message.exit_code}"
    blocks.append({"type": "context", "elements": [{"type": "plain_text", "text": said}]})
    return {"text": title, "blocks": blocks}


def prometheus_text(message: Message) -> str:
    """Text exposition for a push gateway, a gauge a line: ``curl --data-binary @FILE http://GATEWAY/metrics/job/tracekit``."""
    rows = {"exit_code": float(message.exit_code), **message.numbers}
    kept = list(rows.items())[:MOST_LINES]
    return "".join(f"tracekit_{re.sub(r'[^a-z0-9_]', '_', name)} {value:.9g}\n" for name, value in kept)


def check_hows(hows: Sequence[str]) -> None:
    """``UsageError`` where ``--notify`` names nothing that is known: told before the work begins."""
    for how in hows:
        name, _, file = how.partition("=")
        if name not in HOWS or (file and name == "webhook"):
            raise UsageError(f"--notify {shown(how)}: expected slack, slack=FILE, prometheus, prometheus=FILE, or webhook"
                             f" (posts to the address in {WEBHOOK_VARIABLE})")  # fmt: skip


def deliver(hows: Sequence[str], message: Message, write: Say, say: Say, *, wait_s: float = WAIT_S) -> None:
    """Tell ``message`` in every way of ``hows``: to a file, through ``write`` (lines of text), or to the webhook. Problems are
    told by ``say`` and nothing else happens."""
    for how in hows:
        name, _, file = how.partition("=")
        try:
            if name == "webhook":
                _post(message, say, wait_s)
                continue
            text = prometheus_text(message) if name == "prometheus" else json.dumps(slack_message(message)) + "\n"
            if file:
                Path(file).write_text(text, encoding="utf-8")
            else:
                write(text.rstrip("\n"))
        except Exception as error:
            say(f"notify {shown(name)}: not told ({type(error).__name__}: {shown(error, CLIP)})")


def _post(message: Message, say: Say, wait_s: float) -> None:
    """Post to the webhook, in a thread that nobody waits for longer than ``wait_s``. Its address is a secret and is never
    repeated."""
    address = os.environ.get(WEBHOOK_VARIABLE, "")
    if not address.startswith(("http://", "https://")):
        say(f"notify webhook: {WEBHOOK_VARIABLE} holds no http address; nothing is posted")
        return
    body = json.dumps(slack_message(message)).encode()
    ended: list[str] = []

    def work() -> None:
        try:
            import urllib.request

            request = urllib.request.Request(address, data=body, headers={"Content-Type": "application/json"}, method="POST")
            with urllib.request.urlopen(request, timeout=wait_s) as answer:
                ended.append("" if answer.status < 300 else f"answered {answer.status}")
        except Exception as error:
            code = getattr(error, "code", None)
            ended.append(f"answered {code}" if code else f"{type(error).__name__}")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(wait_s)
    said = ended[0] if ended else f"no answer within {wait_s:g} s"
    if said:
        say(f"notify webhook: {said}; the work is done all the same")

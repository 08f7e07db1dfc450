"""Asks the timeline over HTTP as its page in a browser does, without the browser."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from typing import Any

__all__ = ["Asker", "over_http"]

Fetch = Callable[[str, bytes | None], bytes]


def over_http(url: str) -> Fetch:
    """Requests to a served dashboard."""

    def fetch(path: str, body: bytes | None) -> bytes:
        request = urllib.request.Request(url.rstrip("/") + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    return fetch


class Asker:
    """One open page: it remembers what it has been told, as a browser would."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        known = json.loads(fetch("/_dash-dependencies", None))
        (self._show,) = [each for each in known if "timeline.figure" in each["output"]]
        self.shown: dict[str, Any] = {"drawn.data": {}}

    def ask(self, search: str, theme: str = "light", overlaid: str | None = None) -> dict[str, Any]:
        """Everything that the page shows after the answer, by ``id.property``; ``sent`` are what the answer had."""
        values = {
            "url.search": search,
            "tick.n_intervals": 0,
            "theme.data": theme,
            "drawn.data": self.shown["drawn.data"],
            "narrow.data": False,
            "overlaid.data": overlaid,
            "paused.data": False,
        }
        outputs = [dict(zip(("id", "property"), each.rsplit(".", 1), strict=True)) for each in _names(self._show["output"])]
        body = {
            "output": self._show["output"],
            "outputs": outputs,
            "inputs": [_valued(each, values) for each in self._show["inputs"]],
            "state": [_valued(each, values) for each in self._show["state"]],
            "changedPropIds": ["url.search"],
        }
        answer = json.loads(self._fetch("/_dash-update-component", json.dumps(body).encode()))["response"]
        sent = {f"{name}.{prop}": value for name, props in answer.items() for prop, value in props.items()}
        self.shown |= sent
        return {**self.shown, "sent": set(sent)}


def _names(output: str) -> list[str]:
    return output.strip(".").split("...")


def _valued(each: dict[str, str], values: dict[str, Any]) -> dict[str, Any]:
    return {"id": each["id"], "property": each["property"], "value": values[f"{each['id']}.{each['property']}"]}

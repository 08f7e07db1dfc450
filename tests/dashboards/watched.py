"""A page in a browser, and everything that went wrong on it."""

from __future__ import annotations

from typing import Any

from benchmarks.pages import DRAWN

__all__ = ["Watched", "leave"]

PATIENCE_MS = 90_000
LATE = "was preloaded using link preload but not used within a few seconds"
"""What a browser remarks on a machine that is busy: nothing of it is wrong."""

GO = "to => window.dash_clientside.set_props('url', to)"
THERE = "to => document.querySelector('#rail a.current')?.getAttribute('href') === to"
"""The frame is that of the address."""
_opened: list[Watched] = []


def leave(home: str) -> None:
    """Every page of this server is left: one that still asks would miss the server that stops now."""
    for each in [each for each in _opened if each.home == home]:
        _opened.remove(each)
        if not each.page.is_closed():
            each.page.goto("about:blank")


class Watched:
    """A page and everything that went wrong on it."""

    def __init__(self, page: Any, home: str) -> None:
        self.page = page
        self.home = home
        _opened.append(self)
        self.wrong: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda said: self._said(said.type, said.text))
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("response", lambda answer: self.wrong.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)
        page.on("request", self._request)

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and LATE not in text:
            self.wrong.append(text)

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.wrong.append(f"asked the network for {request.url}")

    def open(self, address: str) -> Watched:
        self.page.goto(self.home + address)
        return self

    def go(self, address: str) -> Watched:
        """The same as a link on the page leads there: without reading its scripts again."""
        if not self.page.url.startswith(self.home):
            return self.open(address)
        path, _, search = address.partition("?")
        to = {"pathname": f"/{path}", "search": f"?{search}" if search else ""}
        self.page.evaluate(GO, to)
        self.page.wait_for_function(THERE, arg=to["pathname"] + to["search"])
        return self

    def text(self, name: str) -> str:
        return str(self.page.text_content(f"#{name}"))

    def until(self, name: str, pattern: str) -> str:
        """The text of an element, once it matches."""
        check = "([name, pattern]) => new RegExp(pattern).test(document.getElementById(name)?.textContent)"
        self.page.wait_for_function(check, arg=[name, pattern])
        return self.text(name)

    def drawn(self) -> Watched:
        self.page.wait_for_function(DRAWN["timeline"])
        return self

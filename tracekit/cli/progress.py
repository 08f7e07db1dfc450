"""Progress on standard error with the time left: a bar on a terminal, a line every five seconds elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from tracekit.cli.output import note

__all__ = ["ProgressDisplay", "left_text", "time_left"]

LINE_EVERY_S = 5.0
BAR_EVERY_S = 0.1


def time_left(elapsed_s: float, done: int, total: int) -> str:
    """``done`` of ``total`` in ``elapsed_s`` seconds leaves this long, as text."""
    if done <= 0 or total <= 0:
        return "time left unknown"
    return left_text(elapsed_s * max(total - done, 0) / done)


def left_text(seconds: float) -> str:
    """So much time, as text."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h left"
    return f"{seconds / 60:.1f} min left" if seconds >= 100 else f"{seconds:.0f} s left"


class ProgressDisplay:
    """Call it with ``(done, total, note)`` as often as you like; use it as a context manager so that the bar is cleared."""

    def __init__(self, label: str, unit: str = "requests", quiet: bool = False) -> None:
        self.label, self.unit, self.quiet = label, unit, quiet
        self.started = time.monotonic()
        self.since = 0
        self.shown_at = self.started
        self.bar: Any = None
        self.task: Any = None
        self.on_terminal = sys.stderr.isatty()

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._cleared()

    def _cleared(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def stage(self, unit: str, done: int = 0) -> None:
        """From here on ``unit`` are counted, of which ``done`` are there from before: the time left is told from the others."""
        self.unit, self.since, self.started = unit, done, time.monotonic()
        self._cleared()

    def __call__(self, done: int, total: int, text: str = "") -> None:
        now = time.monotonic()
        every = BAR_EVERY_S if self.on_terminal else LINE_EVERY_S
        if self.quiet or now - self.shown_at < every:
            return
        self.shown_at = now
        if self.on_terminal:
            self._draw(done, total, text)
            return
        share = f"{100 * done / total:.0f} %, " if total > 0 else ""
        tail = f" ({text})" if text else ""
        left = time_left(now - self.started, done - self.since, total - self.since)
        note(f"{self.label}: {done:,} of {total:,} {self.unit}, {share}{left}{tail}")

    def _draw(self, done: int, total: int, text: str) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        if self.bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
            self.bar.start()
            self.task = self.bar.add_task(escape(self.label), total=total)
        self.bar.update(self.task, completed=done, total=total, description=escape(f"{self.label} {text}".strip()))
        self.bar.refresh()

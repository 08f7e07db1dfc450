"""How far a study is, stage by stage: trials, then the replays that the answer needs, then requests on an engine.

Each stage counts something of its own, from nothing, and its time left is told from its own pace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sized
from typing import Protocol, runtime_checkable

from tracekit.jobs import Job

__all__ = ["Progress", "Staged", "Watched"]

Progress = Callable[[int, int, str], None]
"""``done``, ``total``, and a note."""
COUNT_EVERY_S = 0.5
"""How often it is looked how many replays workers have put beside the others: where these are in a database, it is asked."""


@runtime_checkable
class Staged(Protocol):
    """A display that is told when something else is counted from here on, of which ``done`` are there."""

    def stage(self, unit: str, done: int = 0) -> None: ...


class Watched:
    """Tells the job, and whoever watches the call. ``say``: where lines go."""

    def __init__(self, job: Job, progress: Progress | None, say: Callable[[str], None]) -> None:
        self.say = say
        self._job, self._progress, self._what = job, progress, "the current policy"
        self._unit, self._there, self._began = "", 0, time.monotonic()

    def stage(self, what: str) -> None:
        """What is replayed from here on, in a few words."""
        self._what = what
        self.say(f"replaying {what}")

    def begin(self, unit: str, there: int = 0) -> None:
        """From here on ``unit`` are counted; ``there`` of them are from before, and say nothing of the pace."""
        self._unit, self._there, self._began = unit, there, time.monotonic()
        if isinstance(self._progress, Staged):
            self._progress.stage(unit, there)

    def tell(self, done: int, total: int, note: str | None = None) -> None:
        """So many are done; ``note``: more than what is being replayed."""
        note = self._what if note is None else note
        made = done - self._there
        left = (time.monotonic() - self._began) * (total - done) / made if made > 0 else None
        self._job.progress(done, total, unit=self._unit, note=note, eta_s=left, since=self._there)
        if self._progress is not None:
            self._progress(done, total, note)

    def stop(self) -> None:
        """``KeyboardInterrupt`` where somebody asked the job to stop."""
        if self._job.cancelled():
            raise KeyboardInterrupt

    def looking(self, file: Sized, count: int) -> Callable[[], bool]:
        """A stage of ``count`` replays that others put into ``file``. To be asked now and then while they are at it: whether they
        are to stop."""
        self.begin("replays")
        first, looked = len(file), 0.0

        def look() -> bool:
            nonlocal looked
            if count and time.monotonic() - looked >= COUNT_EVERY_S:
                self.tell(min(len(file) - first, count), count)
                looked = time.monotonic()
            return self._job.cancelled()

        return look

"""Who is at which trial, said so that a death says it too.

A claim is a lock that the operating system, or the database, lets go when its owner's process ends, however it ends. So there is
no heartbeat to wait for, and no trial is taken over while its worker lives. On one machine locks are files of the study's folder;
on many they are PostgreSQL's advisory locks, held by each worker's own connection (``tuner.postgres``).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol

__all__ = ["Claims", "FileClaims"]


class Claims(Protocol):
    """``alone()``: one process at a time inside. ``answering(waits)``: likewise, for the study's answer; ``waits`` is called
    where somebody else is at it. ``take(n)``: whether trial ``n`` is now ours; ``give(n)``: it no longer is."""

    def alone(self) -> Any: ...

    def answering(self, waits: Callable[[], None]) -> Any: ...

    def take(self, trial: int) -> bool: ...

    def give(self, trial: int) -> None: ...


class FileClaims:
    """Locks on files under ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._held: dict[int, IO[bytes]] = {}

    @contextmanager
    def alone(self) -> Iterator[None]:
        with (self._folder / "ask").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def answering(self, waits: Callable[[], None]) -> Iterator[None]:
        with (self._folder / "answer").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                waits()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def take(self, trial: int) -> bool:
        if trial in self._held:
            return True
        file = (self._folder / str(trial)).open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return False
        self._held[trial] = file
        return True

    def give(self, trial: int) -> None:
        file = self._held.pop(trial, None)
        if file is not None:
            with suppress(FileNotFoundError):  # whoever opened it before it was unlinked here has a lock on a file without a name
                os.unlink(file.name)
            file.close()

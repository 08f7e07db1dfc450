"""Several worker processes on one plan: who replays what, and what happens when one of them ends early."""

from __future__ import annotations

import json
import os
import selectors
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tracekit.errors import TracekitError
from tracekit.experiments.plan import Cell
from tracekit.forks import Forks

__all__ = ["Crew"]

LOOK_EVERY_S = 0.2
Done = Callable[[Cell], None]


class Crew:
    """Worker processes, forked by one that imports while the plan is made. Use it as a context manager: none outlives it.

    A worker keeps to the levels of one window, whose requests it has read; when no window is left untouched it takes over
    levels of another's.
    """

    def __init__(self, database: Path, jobs: int) -> None:
        self._forks = Forks([sys.executable, "-m", "tracekit.experiments.worker", str(database)], jobs)
        self._workers = [_Worker(*ends) for ends in self._forks.ends]
        self._spots: dict[tuple[int, int], list[Cell]] = {}
        self._untouched: list[tuple[int, int]] = []
        self._through = False

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()
        self._forks.end(amid=not self._through)

    def run(self, folder: Path, cells: Sequence[Cell], done: Done, cancelled: Callable[[], bool]) -> None:
        """Replay ``cells`` of the plan in ``folder``; ``done(cell)`` as each result is there. ``KeyboardInterrupt`` when
        ``cancelled()``; the error of a worker is raised here."""
        for cell in cells:
            self._spots.setdefault((cell.trace, cell.window), []).append(cell)
        self._untouched = list(self._spots)
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.answers, selectors.EVENT_READ, worker)
                worker.order(str(folder))
                self._give(worker)
            while any(worker.busy for worker in self._workers):
                if cancelled():
                    raise KeyboardInterrupt
                for key, _ in selector.select(LOOK_EVERY_S):
                    worker = key.data
                    for cell in worker.heard():
                        done(cell)
                        self._give(worker)
        self._through = True

    def _give(self, worker: _Worker) -> None:
        cell = self._next(worker.spot)
        if cell is None:
            worker.busy = None
            return
        worker.spot = (cell.trace, cell.window)
        worker.take(cell)

    def _next(self, spot: tuple[int, int] | None) -> Cell | None:
        own = self._spots.get(spot, []) if spot is not None else []
        if own:
            return own.pop(0)
        while self._untouched:
            cells = self._spots[self._untouched.pop(0)]
            if cells:
                return cells.pop(0)
        left = max(self._spots.values(), key=len, default=[])
        return left.pop() if left else None


class _Worker:
    """One process; its answers are read without waiting for whole lines."""

    def __init__(self, orders: int, answers: int) -> None:
        self._orders: IO[bytes] = os.fdopen(orders, "wb")
        self.answers: IO[bytes] = os.fdopen(answers, "rb")
        self._rest = b""
        self.busy: Cell | None = None
        self.spot: tuple[int, int] | None = None

    def take(self, cell: Cell) -> None:
        self.busy = cell
        self.order(f"{cell.trace} {cell.window} {cell.level}")

    def order(self, line: str) -> None:
        with suppress(BrokenPipeError):  # if it has ended, its last answer, or the end of its answers, says so
            self._orders.write(os.fsencode(line) + b"\n")
            self._orders.flush()

    def heard(self) -> list[Cell]:
        """Cells that are done. ``TracekitError`` when the worker could not go on."""
        piece = self.answers.read1(65536)  # type: ignore[attr-defined]
        if not piece:
            raise TracekitError("a worker process ended in the middle of a replay; what is done is kept")
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [_cell_of(json.loads(line)) for line in lines]

    def end(self) -> None:
        """Close both pipes."""
        with suppress(BrokenPipeError):
            self._orders.close()
        self.answers.close()


def _cell_of(answer: dict[str, Any]) -> Cell:
    if "error" in answer:
        error = TracekitError(answer["error"])
        error.exit_code = answer["exit_code"]
        raise error
    return Cell(*answer["done"])

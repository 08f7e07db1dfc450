"""Trials carried out, here or by several worker processes: the same trials in the same order whoever carries them out."""

from __future__ import annotations

import pickle
import selectors
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from replay_engine.totals import RunTotals
from tracekit.diagnosis.trial import Trial, run_trial
from tracekit.diagnosis.trial_worker import packed
from tracekit.errors import TracekitError

if TYPE_CHECKING:
    from tracekit.replay import Setup

__all__ = ["Order", "TrialCrew"]

LOOK_EVERY_S = 0.2
WORTH_A_WORKER = 150_000
"""Iterations that take about as long as two processes take to start; fewer are replayed here."""
Order = Mapping[str, Any]
"""Arguments of ``run_trial``: ``sets``, ``share``, ``gaps``."""


class TrialCrew:
    """Carries out trials of one setup. Use it as a context manager: no process outlives it. ``done(k)`` is called as trial ``k``
    is there; ``cancelled()`` is looked at now and then and ends it all with ``KeyboardInterrupt``."""

    def __init__(self, setup: Setup, workers: int, *, done: Callable[[int], None], cancelled: Callable[[], bool]) -> None:
        self._setup, self._count = setup, max(workers, 1)
        self._done, self._cancelled = done, cancelled
        self._workers: list[_Worker] = []

    def __enter__(self) -> TrialCrew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()

    def run(self, orders: Sequence[Order], iterations: int) -> list[Trial]:
        """The trial of each order. ``iterations``: about so many the longest of them will take. Errors: those of a worker."""
        count = min(self._count, len(orders))
        if not self._workers and (count < 2 or iterations * len(orders) < WORTH_A_WORKER):
            return [self._here(k, order) for k, order in enumerate(orders)]
        if not self._workers:
            self._workers = [_Worker(self._setup) for _ in range(count)]
        return self._by_workers(orders)

    def _here(self, k: int, order: Order) -> Trial:
        trial = run_trial(self._setup, **order, looked=self._look)
        self._done(k)
        return trial

    def _look(self, _: RunTotals) -> None:
        if self._cancelled():
            raise KeyboardInterrupt

    def _by_workers(self, orders: Sequence[Order]) -> list[Trial]:
        found: dict[int, Trial] = {}
        waiting = list(range(len(orders)))
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.answers, selectors.EVENT_READ, worker)
                if waiting:
                    worker.take(waiting[0], orders[waiting.pop(0)])
            while len(found) < len(orders):
                if self._cancelled():
                    raise KeyboardInterrupt
                for key, _ in selector.select(LOOK_EVERY_S):
                    trial = key.data.heard()
                    if trial is None:
                        continue
                    found[key.data.at] = trial
                    self._done(key.data.at)
                    if waiting:
                        key.data.take(waiting[0], orders[waiting.pop(0)])
        return [found[k] for k in range(len(orders))]


class _Worker:
    """One process; its answers are read as they come, without waiting for whole ones."""

    def __init__(self, setup: Setup) -> None:
        command = [sys.executable, "-m", "tracekit.diagnosis.trial_worker"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._orders: IO[bytes] = self._process.stdin
        self.answers: IO[bytes] = self._process.stdout
        self._rest = bytearray()
        self.at = -1
        self._send(setup)

    def take(self, at: int, order: Order) -> None:
        self.at = at
        self._send(dict(order))

    def _send(self, message: object) -> None:
        with suppress(BrokenPipeError):  # if it has ended, the end of its answers says so
            self._orders.write(packed(message))
            self._orders.flush()

    def heard(self) -> Trial | None:
        """The answer, once it is whole. ``TracekitError`` when the worker could not go on."""
        piece = self.answers.read1(1 << 20)  # type: ignore[attr-defined]
        if not piece:
            code = self._process.wait()
            raise TracekitError(f"a worker process ended with code {code} in the middle of a replay")
        self._rest += piece
        size = int.from_bytes(self._rest[:8], "little") + 8
        if len(self._rest) < max(size, 8):
            return None
        answer = pickle.loads(bytes(self._rest[8:size]))  # our own child wrote it
        del self._rest[:size]
        if "error" in answer:
            error = TracekitError(answer["error"])
            error.exit_code = answer["exit_code"]
            raise error
        trial: Trial = answer["trial"]
        return trial

    def end(self) -> None:
        """Nothing that it still does is needed."""
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):
            self._orders.close()
        self.answers.close()

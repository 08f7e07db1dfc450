"""Several worker processes on one study, and what happens when one of them ends early: another goes on with its trial."""

from __future__ import annotations

import json
import os
import selectors
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tracekit.errors import TracekitError
from tracekit.forks import Forks
from tuner.lookup import Want
from tuner.questions import Question
from tuner.worker import STORAGE

__all__ = ["DEATHS", "LOOK_EVERY_S", "Crew", "Heard", "Answers", "pieces_of", "questions_of", "raise_error"]

LOOK_EVERY_S = 0.2
WORKERS = "import sys; from tuner.worker import main; sys.exit(main())"
"""What forks workers. Not ``-m``: the package imports its worker's module, which Python warns of when it is to be run as well."""
DEATHS = 3
"""So many workers may die of their own before the study gives up."""
Heard = Callable[[dict[str, Any]], None]


class Crew:
    """Worker processes, forked by one that imports what they need while the plan is made, in whose folder they are then told to
    work (``work_in``). Use it as a context manager: none outlives it."""

    def __init__(self, database: Path, storage: str | None, workers: int) -> None:
        self._command = [sys.executable, "-c", WORKERS, str(database)]
        self._environment = {name: value for name, value in os.environ.items() if name != STORAGE}
        self._environment |= {} if storage is None else {STORAGE: storage}
        self._forks = [Forks(self._command, workers, self._environment)]
        self._workers = [_Worker(*ends) for ends in self._forks[0].ends]
        self._deaths = 0

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()
        for forks in self._forks:
            forks.end()

    def work_in(self, folder: Path) -> None:
        """Where plan and study are. Before the first order."""
        for worker in self._workers:
            worker.folder = folder

    def ahead(self, shares: Sequence[Sequence[Want]]) -> None:
        """Begin to replay each worker's share, and return at once: its next order waits for it. Only while none has one."""
        for worker, share in zip(self._workers, shares, strict=True):
            worker.todo = [{"wants": [want.to_dict() for want in share]}] if share else []
            worker.go_on([])

    def search(self, trials: int, seconds: float | None, heard: Heard, cancelled: Callable[[], bool]) -> None:
        """All workers ask for trials until none is left. ``heard`` with each answer; ``KeyboardInterrupt`` if ``cancelled()``."""
        order = {"search": {"trials": trials, "seconds": seconds}}
        self._run([[order] for _ in self._workers], heard, cancelled)

    def replay(self, wants: Sequence[Want], questions: Sequence[Question], cancelled: Callable[[], bool]) -> list[Any]:
        """Answer ``questions``, then replay ``wants``, one at a time by whoever is free: a question takes longer than a want."""
        pool = [*questions_of(questions), *pieces_of(wants, 1)]
        answers = Answers()
        self._run([[] for _ in self._workers], answers.heard, cancelled, pool)
        return answers.of(questions)

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self._workers)

    def _run(self, shares: list[list[dict[str, Any]]], heard: Heard, cancelled: Callable[[], bool],
             pool: list[dict[str, Any]] | None = None) -> None:  # fmt: skip
        """Each worker its own orders, then orders of the pool, until there are none and all are idle."""
        pool = [] if pool is None else pool
        with selectors.DefaultSelector() as selector:
            for worker, share in zip(self._workers, shares, strict=True):
                selector.register(worker.answers, selectors.EVENT_READ, worker)
                worker.todo = list(share)
                if worker.order is None:
                    worker.go_on(pool)
            while any(worker.order is not None for worker in self._workers):
                if cancelled():
                    raise KeyboardInterrupt
                for key, _ in selector.select(LOOK_EVERY_S):
                    worker = key.data
                    answers = worker.heard()
                    if answers is None:
                        selector.unregister(worker.answers)
                        self._replaced(worker)
                        selector.register(worker.answers, selectors.EVENT_READ, worker)
                        continue
                    for answer in answers:
                        raise_error(answer)
                        if "ready" in answer:
                            worker.go_on(pool)
                        else:
                            heard(answer)

    def _replaced(self, worker: _Worker) -> None:
        """A new process goes on with the order of one that died."""
        self._deaths += 1
        if self._deaths > DEATHS:
            raise TracekitError(f"{self._deaths} worker processes ended on their own; what is done is kept")
        self._forks.append(Forks(self._command, 1, self._environment))
        worker.begin(*self._forks[-1].ends[0])


class _Worker:
    """One process; its answers are read without waiting for whole lines."""

    def __init__(self, orders: int, answers: int) -> None:
        self.todo: list[dict[str, Any]] = []
        self.order: dict[str, Any] | None = None
        self.folder: Path | None = None
        self.begin(orders, answers)

    def begin(self, orders: int, answers: int) -> None:
        """A fresh process is at these ends; the order that the last one had is told to it."""
        self._orders: IO[bytes] = os.fdopen(orders, "wb")
        self.answers: IO[bytes] = os.fdopen(answers, "rb")
        self._rest = b""
        if self.order is not None:
            self._tell()

    def go_on(self, pool: list[dict[str, Any]]) -> None:
        """The next order, its own before the pool's."""
        self.order = self.todo.pop(0) if self.todo else pool.pop(0) if pool else None
        if self.order is not None:
            self._tell()

    def _tell(self) -> None:
        with suppress(BrokenPipeError):  # if it has ended, the end of its answers says so
            self._orders.write(json.dumps({"folder": str(self.folder), **(self.order or {})}).encode() + b"\n")
            self._orders.flush()

    def heard(self) -> list[dict[str, Any]] | None:
        """Its answers; ``None`` when the process is gone."""
        piece = self.answers.read1(65536)  # type: ignore[attr-defined]
        if not piece:
            self.close()
            return None
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._orders.close()
        self.answers.close()


def pieces_of(wants: Sequence[Want], size: int) -> list[dict[str, Any]]:
    """Orders of ``size`` wants each."""
    return [{"wants": [want.to_dict() for want in wants[at : at + size]]} for at in range(0, len(wants), size)]


def questions_of(questions: Sequence[Question]) -> list[dict[str, Any]]:
    """An order for each."""
    return [{"question": dict(question), "at": at} for at, question in enumerate(questions)]


class Answers:
    """What workers answer to questions."""

    def __init__(self) -> None:
        self._found: dict[int, Any] = {}

    def heard(self, answer: Mapping[str, Any]) -> None:
        """Any line of a worker's."""
        if "answer" in answer:
            self._found[answer["at"]] = answer["answer"]

    def of(self, questions: Sequence[Question]) -> list[Any]:
        """In the order of the questions, all of which have been answered."""
        return [self._found[at] for at in range(len(questions))]


def raise_error(answer: Mapping[str, Any]) -> None:
    """Raise what a worker could not do."""
    if "error" in answer:
        error = TracekitError(answer["error"])
        error.exit_code = answer["exit_code"]
        raise error

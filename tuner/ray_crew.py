"""Workers of a study on an existing Ray cluster. Ray places them and says when one is gone; all else is as with local processes.

A worker asks the study for one trial at a time, so that the driver hears of each, and a trial whose worker died is taken over by
whoever asks next. The traces go to the cluster's object store once, whatever the number of workers and trials.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from tracekit.errors import TracekitError, UsageError, shown
from tracekit.experiments.plan import engine_digest
from tracekit.store import Store
from tuner.crew import DEATHS, LOOK_EVERY_S, Answers, Heard, pieces_of, questions_of, raise_error
from tuner.lookup import Want
from tuner.plan import TunePlan
from tuner.questions import Question
from tuner.ray_worker import MARK, RayWorker
from tuner.shipping import pack_traces

__all__ = ["RayCrew"]

CONNECT_S = 10.0
PIECE = 4
"""Wants told to a worker at a time: an order goes over the network."""
SAY_EVERY_S = 30.0
Say = Callable[[str], None]
Order = dict[str, Any]


class RayCrew:
    """Actors, one per core of the cluster or ``workers``; whoever Ray has placed works. As a context manager: none outlives it.
    Errors: ``UsageError`` where there is no cluster, or a machine of it cannot work on this study."""

    def __init__(self, plan: TunePlan, store: Store, folder: Path, storage: str | None, workers: int | None,
                 address: str | None, say: Say) -> None:  # fmt: skip
        self._stack = ExitStack()
        self._stack.enter_context(redirect_stdout(sys.stderr))  # Ray prints there that a worker died
        self._ray = _connected(address, self._stack)
        word = secrets.token_hex(8)
        (folder / MARK).write_text(word)
        numbers = [window.trace for trace in (plan.trace, *plan.also) for window in (*trace.search, *trace.held)]
        tables = self._ray.put(pack_traces(store, numbers))
        given = (plan.to_dict(), tables, str(folder.absolute()), word, storage, engine_digest())
        actor = self._ray.remote(num_cpus=1, max_restarts=0)(RayWorker)
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        self._workers = [_Worker(lambda: actor.remote(*given)) for _ in range(workers or max(cores, 1))]
        self._say = say
        self._deaths = 0
        say(f"ray: {len(self._workers)} workers asked for on {cores} cores")

    def __enter__(self) -> RayCrew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            with suppress(Exception):  # the cluster may be gone by now
                self._ray.kill(worker.actor)
        self._stack.close()

    @property
    def processes(self) -> list[int]:
        """Process ids of the workers that have been placed, each on its own machine."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def search(self, trials: int, seconds: float | None, heard: Heard, cancelled: Callable[[], bool]) -> None:
        """Workers ask for trials, one each at a time, until none is left. ``KeyboardInterrupt`` if ``cancelled()``."""
        until = None if seconds is None else time.monotonic() + seconds
        order = {"search": {"trials": trials, "seconds": None, "most": 1}}
        left = _Repeated(order, lambda: until is not None and time.monotonic() >= until)
        self._run(left, heard, cancelled)

    def replay(self, wants: Sequence[Want], questions: Sequence[Question], cancelled: Callable[[], bool]) -> list[Any]:
        """Answer ``questions``, then replay ``wants``, a few at a time by whoever is free."""
        answers = Answers()
        self._run(_Listed([*questions_of(questions), *pieces_of(wants, PIECE)]), answers.heard, cancelled)
        return answers.of(questions)

    def _run(self, left: _Repeated | _Listed, heard: Heard, cancelled: Callable[[], bool]) -> None:
        """Orders to whoever is free, until there are none and nobody is at one. Who has not been placed is not waited for."""
        told = time.monotonic()
        while True:
            if cancelled():
                raise KeyboardInterrupt
            for worker in self._workers:
                if worker.free and (order := left.next()) is not None:
                    worker.tell(order)
            if not left.any() and not any(worker.order is not None for worker in self._workers):
                return
            by_ref = {worker.waited: worker for worker in self._workers if worker.waited is not None}
            ready, _ = self._ray.wait(list(by_ref), num_returns=1, timeout=LOOK_EVERY_S)
            for ref in ready:
                self._heard(by_ref[ref], left, heard)
            if not self.processes and time.monotonic() - told > SAY_EVERY_S:
                self._say("ray: the cluster has not placed a worker yet; each asks for one core")
                told = time.monotonic()

    def _heard(self, worker: _Worker, left: _Repeated | _Listed, heard: Heard) -> None:
        """A worker's answers, or its death, at its start too: its order is for whoever is free, and a new worker is asked for."""
        try:
            answers = self._ray.get(worker.waited)
        except self._ray.exceptions.RayActorError as error:
            self._deaths += 1
            many = self._deaths > DEATHS + len(self._workers)
            if error.actor_init_failed or (many and worker.pid is None):
                raise UsageError(f"--executor ray: a worker cannot start: {_line(error)}; expected tracekit-llm[cluster], this"
                                 " version, on every machine") from None  # fmt: skip
            if many:
                raise TracekitError(f"{self._deaths} workers in a row ended on their own; what is done is kept") from None
            left.back(worker.order)
            worker.start()
            return
        except self._ray.exceptions.RayError as error:
            raise TracekitError(f"--executor ray: {_line(error)}; what is done is kept") from None
        order = worker.done(answers)
        for answer in answers:
            raise_error(answer)
        if order is not None:
            self._deaths = 0
            for answer in answers:
                heard(answer)
            left.answered(answers)


class _Worker:
    """One actor: placed when it has said its process id, free when it has nothing to do."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self.start()

    def start(self) -> None:
        """A new actor with nothing to do."""
        self.actor = self._make()
        self.pid: int | None = None
        self.order: Order | None = None
        self.waited: Any = self.actor.begin.remote()

    @property
    def free(self) -> bool:
        return self.pid is not None and self.order is None

    def tell(self, order: Order) -> None:
        self.order = order
        self.waited = self.actor.serve.remote(order)

    def done(self, answers: Sequence[dict[str, Any]]) -> Order | None:
        """It has answered: to what order (``None``: to being made)."""
        order, self.order, self.waited = self.order, None, None
        if order is None:
            self.pid = next((answer["pid"] for answer in answers if "pid" in answer), None)
        return order


class _Repeated:
    """The same order again and again, until somebody finds nothing left to do, or ``over()``."""

    def __init__(self, order: Order, over: Callable[[], bool]) -> None:
        self._order, self._over, self._ended = order, over, False

    def any(self) -> bool:
        return not self._ended and not self._over()

    def next(self) -> Order | None:
        return self._order if self.any() else None

    def back(self, order: Order | None) -> None:
        """Its worker died: there is a trial left that somebody has to take over."""
        if order is not None:
            self._ended = False

    def answered(self, answers: Sequence[dict[str, Any]]) -> None:
        self._ended = self._ended or not answers


class _Listed:
    """Orders that are each carried out once."""

    def __init__(self, orders: list[Order]) -> None:
        self._orders = orders

    def any(self) -> bool:
        return bool(self._orders)

    def next(self) -> Order | None:
        return self._orders.pop(0) if self._orders else None

    def back(self, order: Order | None) -> None:
        if order is not None:
            self._orders.append(order)

    def answered(self, answers: Sequence[dict[str, Any]]) -> None:
        """Nothing follows from an answer."""


def _connected(address: str | None, stack: ExitStack) -> Any:
    """Ray, connected; disconnected at the stack's end unless the caller's own program had connected it."""
    try:
        import ray
    except ImportError:
        raise UsageError("--executor ray: Ray is not installed; expected tracekit-llm[cluster]") from None
    if ray.is_initialized():
        return ray
    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    _reachable(where)
    try:
        ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR, namespace="tracekit")
    except Exception as error:  # of many kinds, none of which a person can do more about
        raise UsageError(f"--address {shown(where)}: no Ray cluster can be joined there: {_line(error)}") from None
    stack.callback(ray.shutdown)
    return ray


def _reachable(address: str) -> None:
    """Whether anybody listens there: Ray itself would try for minutes. Errors: ``UsageError``."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdigit():
        raise UsageError(f"--address {shown(address)}: expected HOST:PORT of a Ray cluster's head, ray://HOST:PORT, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise UsageError(f"--address {shown(address)}: nothing answers there ({error.strerror or error})") from None


def _line(error: Exception) -> str:
    return shown(" ".join(str(error).split()), 200)

"""Worker processes (``crew.WORKERS DATABASE ORDERS,ANSWERS ...``), one for each pair of pipe ends: each carries out what it is
told until its orders end (``tracekit.forks``).

Each line of orders is one: ``{"search": {"trials": n, "seconds": s}}`` asks for trials of the study until the budget is spent (or
``most`` of them), ``{"wants": [...]}`` replays what an answer needs, ``{"question": ..., "at": n}`` answers one (``questions``).
The first one also says in which ``folder`` the plan is: a worker is started before there is one. Lines of answers say what was
done. A worker ends with whom it works for, amid a replay if need be. Where the study is in a database, its URL comes in the
environment: anybody can read a command line.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from replay_engine.config import ConfigError
from tracekit.errors import InputError, TracekitError, shown
from tracekit.forks import fork_workers
from tracekit.store import Store
from tracekit.store.files import read_json
from tuner.cells import CELLS, CellFile, Cells, Replays
from tuner.lookup import Want, cell_of
from tuner.plan import PLAN, TunePlan
from tuner.questions import answer_to
from tuner.search import Budget, Searcher
from tuner.study import TuneStudy, open_study, study_name
from tuner.windows import Reads, WindowSources

__all__ = ["STORAGE", "Bench", "answered", "main", "open_cells"]

STORAGE = "TRACEKIT_STORAGE"
"""The environment variable with the URL of a study's database."""
Done = Callable[[dict[str, Any]], None]


def open_cells(plan: TunePlan, folder: Path | None, storage: str | None) -> Cells:
    """Where a study's replays are kept: beside its trials. Errors: ``UsageError`` for a database that cannot be reached."""
    if storage is not None:
        from tuner.postgres import PostgresCells

        return PostgresCells(storage, study_name(plan))
    assert folder is not None
    return CellFile(folder / CELLS)


class Bench:
    """What a worker keeps from order to order: the plan, the requests of its windows, the study."""

    def __init__(self, plan: TunePlan, traces: Reads, folder: Path | None, storage: str | None) -> None:
        self._plan, self._folder, self._storage = plan, folder, storage
        self._replays = Replays(WindowSources(traces, plan.windows), open_cells(plan, folder, storage))
        self._study: TuneStudy | None = None

    @classmethod
    def at(cls, database: Path, folder: Path, storage: str | None) -> Bench:
        """On the machine whose database it is; ``folder`` has the plan."""
        document = read_json(folder / PLAN)
        if document is None:
            raise InputError("no plan of a study", file=str(folder))
        return cls(TunePlan.from_dict(document), Store(database), folder, storage)

    def serve(self, order: Mapping[str, Any], done: Done) -> None:
        """One order; ``done`` with each trial and want, and with the answer to a question."""
        if "search" in order:
            if self._study is None:
                self._study = open_study(self._plan, self._folder, self._storage)
            asked = order["search"]
            until = None if asked["seconds"] is None else time.monotonic() + asked["seconds"]
            budget = Budget(trials=asked["trials"], until=until, most=asked.get("most"))
            Searcher(self._study, self._replays).run(budget, lambda number: done({"trial": number}), lambda: False)
        for want in order.get("wants", ()):
            self._replays.result(cell_of(self._plan, Want(**want)))
            done({"want": True})
        if "question" in order:
            done({"answer": answer_to(order["question"], self._plan, self._replays), "at": order["at"]})


def answered(work: Callable[[], Any], done: Done) -> bool:
    """Do it; whether it went well. Whoever waits for an answer hears of any error as one."""
    try:
        work()
    except (TracekitError, ConfigError) as error:
        done({"error": str(error), "exit_code": getattr(error, "exit_code", 2)})
        return False
    except Exception as error:
        text = shown(" ".join(f"{type(error).__name__}: {error}".split()), 300)
        done({"error": f"internal error in a worker: {text}", "exit_code": 5})
        return False
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Fork the workers and wait for them: the process's exit code. Who reads a worker's answers sees their end when it dies."""
    database, *pairs = sys.argv[1:] if argv is None else argv
    fork_workers(pairs, lambda orders, answers: _serve(Path(database), orders, answers))
    return 0


def _serve(database: Path, told: int, said: int) -> int:
    """Serve orders until they end; the process's exit code."""
    answers = os.fdopen(said, "w", buffering=1)
    orders: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(orders, told), daemon=True).start()

    def done(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")

    def work() -> None:
        bench = None
        while line := orders.get():
            order = json.loads(line)
            bench = bench or Bench.at(database, Path(order["folder"]), os.environ.get(STORAGE))
            bench.serve(order, done)
            done({"ready": True})

    try:
        return 0 if answered(work, done) else 1
    except (KeyboardInterrupt, BrokenPipeError):
        return 130


def _listen(orders: queue.Queue[bytes], told: int) -> None:
    """Orders as they come; when there are no more there is nobody to work for."""
    with os.fdopen(told, "rb") as lines:
        for line in lines:
            orders.put(line)
    os._exit(130)

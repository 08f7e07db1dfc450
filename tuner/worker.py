"""``python -m tuner.worker DATABASE FOLDER [STORAGE]``: carries out what it is told, until its input ends.

Each line on standard input is one order: ``{"search": {"trials": n, "seconds": s}}`` asks for trials of the study until the
budget is spent, ``{"wants": [...]}`` replays what an answer needs. Lines on standard output say what is done. A process of its
own started by name: it holds no lock or thread of its parent's, and it ends with its parent, amid a replay if need be.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from replay_engine.config import ConfigError
from tracekit.errors import InputError, TracekitError, shown
from tracekit.store import Store
from tracekit.store.files import read_json
from tuner.cells import CELLS, CellFile, Replays
from tuner.lookup import Want, cell_of
from tuner.plan import PLAN, TunePlan
from tuner.search import Budget, Searcher
from tuner.study import open_study
from tuner.windows import WindowSources

__all__ = ["main", "serve"]


def serve(order: Mapping[str, Any], database: Path, folder: Path, storage: str | None, made: dict[str, Any],
          done: Callable[[dict[str, Any]], None]) -> None:  # fmt: skip
    """One order. ``made`` keeps what several orders share: the plan, the requests of the windows, the study."""
    if "plan" not in made:
        document = read_json(folder / PLAN)
        if document is None:
            raise InputError("no plan of a study", file=str(folder))
        made["plan"] = TunePlan.from_dict(document)
        made["replays"] = Replays(WindowSources(Store(database)), CellFile(folder / CELLS))
    plan, replays = made["plan"], made["replays"]
    if "search" in order:
        made.setdefault("study", open_study(plan, folder, storage))
        seconds = order["search"]["seconds"]
        budget = Budget(trials=order["search"]["trials"], until=None if seconds is None else time.monotonic() + seconds)
        Searcher(made["study"], replays).run(budget, lambda number: done({"trial": number}), lambda: False)
    for want in order.get("wants", ()):
        replays.result(cell_of(plan, Want(**want)))
        done({"want": True})


def main(argv: Sequence[str] | None = None) -> int:
    """Serve orders until the input ends; the process's exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    database, folder, storage = Path(given[0]), Path(given[1]), given[2] if len(given) > 2 else None
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed is no answer
    orders: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    gc.freeze()
    made: dict[str, Any] = {}

    def done(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")

    try:
        while line := orders.get():
            serve(json.loads(line), database, folder, storage, made, done)
            done({"ready": True})
    except KeyboardInterrupt:
        return 130
    except (TracekitError, ConfigError) as error:
        done({"error": str(error), "exit_code": getattr(error, "exit_code", 2)})
        return 1
    except Exception as error:  # the parent must hear of it, whatever it is: it waits for an answer
        text = shown(" ".join(f"{type(error).__name__}: {error}".split()), 300)
        done({"error": f"internal error in a worker: {text}", "exit_code": 5})
        return 1
    return 0


def _listen(orders: queue.Queue[bytes]) -> None:
    """Orders as they come; when the parent is gone there is nobody to work for."""
    for line in sys.stdin.buffer:
        orders.put(line)
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
